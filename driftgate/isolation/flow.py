"""One isolation, from symptom to kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from driftgate.isolation.confirm import confirm, reduce
from driftgate.isolation.observations import NONE, OFF_REFERENCE, UNSTABLE, Findings, Swept, Symptom, Synced
from driftgate.isolation.sweep import divergence, sweep
from driftgate.isolation.symptom import reproduce, unstable_rate
from driftgate.kernels.vm_calls import plain_library
from driftgate.outcome import DriftgateError
from driftgate.stats import fisher

if TYPE_CHECKING:
    from driftgate.gate import Gate
    from driftgate.subject import Subject

Found = TypeVar("Found")
DIVERGENCE_PREFILLS = 60
SYNC_RUNS = 40
SWEEP_RUN = 1_000_000
"""Number of a sweep's first prefill: a planted fault draws other numbers there than in the identical prefills."""


def isolate(gate: Gate) -> Findings:
    """Reproduce the symptom, sweep every kernel, confirm what was caught by swap.

    What fails after the sweep is a note: a kernel that was caught stays caught.
    """
    notes: list[str] = []

    def stage(name: str, action: Callable[[], Found]) -> Found | None:
        gate.stage(name)
        try:
            return action()
        except DriftgateError as error:
            notes.append(f"{name}: {error}")
            return None

    gate.stage("symptom")
    # VM functions are known by name, and a library from elsewhere may call other functions by these names.
    plain = None if gate.settings.library else plain_library(gate.model, gate.target, gate.dtype)
    subject = dataclasses.replace(gate.subject, plain=plain)
    symptom = reproduce(gate, subject)
    gate.stage("sweep")
    swept = sweep(gate, subject, symptom.kind, SWEEP_RUN)
    symptom = _as_swept(symptom, swept)
    culprits, confirmation = blamed(symptom, swept), None
    if culprits:
        confirmation = stage("swap", lambda: confirm(gate, subject, symptom, swept, culprits))
    elif symptom.kind != NONE and (reduced := stage("delta debugging", lambda: reduce(gate, subject, symptom, swept))):
        culprits, confirmation, note = reduced
        notes.append(note)
    found, synced = None, None
    if symptom.kind == UNSTABLE:
        if symptom.differing.failures:
            found = stage("first divergence", lambda: divergence(gate, subject, 2 * SWEEP_RUN, DIVERGENCE_PREFILLS))
        if gate.settings.sync != "none":
            synced = stage("sync", lambda: _synced(gate, subject, gate.settings.sync))
    return Findings(symptom, swept, culprits, confirmation, found, synced, gate.target.is_gpu, tuple(notes))


def blamed(symptom: Symptom, swept: Swept) -> tuple[str, ...]:
    """Who was caught doing what the symptom is: a kernel that is wrong but repeats itself makes nothing unstable."""
    if symptom.kind == UNSTABLE and any(row.disagreed for row in swept.rows.values()):
        return tuple(name for name in swept.suspects if swept.rows[name].disagreed)
    return swept.suspects


def _as_swept(symptom: Symptom, swept: Swept) -> Symptom:
    """A kernel that contradicts itself is a symptom, and one that is wrong, whether or not the logits showed it."""
    if symptom.kind != UNSTABLE and any(row.disagreed for row in swept.rows.values()):
        return dataclasses.replace(symptom, kind=UNSTABLE)
    if symptom.kind == NONE and any(row.off for row in swept.rows.values()):
        return dataclasses.replace(symptom, kind=OFF_REFERENCE)
    return symptom


def _synced(gate: Gate, subject: Subject, level: str) -> Synced:
    """The rate without syncs beside the one with them, each over as many prefills."""
    runs = min(SYNC_RUNS, gate.settings.runs)
    without = unstable_rate(gate, subject, runs, keep_going=True)
    rate = unstable_rate(gate, dataclasses.replace(subject, sync=level), runs, keep_going=True)
    return Synced(level, without, rate, fisher(without.failures, without.runs, rate.failures, rate.runs))
