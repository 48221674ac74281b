"""What the seam costs: bare, switched off, counting, digesting; on cache kernels alone and with every VM call.

Also the width of the bands: how far a sound kernel is from its reference, and how long a full shadow pass takes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "1")  # a block of check repeat has one thread

import dataclasses

from benchmarks import subjects
from benchmarks.timing import interleaved, ratio
from driftgate.calls import Calls, Mode
from driftgate.isolation.observations import Swept
from driftgate.job import plan_to_json
from driftgate.kernels.vm_calls import plain_library
from driftgate.modes.count import Count
from driftgate.modes.digests import Digests
from driftgate.plan import Plan, split
from driftgate.processes import run_jobs
from driftgate.runtime import Session
from driftgate.seam import Seam
from driftgate.subject import Subject

ROUNDS = 40
GOALS = {
    "off": "no measurable cost",
    "count, cache kernels": "at most 1.03",
    "digest, cache kernels": "at most 1.10",
    "count, every VM call": "at most 1.2",
    "digest, every VM call": "at most 2",
}


def session(made: Subject, modes: list[Mode], vm: bool) -> Session:
    seam, calls = Seam(), Calls(modes, vm)
    calls.attach(seam)
    opened = subjects.session(made, seam)
    opened.calls = calls
    calls.instrument_of(opened.vm)
    return opened


def costs(made: Subject, plan: Plan) -> None:
    digests = Digests(), Digests()
    sessions = {
        "bare": subjects.session(made),
        "off": session(made, [], False),
        "count, cache kernels": session(made, [Count()], False),
        "digest, cache kernels": session(made, [digests[0]], False),
        "count, every VM call": session(made, [Count()], True),
        "digest, every VM call": session(made, [digests[1]], True),
    }

    def prefill(opened: Session) -> None:
        for _ in opened.prefill(plan):
            pass
        for mode in digests:
            mode.take()

    bare, *others = interleaved([lambda s=s: prefill(s) for s in sessions.values()], ROUNDS)  # type: ignore[misc]
    print(f"one prefill, bare: {statistics.median(bare) * 1e3:.1f} ms; {ROUNDS} interleaved rounds")
    for name, seconds in zip(GOALS, others, strict=True):
        low, middle, high = ratio(seconds, bare)
        print(f"{name:22} {middle:.3f} (quartiles {low:.3f} to {high:.3f}); goal: {GOALS[name]}")


def bands(made: Subject, plan: Plan) -> None:
    swept = Swept()

    def on_event(_: int, message: dict[str, Any]) -> bool:
        if message["event"] == "sweep":
            swept.add(message)
        return True

    made = dataclasses.replace(made, plain=plain_library(made.model, made.target, made.dtype))
    task = {"kind": "sweep", "plan": plan_to_json(plan), "replays": 1, "first": 0, "runs": 1}
    began = time.perf_counter()
    run_jobs([made.job(task, 2)], on_event, 600.0, 1)
    worst = max(swept.rows.values(), key=lambda row: row.worst_in_bands)
    kernels = [row for row in swept.rows.values() if row.compared]
    print(
        f"shadow pass of {len(kernels)} kernels, {sum(row.compared for row in kernels)} calls: "
        f"{time.perf_counter() - began:.1f} s with its process (prefill {swept.seconds:.1f} s); goal: at most 30 s"
    )
    print(f"furthest from its reference: {worst.kernel}, {worst.worst_in_bands:.3f} of its band")


def main() -> None:
    made = subjects.subject("gemma4-tiny")
    plan = Plan("default", made.model.prompt(48, 0), split(48, 16))
    costs(made, plan)
    bands(dataclasses.replace(made, work=Path(tempfile.mkdtemp(prefix="driftgate-bench-"))), plan)


if __name__ == "__main__":
    main()
