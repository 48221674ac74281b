"""What check repeat adds to a bare loop of VM calls: the counted seam, the digests, the message a run."""

from __future__ import annotations

import os
import statistics

os.environ.setdefault("TVM_NUM_THREADS", "1")  # a block of check repeat has one thread

import numpy as np

from benchmarks import subjects
from benchmarks.timing import interleaved, ratio
from driftgate import worker
from driftgate.plan import Plan, split
from driftgate.runtime import Session
from driftgate.seam import MergeCounter, Seam

ROUNDS = 60


def bare(session: Session, plan: Plan) -> None:
    """The VM calls of one chunked prefill and nothing else."""
    import tvm
    from tvm_ffi import Shape

    call, vm, cache, params = tvm.get_global_func, session.vm, session.cache, session.params
    call("vm.builtin.kv_state_clear")(cache)
    call("vm.builtin.kv_state_add_sequence")(cache, 0)
    for start, count in zip(plan.starts, plan.chunks, strict=True):
        ids = tvm.runtime.tensor(np.array(plan.ids[start : start + count], np.int32))
        embedded = vm["embed"](ids, params)
        embedded = call("vm.builtin.reshape")(embedded, Shape([1, *embedded.shape]))
        call("vm.builtin.kv_state_begin_forward")(cache, Shape([0]), Shape([count]))
        hidden = vm["prefill_to_last_hidden_states"](embedded, cache, params)[0]
        last = tvm.runtime.tensor(np.ascontiguousarray(hidden.numpy()[:, -1:]))
        vm["get_logits"](last, params).numpy()
        call("vm.builtin.kv_state_end_forward")(cache)


def main() -> None:
    made = subjects.subject("gemma4-tiny")
    seam, counter = Seam(), MergeCounter()
    counter.attach(seam)
    plain, counted = subjects.session(made), subjects.session(made, seam)
    plan = Plan("default", made.model.prompt(48, 0), split(48, 16))

    worker._channel = open(os.devnull, "w")  # noqa: SIM115, PTH123 - messages are written, and nobody needs them

    def repeat() -> None:
        _, digests = worker.digested(counted, plan)
        calls, rows = counter.take()
        worker.emit("run", run=0, digests=digests, merge_calls=calls, rows_merged=rows, fault_hits=0)

    ours, theirs = interleaved([repeat, lambda: bare(plain, plan)], ROUNDS)
    low, middle, high = ratio(ours, theirs)
    print(
        f"one run of repeat {statistics.median(ours) * 1e3:.1f} ms, "
        f"bare VM calls {statistics.median(theirs) * 1e3:.1f} ms"
    )
    print(f"ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f}); goal: at most 1.03")


if __name__ == "__main__":
    main()
