"""Replay and shadow every kernel on the inputs of real prefills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftgate import observe
from driftgate.isolation.observations import NONE, OFF_REFERENCE, UNSTABLE, Swept
from driftgate.job import plan_to_json
from driftgate.processes import run_jobs

if TYPE_CHECKING:
    from driftgate.gate import Gate
    from driftgate.subject import Subject

MOST = {NONE: 2, OFF_REFERENCE: 2}
"""Prefills of a sweep that finds nothing, by symptom; an unstable one may have to be waited for."""
MOST_UNSTABLE = 20


def sweep(gate: Gate, subject: Subject, kind: str, first_run: int) -> Swept:
    """Prefills until a kernel is caught, or as many as ``kind`` of symptom is worth."""
    swept = Swept()

    def on_event(_: int, message: dict[str, Any]) -> bool:
        if message["event"] == "ready":
            swept.kernels = tuple(message["kernels"])
        elif message["event"] == "sweep":
            swept.add(message)
            gate.progress(swept.prefills, 0)
        if kind == UNSTABLE:
            return not any(row.disagreed for row in swept.rows.values())
        return not swept.suspects

    task = {
        "kind": "sweep",
        "plan": plan_to_json(gate.plan),
        "replays": gate.settings.replays,
        "first": first_run,
        "runs": MOST.get(kind, MOST_UNSTABLE),
    }
    run_jobs([subject.job(task, observe.cores())], on_event, subject.timeout, 1)
    return swept


def divergence(gate: Gate, subject: Subject, first_run: int, prefills: int) -> dict[str, Any] | None:
    """The first call in which two prefills differ, if two of ``prefills`` do."""
    found: list[dict[str, Any]] = []

    def on_event(_: int, message: dict[str, Any]) -> bool:
        if message["event"] == "digested" and message["diverged"]:
            found.append({**message["diverged"], "run": message["run"]})
        return True

    task = {"kind": "divergence", "plan": plan_to_json(gate.plan), "first": first_run, "runs": prefills}
    run_jobs([subject.job(task, observe.cores())], on_event, subject.timeout, 1)
    return found[0] if found else None
