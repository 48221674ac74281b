"""One isolation, from symptom to kernel."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from driftgate.isolation.confirm import confirm, reduce
from driftgate.isolation.observations import NONE, OFF_REFERENCE, UNSTABLE, Findings, Rate, Swept, Symptom, Synced
from driftgate.isolation.sweep import divergence, sweep
from driftgate.isolation.symptom import reproduce, unstable_rate
from driftgate.kernels.vm_calls import plain_library
from driftgate.stats import fisher

if TYPE_CHECKING:
    from driftgate.gate import Gate
    from driftgate.subject import Subject

DIVERGENCE_PREFILLS = 60
SWEEP_RUN = 1_000_000
"""Number of a sweep's first prefill: a planted fault draws other numbers there than in the identical prefills."""


def isolate(gate: Gate) -> Findings:
    """Reproduce the symptom, sweep every kernel, confirm what was caught by swap."""
    plain = plain_library(gate.model, gate.target, gate.dtype)
    bare = dataclasses.replace(gate.subject, plain=plain)
    subject = dataclasses.replace(bare, sync=gate.settings.sync)
    gate.stage("symptom")
    symptom = reproduce(gate, subject)
    gate.stage("sweep")
    swept = sweep(gate, subject, symptom.kind, SWEEP_RUN)
    symptom = _as_swept(symptom, swept)
    culprits, notes = swept.suspects, []
    if not culprits and symptom.kind != NONE:
        gate.stage("delta debugging")
        culprits, note = reduce(gate, subject, symptom, swept)
        notes.append(note)
    confirmation = None
    if culprits:
        gate.stage("swap")
        confirmation = confirm(gate, subject, symptom, swept, culprits)
    found = None
    if symptom.kind == UNSTABLE and symptom.differing.failures:
        gate.stage("first divergence")
        found = divergence(gate, subject, 2 * SWEEP_RUN, DIVERGENCE_PREFILLS)
    synced = None
    if (
        subject.sync != "none"
        and symptom.kind == UNSTABLE
        and confirmation is not None
        and confirmation.by == "prefills"
    ):
        gate.stage("sync")
        synced = _synced(gate, bare, subject.sync, confirmation.baseline)
    return Findings(symptom, swept, culprits, confirmation, found, synced, gate.target.is_gpu, tuple(notes))


def _as_swept(symptom: Symptom, swept: Swept) -> Symptom:
    """A kernel that contradicts itself is a symptom, and one that is wrong, whether or not the logits showed it."""
    if symptom.kind != UNSTABLE and any(row.disagreed for row in swept.rows.values()):
        return dataclasses.replace(symptom, kind=UNSTABLE)
    if symptom.kind == NONE and any(row.off for row in swept.rows.values()):
        return dataclasses.replace(symptom, kind=OFF_REFERENCE)
    return symptom


def _synced(gate: Gate, bare: Subject, level: str, with_sync: Rate) -> Synced:
    """The rate without syncs beside the one with them."""
    without = unstable_rate(gate, bare, with_sync.runs, keep_going=True)
    value = fisher(without.failures, without.runs, with_sync.failures, with_sync.runs)
    return Synced(level, without, with_sync, value)
