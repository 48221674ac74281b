"""Gemma 3 270M with its real weights: chunked prefill against HuggingFace eager, and the whole gate.

HuggingFace prefills the same chunks with its own cache. It is timed twice: as called by default, logits at every
position, and with logits at the last position alone, which is what a model library computes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

THREADS = 2
os.environ.setdefault("TVM_NUM_THREADS", str(THREADS))

from benchmarks import subjects
from benchmarks.timing import ratio
from benchmarks.tree import measure
from driftgate.plan import Plan, split
from driftgate.seam import KERNELS, Kernel, Seam

PLANS = ((1, 1.0), (2, 0.8), (8, None))
CHUNK = 64
ROUNDS = 5


class Clock:
    """Seconds spent in the kernels of the cache."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, name: str, kernel: Kernel) -> Kernel:
        def run(*args: Any) -> Any:
            start = time.perf_counter()
            result = kernel(*args)
            self.seconds += time.perf_counter() - start
            return result

        return run


class Peer:
    """HuggingFace in a process of its own: TVM pins its threads to cores, and torch's would inherit that."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.gemma3", "--peer"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def prefill(self, tokens: int, last_only: bool) -> float:
        """Seconds of one chunked prefill there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([tokens, last_only]), file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def answer() -> None:
    """The peer's side: prefill as asked, line by line, and print the seconds."""
    import torch
    from transformers import DynamicCache

    import models
    from models import huggingface
    from models.family import FAMILIES
    from models.gemma3.presets import FIELDS_270M

    torch.set_num_threads(THREADS)
    preset = models.find("gemma3-270m")
    model = huggingface.filled(FAMILIES["gemma3"].huggingface(FIELDS_270M), preset.arrays(0), "float32")
    for line in sys.stdin:
        tokens, last_only = json.loads(line)
        ids = preset.prompt(tokens, 0)
        begin = time.perf_counter()
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            for start in range(0, tokens, CHUNK):
                chunk = torch.tensor([ids[start : start + CHUNK]])
                model(chunk, cache=cache, use_cache=True, logits_to_keep=1 if last_only else 0)
        print(time.perf_counter() - begin, flush=True)


def main() -> None:
    import models

    start = time.perf_counter()
    models.find("gemma3-270m").arrays(0)
    print(f"load of the dequantized weights: {time.perf_counter() - start:.1f} s (goal 15 with a warm cache)")
    made = subjects.subject("gemma3-270m")
    seam, clock = Seam(), Clock()
    seam.wrap(set(KERNELS.values()), clock.timed)
    session = subjects.session(made, seam)
    peer = Peer()
    for chunks, goal in PLANS:
        tokens = chunks * CHUNK
        plan = Plan("bench", made.model.prompt(tokens, 0), split(tokens, CHUNK))
        rounds = []
        for _ in range(ROUNDS + 1):
            clock.seconds, begin = 0.0, time.perf_counter()
            for _chunk in session.prefill(plan):
                pass
            total = time.perf_counter() - begin
            rounds.append((total, clock.seconds, peer.prefill(tokens, False), peer.prefill(tokens, True)))
        report(tokens, rounds[1:], goal)
    peer.close()
    del session
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "driftgate.cli",
            "gate",
            "gemma3-270m",
            "--runs",
            "20",
            "--target",
            "llvm",
            "--out",
            folder,
        ]
        env = {key: value for key, value in os.environ.items() if key != "TVM_NUM_THREADS"}
        done = measure(command, env)
    print(
        f"gate, 20 runs: {done.seconds:.0f} s (goal 300), "
        f"peak {done.peak / 2**30:.1f} GiB (goal 6), exit code {done.code}"
    )


def report(tokens: int, rounds: list[tuple[float, float, float, float]], goal: float | None) -> None:
    """Print one prefill's speed; ``rounds``: seconds of ours, of its cache kernels, of HuggingFace's two calls."""
    ours, kernels, every, last = zip(*rounds, strict=True)
    outside = [a - b for a, b in zip(ours, kernels, strict=True)]
    speed = [f"{tokens / statistics.median(times):.0f}" for times in (ours, every, last)]
    print(
        f"{tokens // CHUNK} x {CHUNK}: {speed[0]} tokens/s; "
        f"HuggingFace {speed[1]} (all logits), {speed[2]} (last logits); "
        f"cache kernels are {statistics.median(kernels) / statistics.median(ours):.0%} of our time"
    )
    wanted = f", goal {goal}" if goal else ""
    print(f"  speed ratio {ratio(every, ours)[1]:.2f} (all logits{wanted}), {ratio(last, ours)[1]:.2f} (last logits)")
    wanted = "" if goal else ", goal at most 1"
    print(
        f"  everything but cache kernels / HuggingFace's whole: {ratio(outside, every)[1]:.2f} (all logits{wanted}), "
        f"{ratio(outside, last)[1]:.2f} (last logits)"
    )


if __name__ == "__main__":
    answer() if "--peer" in sys.argv else main()
