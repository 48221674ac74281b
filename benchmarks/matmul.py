"""Speed of compiled linear layers, as a ratio to torch in the same run.

python -m benchmarks.matmul [--threads 1] [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHAPES: dict[str, list[tuple[int, int]]] = {
    "gemma3-270m": [(640, 1024), (640, 256), (1024, 640), (640, 2048), (2048, 640), (640, 262144)],
    "gemma4-tiny": [
        (128, 2048), (128, 4096), (2048, 128), (4096, 128), (128, 256), (128, 512),
        (256, 128), (512, 128), (128, 32), (32, 128), (128, 320),
    ],
}  # fmt: skip
"""(K, N) of every linear layer, by model."""

ROWS = (16, 64, 128, 256)
QUICK_ROWS = (16, 256)
ROWS_OF_THE_HEAD = (1, 16)
"""The output layer sees one position of a chunk, and nobody asks it for hundreds."""
VOCABULARY = 262144

BATCH_S = 0.002
"""How long one timed batch of calls should last. Batches of both sides alternate, so that a busy machine slows both."""
SETTLE_S = 0.002
"""Pause before a batch: the thread pool of the other side spins for a while after its last call."""


@dataclass(frozen=True)
class Line:
    """One row of the table; speeds in GFLOP/s."""

    model: str
    m: int
    k: int
    n: int
    ours: float
    torch: float
    best_ratio: float
    """Of the fastest repeats, which tell more than the medians while other programs run."""
    repeatable: bool

    @property
    def ratio(self) -> float:
        """Of the medians; above 1 we are faster."""
        return self.ours / self.torch


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="threads for both sides (default: 1)")
    parser.add_argument("--quick", action="store_true", help="M = 16 and 256 only, fewer repeats (default: off)")
    parser.add_argument("--torch-side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_side:
        _answer(_torch_layer, options.threads)
        return
    # TVM reads this once, when it is first imported.
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    command = [sys.executable, "-m", "benchmarks.matmul", "--torch-side", "--threads", str(options.threads)]
    # In a process of its own: TVM pins threads to cores, and torch's would inherit that and share a single one.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        lines = _table(_Peer(peer), options.threads, options.quick)
    for title, chosen in (("M > 1", [x for x in lines if x.m > 1]), ("M = 1", [x for x in lines if x.m == 1])):
        for kind, ratio in (("medians", _ratio), ("fastest repeats", _best_ratio)):
            if chosen:
                worst = min(chosen, key=ratio)
                mean = math.exp(statistics.fmean(math.log(ratio(line)) for line in chosen))
                where = f"M {worst.m} K {worst.k} N {worst.n}"
                print(
                    f"ours / torch, {title}, {kind}: geometric mean {mean:.2f}, minimum {ratio(worst):.2f} at {where}"
                )
    print(f"all repeats bitwise equal: {'yes' if all(line.repeatable for line in lines) else 'NO'}")


def _ratio(line: Line) -> float:
    return line.ratio


def _best_ratio(line: Line) -> float:
    return line.best_ratio


def _table(peer: _Peer, threads: int, quick: bool) -> list[Line]:
    print(f"GFLOP/s of {threads} thread(s), medians; ratio: ours / torch; best: the same of the fastest repeats")
    print(f"{'model':12} {'M':>4} {'K':>5} {'N':>7} {'ours':>8} {'torch':>8} {'ratio':>6} {'best':>6}")
    lines = []
    for model, shapes in SHAPES.items():
        for k, n in shapes:
            function, weight = _compile(k, n, threads), _normal(n, k)
            rows: tuple[int, ...] = ROWS_OF_THE_HEAD if n == VOCABULARY else (1, *ROWS)
            for m in rows if not quick else [m for m in rows if m in QUICK_ROWS]:
                line = _measure(model, function, peer, weight, m, repeats=5 if quick else 15)
                lines.append(line)
                print(
                    f"{model:12} {m:4} {k:5} {n:7} {line.ours:8.1f} {line.torch:8.1f} {line.ratio:6.2f} "
                    f"{line.best_ratio:6.2f}{'' if line.repeatable else '   NOT REPEATABLE'}",
                    flush=True,
                )
    return lines


def _compile(k: int, n: int, threads: int) -> Callable[..., Any]:
    """A compiled `nn.Linear` as a function of x [1, m, k] and its weight [n, k]."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend import nn

    from driftgate.schedules import cpu_pipeline

    spec = {"forward": {"x": nn.spec.Tensor([1, "m", k], "float32")}}
    module, _ = nn.Linear(k, n, bias=False).export_tvm(spec)
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
    library = tvm.compile(module, target, relax_pipeline=cpu_pipeline(target))
    function: Callable[..., Any] = relax.VirtualMachine(library, tvm.cpu())["forward"]
    return function


def _measure(model: str, function: Callable[..., Any], peer: _Peer, weight: Any, m: int, repeats: int) -> Line:
    import tvm

    n, k = weight.shape
    x, w = tvm.runtime.tensor(_normal(1, m, k)), tvm.runtime.tensor(weight)
    count = _calls_per_batch(lambda: function(x, w))
    peer.begin(m, k, n)
    ours, torch, digests = [], [], set()
    for _ in range(repeats):
        ours.append(_time(lambda: function(x, w), count))
        torch.append(peer.time())
        digests.add(function(x, w).numpy().tobytes())
    flops = 2e-9 * m * k * n
    return Line(
        model,
        m,
        k,
        n,
        flops / statistics.median(ours),
        flops / statistics.median(torch),
        min(torch) / min(ours),
        len(digests) == 1,
    )


class _Peer:
    """The process that measures torch, one line of JSON a question."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def begin(self, m: int, k: int, n: int) -> None:
        self._ask([m, k, n])

    def time(self) -> float:
        return self._ask([])

    def _ask(self, question: list[int]) -> float:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def _answer(layer: Callable[[int, int, int], Callable[[], Any]], threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    call: Callable[[], Any] = lambda: None  # noqa: E731
    count = 1
    with torch.inference_mode():
        for line in sys.stdin:
            shape = json.loads(line)
            if shape:
                call = layer(*shape)
                count = _calls_per_batch(call)
            print(_time(call, count), flush=True)


def _torch_layer(m: int, k: int, n: int) -> Callable[[], Any]:
    import torch

    x, weight = torch.from_numpy(_normal(1, m, k)), torch.from_numpy(_normal(n, k))
    return lambda: torch.nn.functional.linear(x, weight)


def _normal(*shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _calls_per_batch(call: Callable[[], Any]) -> int:
    call()
    return max(1, int(BATCH_S / min(_time(call, 1) for _ in range(2))))


def _time(call: Callable[[], Any], count: int) -> float:
    """Seconds per call, after one call that wakes the threads."""
    time.sleep(SETTLE_S)
    call()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


if __name__ == "__main__":
    main()
