"""C, L and the source check: the GPU kernels that a model's shape needs, judged on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from driftgate.checks.verdict import Verdict
from driftgate.outcome import Outcome
from driftgate.races.rows import CODEGEN, LIMITS, RACES, Row, limit_rows, race_row, verdict

if TYPE_CHECKING:
    from driftgate.races.judge import Judged
    from driftgate.races.known import KnownFinding


def races(judged: Sequence[Judged], known: Collection[KnownFinding]) -> Verdict:
    """C: is every kernel free of races, divergent barriers, undefined and out-of-bounds accesses, but what is known?"""
    built = [one for one in judged if not one.refused]
    return _for_a_gate(RACES, [race_row(one, known) for one in built], len(judged) - len(built), judged)


def limits(judged: Sequence[Judged], known: Collection[KnownFinding]) -> Verdict:
    """L: does every kernel keep to the limits of the target, but where it is known not to?"""
    built = [one for one in judged if not one.refused]
    rows = [row for one in built for row in limit_rows(one, known)]
    return _for_a_gate(LIMITS, rows, len(judged) - len(built), judged)


def codegen(rows: Sequence[Row], judged: Sequence[Judged]) -> Verdict:
    """Does the generated source have the barriers of its kernel, and merge its order?"""
    built = [row for row in rows if row["verdict"] != "refused"]
    return _for_a_gate(CODEGEN, built, len(rows) - len(built), judged)


def _for_a_gate(check: str, rows: list[Row], refused: int, judged: Sequence[Judged]) -> Verdict:
    """A known row does not fail the check; the figures say for which target the kernels were lowered.

    Without a single row it is left to the gate to say how it is run again.
    """
    job = judged[0].job
    first = next((row["kernel"] for row in rows if row["verdict"] == "drift"), job.kernel)
    shown = (
        f"driftgate races {first} --target {job.spec.name} --head-dim {job.shape.head_dim} --heads {job.shape.heads} "
        f"--kv-heads {job.shape.kv_heads} --dtype {job.shape.dtype}{' --source' if check == CODEGEN else ''}"
    )
    found = verdict(check, rows, refused, False, shown)
    evidence = found.evidence if found.outcome is Outcome.DRIFT else {}
    message = f"{job.spec.name} kernels: {found.message}"
    return replace(found, message=message, figures={**found.figures, "judged_for": job.spec.name}, evidence=evidence)
