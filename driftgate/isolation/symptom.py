"""Reproduce what is wrong, and measure how often."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from driftgate import observe
from driftgate.checks.band import band
from driftgate.isolation.observations import NONE, OFF_REFERENCE, UNSTABLE, Rate, Swapped, Symptom, odd
from driftgate.metrics import max_abs, unusable
from driftgate.outcome import InfraError

if TYPE_CHECKING:
    from driftgate.gate import Gate
    from driftgate.subject import Subject

STABLE_RUNS = 30
"""Prefills that show a wrong result to be stable; replays look for rarer instability."""


def reproduce(gate: Gate, subject: Subject) -> Symptom:
    """One prefill against HuggingFace, then identical ones until two differ."""
    limit = band(gate.noise_floor)
    distance = off_by(gate, subject)
    if distance is not None and distance <= limit:
        rate = unstable_rate(gate, subject, gate.settings.runs, keep_going=False)
        return Symptom(UNSTABLE if rate.failures else NONE, rate, distance, limit, rate.runs + 1)
    rate = unstable_rate(gate, subject, min(gate.settings.runs, STABLE_RUNS), keep_going=False)
    # An odd prefill among many that repeat is no stable result either.
    again = distance if rate.failures else off_by(gate, subject)
    if not rate.failures and again != distance:
        rate = Rate(1, 2)
    return Symptom(UNSTABLE if rate.failures else OFF_REFERENCE, rate, distance, limit, rate.runs + 2)


def off_by(gate: Gate, subject: Subject) -> float | None:
    """Largest distance of one prefill's logits to HuggingFace in float64; None where they are not finite."""
    (observed,) = observe.positions(subject, [gate.plan])
    return _distance(gate, observed)


def _distance(gate: Gate, observed: observe.Positions) -> float | None:
    logits, exact = observed.logits(), gate.references[0]
    if len(logits) == len(observed.plan.chunks):
        # A library without hidden states gives the logits of each chunk's last token.
        exact = exact[[start + n - 1 for start, n in zip(observed.plan.starts, observed.plan.chunks, strict=True)]]
    if logits.shape != exact.shape:
        raise InfraError(f"the library gives logits {list(logits.shape)}, but the reference has {list(exact.shape)}")
    return None if unusable(logits, "logits") else max_abs(logits, exact)[0]


def unstable_rate(gate: Gate, subject: Subject, runs: int, keep_going: bool) -> Rate:
    """Identical prefills, and how many differ from the most common result."""
    observed = observe.repeats(subject, gate.plan, runs, gate.settings.blocks, keep_going, gate.progress)
    return Rate(odd([run.digests for run in observed.runs]), len(observed.runs))


def with_swaps(
    gate: Gate,
    subject: Subject,
    swaps: Mapping[str, Mapping[str, Any]],
    symptom: Symptom,
    runs: int,
    keep_going: bool = True,
) -> Swapped:
    """The symptom once more, with ``swaps`` in place of kernels."""
    changed = dataclasses.replace(subject, swaps={**subject.swaps, **swaps})
    hows = ", ".join(sorted({str(how["how"]) for how in swaps.values()}))
    (observed,) = observe.positions(changed, [gate.plan])
    distance = _distance(gate, observed)
    if symptom.kind == OFF_REFERENCE:
        rate = Rate(int(distance is None or distance > symptom.band), 1)
    else:
        rate = unstable_rate(gate, changed, runs, keep_going)
    return Swapped(tuple(swaps), hows, rate, distance, observed.swap_not_finite)
