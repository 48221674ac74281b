"""A fresh process that runs prefills: ``python -m driftgate.worker JOB.json``, one JSON line a finding on stdout."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driftgate.job import NO_RUN, Job, plan_from_json
from driftgate.outcome import DriftgateError, Outcome


def main(path: str) -> int:
    job = Job.read(Path(path))
    sys.path[:0] = [folder for folder in job.sys_path if folder not in sys.path]
    if job.target["name"] == "llvm":
        # The runtime alone loads in a fraction of the compiler's time and memory, and there is a process per block.
        os.environ["TVM_USE_RUNTIME_LIB"] = "1"
    os.environ["TVM_NUM_THREADS"] = str(job.threads)
    try:
        TASKS[job.task["kind"]](job)
    except DriftgateError as error:
        emit("error", outcome=error.outcome.value, message=str(error))
    except BrokenPipeError:
        # The parent is gone and nobody reads: stop working.
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - whatever a library under test raises is the finding
        from driftgate.runtime import first_line

        emit("error", outcome=Outcome.INFRA.value, message=f"{type(error).__name__}: {first_line(error)}")
    return 0


def emit(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def repeat(job: Job) -> None:
    """Run one plan many times; digest every chunk, keep the first run and the first that differs from it."""
    import numpy as np

    from driftgate.digest import digest
    from driftgate.seam import MergeCounter, Seam

    task, seam, counter = job.task, Seam(), MergeCounter()
    seam.wrap({"merge"}, counter)
    session, fault = _open(job, seam)
    plan = plan_from_json(task["plan"])
    first: list[list[str]] | None = None
    differing = False
    emit("ready")
    for run in range(task["first"], task["first"] + task["runs"]):
        fault.begin_run(run)
        arrays = []
        for chunk in session.prefill(plan):
            arrays.append((chunk.hidden.numpy() if chunk.hidden is not None else np.empty(0, np.float32), chunk.logits))
        digests = [[digest(hidden), digest(logits)] for hidden, logits in arrays]
        if first is None or (digests != first and not differing):
            differing = first is not None
            file = Path(task["folder"], f"run{run}.npz")
            np.savez(file, **{f"{kind}{i}": a for i, pair in enumerate(arrays) for kind, a in zip(("hidden", "logits"), pair, strict=True)})
        first = first or digests
        calls, rows = counter.take()
        emit("run", run=run, digests=digests, merge_calls=calls, rows_merged=rows)
        if differing and not task["keep_going"]:
            break
    emit("done", fault_hits=fault.hits)


def logits(job: Job) -> None:
    """Run each plan once and write the logits at every position to its file."""
    import numpy as np

    from driftgate.seam import MergeCounter, Seam

    seam, counter = Seam(), MergeCounter()
    seam.wrap({"merge"}, counter)
    session, fault = _open(job, seam)
    for number, entry in enumerate(job.task["plans"]):
        plan = plan_from_json(entry["plan"])
        fault.begin_run(NO_RUN - number)
        positions = np.concatenate([session.all_logits(chunk) for chunk in session.prefill(plan)])
        np.save(entry["file"], positions)
        calls, rows = counter.take()
        emit("logits", plan=plan.name, positions=len(positions), merge_calls=calls, rows_merged=rows)
    emit("done", fault_hits=fault.hits)


def sentinel(job: Job) -> None:
    """Run a plan a few times with every kernel and VM call watched for values that are not finite."""
    from driftgate.seam import MergeCounter, Seam
    from driftgate.watch import Watch

    seam, counter, watch = Seam(), MergeCounter(), Watch()
    seam.wrap({"merge"}, counter)
    session, fault = _open(job, seam, watch)
    plan = plan_from_json(job.task["plan"])
    session.vm.set_instrument(watch.instrument)
    for run in range(job.task["runs"]):
        fault.begin_run(NO_RUN - run)
        watch.begin_run(run)
        for number, chunk in enumerate(session.prefill(plan)):
            watch.end_chunk(number, chunk.logits)
        calls, rows = counter.take()
        emit("watched", run=run, merge_calls=calls, rows_merged=rows)
    emit("done", fault_hits=fault.hits, watch=watch.report())


TASKS: dict[str, Callable[[Job], None]] = {"repeat": repeat, "logits": logits, "sentinel": sentinel}


class _NoFault:
    hits = 0

    def attach(self, seam: Any) -> None:
        """Nothing is planted."""

    def begin_run(self, run: int) -> None:
        """Nothing to draw."""


def _open(job: Job, seam: Any, watch: Any = None) -> tuple[Any, Any]:
    """The session, with swaps innermost, then the planted fault, then the watch, which must see what the fault did."""
    import tvm

    from driftgate.runtime import open_session
    from driftgate.target import TargetSpec, open_device

    device = tvm.cpu() if job.target["name"] == "llvm" else open_device(TargetSpec(**job.target))
    seam.swaps = {
        name: tvm.runtime.load_module(swap["library"])[swap["function"]] for name, swap in job.swaps.items()
    }
    fault: Any = _NoFault()
    if job.fault is not None:
        arguments = dict(job.fault)
        module, _, function = arguments.pop("entry").partition(":")
        fault = getattr(importlib.import_module(module), function)(**arguments)
        fault.attach(seam)
    if watch is not None:
        watch.attach(seam)
    session = open_session(Path(job.library), Path(job.params), device, job.dtype, job.capacity, seam)
    return session, fault


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
