"""A fresh process that runs prefills: ``python -m driftgate.worker JOB.json``, one JSON line a finding on stdout."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftgate.job import NO_RUN, Job, plan_from_json
from driftgate.outcome import DriftgateError, Outcome, UsageError

if TYPE_CHECKING:
    import numpy as np

    from driftgate.calls import Calls
    from driftgate.plan import Plan
    from driftgate.runtime import Session
    from driftgate.seam import Seam


def main(path: str) -> int:
    """Perform the task of the job in ``path``; what goes wrong is a message too."""
    _keep_messages_apart()
    # tvm-ffi imports torch wherever it is installed, to exchange tensors with it: no process here does, and it would
    # cost each two seconds and 200 MiB.
    sys.modules["torch"] = None  # type: ignore[assignment]
    job = Job.read(Path(path))
    sys.path[:0] = [folder for folder in job.sys_path if folder not in sys.path]
    if job.target["name"] == "llvm":
        # The runtime alone loads in a fraction of the compiler's time and memory, and there is a process per block.
        os.environ["TVM_USE_RUNTIME_LIB"] = "1"
    os.environ["TVM_NUM_THREADS"] = str(job.threads)
    # A kernel under test may draw from C's rand: each process its own numbers, and the same when it is asked again.
    ctypes.CDLL(None).srand(job.seed)
    try:
        tasks()[job.task["kind"]](job)
    except DriftgateError as error:
        emit("error", outcome=error.outcome.value, message=str(error))
    except BrokenPipeError:
        # The parent is gone and nobody reads: stop working.
        os._exit(1)
    except Exception as error:  # whatever a library under test raises is the finding
        if opened_seams and (ours := opened_seams[-1].error) is not None:
            # What we raised inside the runtime has lost its class on the way out of it.
            emit("error", outcome=ours.outcome.value, message=str(ours))
            return 0
        from driftgate.runtime import first_line

        emit("error", outcome=Outcome.INFRA.value, message=f"{type(error).__name__}: {first_line(error)}")
    return 0


def tasks() -> dict[str, Callable[[Job], None]]:
    """What a process can be asked for, by ``kind``."""
    from driftgate.isolation import tasks as isolation
    from driftgate.reach import tasks as reach

    return {
        "repeat": repeat,
        "logits": logits,
        "sentinel": sentinel,
        "sweep": isolation.sweep,
        "divergence": isolation.divergence,
        "replays": isolation.replays,
        "edges": reach.edges,
        "histories": reach.histories,
        "poison": reach.poison,
    }


def emit(event: str, **fields: Any) -> None:
    """One message to whoever started this process."""
    _channel.write(json.dumps({"event": event, **fields}) + "\n")
    _channel.flush()


# A descriptor of its own, which leads where stdout leads now.
_channel = os.fdopen(os.dup(1), "w")


def _keep_messages_apart() -> None:
    """From here on what a library prints to stdout, from C too, goes to stderr, and messages alone to the channel."""
    os.dup2(2, 1)


def repeat(job: Job) -> None:
    """Run one plan many times; digest every chunk, keep the first run and the first that differs from it."""
    import numpy as np

    from driftgate.seam import MergeCounter

    task, counter = job.task, MergeCounter()
    session, fault = opened(job, counter.attach)
    plan = plan_from_json(task["plan"])
    first: list[list[str]] | None = None
    differing = False
    emit("ready")
    for run in range(task["first"], task["first"] + task["runs"]):
        fault.begin_run(run)
        arrays, digests = digested(session, plan)
        if first is None or (digests != first and not differing):
            differing = first is not None
            np.savez(Path(task["folder"], f"run{run}.npz"), **arrays)  # type: ignore[arg-type]
        first = first or digests
        calls, rows = counter.take()
        emit("run", run=run, digests=digests, merge_calls=calls, rows_merged=rows, fault_hits=fault.hits)
        if differing and not task["keep_going"]:
            break
    emit("done")


def digested(session: Session, plan: Plan) -> tuple[dict[str, np.ndarray], list[list[str]]]:
    """One prefill: ``hidden0``, ``logits0``, ... by chunk, and the digests of both, chunk by chunk."""
    import numpy as np

    from driftgate.digest import digest

    arrays: dict[str, np.ndarray] = {}
    digests = []
    for i, chunk in enumerate(session.prefill(plan)):
        hidden = chunk.hidden.numpy() if chunk.hidden is not None else np.empty(0, np.float32)
        arrays |= {f"hidden{i}": hidden, f"logits{i}": chunk.logits}
        digests.append([digest(hidden), digest(chunk.logits)])
    return arrays, digests


def logits(job: Job) -> None:
    """Run each plan once and write the logits at every position to its file."""
    import numpy as np

    from driftgate.seam import MergeCounter

    counter = MergeCounter()
    session, fault = opened(job, counter.attach)
    for number, entry in enumerate(job.task["plans"]):
        plan = plan_from_json(entry["plan"])
        fault.begin_run(NO_RUN - number)
        positions = np.concatenate([session.all_logits(chunk) for chunk in session.prefill(plan)])
        np.save(entry["file"], positions)
        calls, rows = counter.take()
        emit("logits", plan=plan.name, positions=len(positions), merge_calls=calls, rows_merged=rows)
    emit("done", fault_hits=fault.hits, swap_not_finite=dict(swap_not_finite))


def sentinel(job: Job) -> None:
    """Run a plan a few times with every kernel and VM call watched for values that are not finite."""
    from driftgate.seam import MergeCounter
    from driftgate.watch import Watch

    counter, watch = MergeCounter(), Watch()
    session, fault = opened(job, counter.attach, watch.attach)
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


class _NoFault:
    hits = 0

    def attach(self, seam: Seam) -> None:
        """Nothing is planted."""

    def begin_run(self, run: int) -> None:
        """Nothing to draw."""


def opened(job: Job, *attach: Callable[[Seam], None], calls: Calls | None = None) -> tuple[Session, Any]:
    """The session and its fault. The fault is innermost, then swaps; observers attach last and see what both did."""
    import tvm

    from driftgate.calls import POSITIONS, VM, Calls, vm_name
    from driftgate.kernels import replacements, vm_calls
    from driftgate.modes.sync import Sync
    from driftgate.runtime import open_session
    from driftgate.seam import Seam
    from driftgate.target import TargetSpec, open_device

    device = tvm.cpu() if job.target["name"] == "llvm" else open_device(TargetSpec(**job.target))
    calls = calls or Calls([])
    plain = vm_calls.functions(job.plain)
    kernels = {name: how for name, how in job.swaps.items() if not name.startswith(VM)}
    seam = Seam({name: replacements.swap(name, how, swap_not_finite) for name, how in kernels.items()})
    seam.exchange_trees, seam.softcap = job.exchange_trees, job.softcap
    for name in set(job.swaps) - set(kernels) - {vm_name(POSITIONS)}:
        if (function := plain(name)) is None:
            raise UsageError(f"the library has no plain function for {name}")
        calls.replacements[name] = function
    if job.sync != "none":
        calls.modes = [Sync(device, job.sync == "kernel"), *calls.modes]
        calls.vm = True
    fault = _planted(job)
    fault.attach(seam)
    if vm_name(POSITIONS) in job.swaps:
        seam.builtins.setdefault(POSITIONS, []).append(lambda name, kernel: calls.right_positions(kernel))
    for observer in (*attach, calls.attach):
        observer(seam)
    paths = Path(job.library), Path(job.params)
    opened_seams.append(seam)
    session = open_session(*paths, device, job.dtype, job.capacity, seam, job.whole_window, job.sequences)
    session.calls = calls
    calls.instrument_of(session.vm)
    return session, fault


opened_seams: list[Seam] = []
"""The seam of this process, once there is one: tasks ask it for the cache's figures, and ``main`` for its error."""
swap_not_finite: Counter[str] = Counter()
"""Calls of swapped kernels that were given a NaN or an infinity."""


def _planted(job: Job) -> Any:
    if job.fault is None:
        return _NoFault()
    arguments = dict(job.fault)
    module, _, function = arguments.pop("entry").partition(":")
    return getattr(importlib.import_module(module), function)(**arguments)


if __name__ == "__main__":
    # The module by its name, not this second copy of it: the tasks of other rooms speak through it too.
    from driftgate import worker  # noqa: PLW0406

    status = worker.main(sys.argv[1])
    worker._channel.flush()
    sys.stderr.flush()
    # On a busy machine TVM's pool of threads takes seconds to end; all that was to be said is said.
    os._exit(status)
