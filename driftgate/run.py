"""One check on one gate: observe, then judge."""

from __future__ import annotations

from driftgate import observe
from driftgate.checks import chunking as chunking_check
from driftgate.checks import isolate as isolate_check
from driftgate.checks import kernels as kernels_check
from driftgate.checks import reference as reference_check
from driftgate.checks import repeat as repeat_check
from driftgate.checks import sentinel as sentinel_check
from driftgate.checks.verdict import Verdict
from driftgate.gate import Gate
from driftgate.isolation import flow
from driftgate.options import KERNEL_CHECKS

SENTINEL_RUNS = 10
"""Prefills under the sentinel: what strikes one kernel call in ten is seen, and it takes seconds."""


def repeat(gate: Gate) -> Verdict:
    """R: N identical prefills in blocks of fresh processes."""
    settings = gate.settings
    observed = observe.repeats(
        gate.subject, gate.plan, settings.runs, settings.blocks, settings.keep_going, gate.progress
    )
    return repeat_check.judge(observed, gate.plan, gate.model.shape)


def chunking(gate: Gate) -> Verdict:
    """K: the plan's prompt in other chunks."""
    plans = chunking_check.chunkings(gate.plan, gate.model.shape.window)
    observed = observe.positions(gate.subject, plans)
    return chunking_check.judge(observed, gate.noise_floor, gate.model.shape)


def reference(gate: Gate) -> Verdict:
    """H: one prefill of the plan against HuggingFace."""
    (observed,) = observe.positions(gate.subject, [gate.plan])
    expected = gate.plan.merge_calls(gate.model.shape.attention_layers)
    return reference_check.judge(observed, *gate.references, expected)


def sentinel(gate: Gate) -> Verdict:
    """N: a few prefills with every kernel and VM call watched."""
    observed = observe.watched(gate.subject, gate.plan, min(SENTINEL_RUNS, gate.settings.runs))
    return sentinel_check.judge(observed)


def isolate(gate: Gate) -> Verdict:
    """S: reproduce the symptom, replay and shadow every kernel, confirm by swap."""
    return isolate_check.judge(flow.isolate(gate))


def races(gate: Gate) -> Verdict:
    """C: every GPU kernel of the model's shape, access by access."""
    return _with_known(gate, kernels_check.races(gate.kernels, gate.known_kernels()))


def limits(gate: Gate) -> Verdict:
    """L: the same kernels against the limits of their target."""
    return _with_known(gate, kernels_check.limits(gate.kernels, gate.known_kernels()))


def codegen(gate: Gate) -> Verdict:
    """The source that TVM generates for the same kernels."""
    from driftgate.races.source.emitted import codegen_rows

    job = gate.kernels[0].job
    names = [judged.job.kernel for judged in gate.kernels]
    rows = codegen_rows(job.spec, [job.shape], names, gate.known_kernels(), formal=False)
    return _with_known(gate, kernels_check.codegen(rows, gate.kernels))


def _with_known(gate: Gate, verdict: Verdict) -> Verdict:
    """``verdict``, the known defects of its rows written down with those of the kernel checks before it."""
    from driftgate.races.rows import known_seen

    judged = [v for v in gate.result.verdicts if v.check in KERNEL_CHECKS]
    for known in known_seen([*judged, verdict]):
        gate.record_known(known)
    return verdict
