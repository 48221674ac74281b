"""What isolation asks of a fresh process (see ``driftgate.worker``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from driftgate.calls import POSITIONS, VM, Call, Calls, vm_name
from driftgate.job import NO_RUN, Job, plan_from_json
from driftgate.kernels import replacements, vm_calls
from driftgate.kernels.references import references
from driftgate.modes.count import Count
from driftgate.modes.digests import Digested, Digests, first_divergence
from driftgate.modes.replay import Replay, Results
from driftgate.modes.shadow import Shadow
from driftgate.outcome import InfraError
from driftgate.tensors import copied, is_tensor, restore, view


def sweep(job: Job) -> None:
    """Prefills with every call replayed and shadowed; one message a prefill, with what was found by kernel."""
    from driftgate import worker

    task, plan = job.task, plan_from_json(job.task["plan"])
    plain = vm_calls.functions(job.plain)
    made: dict[str, Callable[..., None]] = {}

    def reference_for(name: str) -> Callable[..., Any] | None:
        if name == vm_name(POSITIONS):
            return lambda told: restore(told, calls.positions())
        return plain(name) if name.startswith(VM) else made.get(name)

    count, replay, shadow = Count(), Replay(task["replays"]), Shadow(reference_for)
    calls = Calls([count, replay, shadow], vm=True)
    session, fault = worker.opened(job, calls=calls)
    seam = worker.opened_seams[-1]
    assert seam.config is not None
    made |= references(seam.config)
    worker.emit("ready", kernels=sorted(seam.kernels))
    for run in range(task["first"], task["first"] + task["runs"]):
        began = time.monotonic()
        fault.begin_run(run)
        calls.run = run
        for _ in session.prefill(plan):
            worker.emit("alive")
        found = {name: {"calls": n} for name, n in count.calls.items()}
        count.calls.clear()
        for name, replayed in replay.take().items():
            found[name]["replayed"] = asdict(replayed)  # type: ignore[assignment]
        for name, shadowed in shadow.take().items():
            found[name]["shadowed"] = asdict(shadowed)  # type: ignore[assignment]
        worker.emit("sweep", run=run, kernels=found, without=sorted(shadow.without), seconds=time.monotonic() - began)
    worker.emit("done", fault_hits=fault.hits)


def divergence(job: Job) -> None:
    """Prefills with every call digested, until one differs from the first; where, and whether its inputs did."""
    from driftgate import worker

    task, plan, digests = job.task, plan_from_json(job.task["plan"]), Digests(inputs=True)
    calls = Calls([digests], vm=True)
    session, fault = worker.opened(job, calls=calls)
    worker.emit("ready")
    first: list[Digested] | None = None
    for run in range(task["first"], task["first"] + task["runs"]):
        fault.begin_run(run)
        calls.run = run
        for _ in session.prefill(plan):
            pass
        stream = digests.take()
        found = first_divergence(first, stream) if first is not None else None
        first = first or stream
        worker.emit("digested", run=run, calls=len(stream), diverged=found)
        if found:
            break
    worker.emit("done", fault_hits=fault.hits)


RECORDED = 20
"""Calls whose inputs are kept."""
SECONDS, HEARTBEAT = 240.0, 5.0
"""Longest that one kernel is replayed on recorded inputs, and between two signs of life, in seconds."""


class _Recorder:
    """Keeps what one kernel was given in one prefill."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_weight: Callable[[Any], bool] = lambda tensor: False
        self.given: list[tuple[Call, dict[int, Any]]] = []

    def before(self, call: Call) -> None:
        if call.name == self.name and len(self.given) < RECORDED:
            # The runtime uses its buffers again, so what they hold has to be kept; weights stay where they are.
            kept = {i: arg for i, arg in enumerate(call.args) if is_tensor(arg) and not self.is_weight(arg)}
            self.given.append((call, {i: copied(arg) for i, arg in kept.items()}))

    def after(self, call: Call) -> None:
        """Nothing to do."""


def replays(job: Job) -> None:
    """Run one kernel and its replacement on the inputs that it was given in one prefill, until enough disagreed."""
    from driftgate import worker

    task, plan = job.task, plan_from_json(job.task["plan"])
    recorder = _Recorder(task["kernel"])
    calls = Calls([recorder], vm=task["kernel"].startswith(VM))
    session, fault = worker.opened(job, calls=calls)
    config = worker.opened_seams[-1].config
    assert config is not None
    weights = {tensor.data_ptr() for tensor in session.params}
    recorder.is_weight = lambda tensor: tensor.data_ptr() in weights
    worker.emit("ready")
    fault.begin_run(NO_RUN)
    for _ in session.prefill(plan):
        pass
    first = recorder.given[0][0]
    if task["kernel"].startswith(VM):
        replacement = vm_calls.functions(job.plain)(task["kernel"])
    else:
        made = replacements.swap(task["kernel"], task["how"], worker.swap_not_finite)
        replacement = made(config, first.kernel)
    if replacement is None:
        raise InfraError(f"{task['kernel']} has no replacement to compare replays with")
    library = _again(recorder.given, first.kernel, task["most"], task["enough"])
    worker.emit("replayed", who="library", replays=library[0], disagreed=library[1])
    replaced = _again(recorder.given, replacement, library[0], library[0])
    worker.emit("replayed", who="replacement", replays=replaced[0], disagreed=replaced[1])
    worker.emit("done", fault_hits=fault.hits)


def _again(
    given: list[tuple[Call, dict[int, Any]]], kernel: Callable[..., Any], most: int, enough: int
) -> tuple[int, int]:
    """Run ``kernel`` on the recorded inputs in turn, ``most`` times, or until ``enough`` disagreed, or time is up.

    Returns how many times, and how many of them did not give the most common bytes of their input.
    """
    from driftgate import worker

    results = [Results() for _ in given]
    done = odd = 0
    began = heard = time.monotonic()
    while done < most and odd < enough and time.monotonic() - began < SECONDS:
        at = done % len(given)
        call, inputs = given[at]
        for i, values in inputs.items():
            restore(call.args[i], values)
        kernel(*call.args)
        results[at].add({i: view(call.args[i]) for i in call.written})
        done += 1
        odd = sum(result.odd for result in results)
        if time.monotonic() - heard > HEARTBEAT:
            heard = time.monotonic()
            worker.emit("alive")
    return done, odd
