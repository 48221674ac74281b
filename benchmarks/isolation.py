"""Isolation of a planted merge fault in the real model: seconds, and peak memory of the whole process tree."""

from __future__ import annotations

import os
import sys
import tempfile

from benchmarks.tree import measure

MODEL = "gemma3-270m"


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        words = ["isolate", MODEL, "--fault", "merge-race", "--target", "llvm", "--out", out]
        done = measure([sys.executable, "-m", "driftgate.cli", *words], dict(os.environ))
    verdict = next((line for line in done.out.splitlines() if line.startswith("  isolate")), "no verdict")
    size = done.peak / 2**30
    print(f"{MODEL}: {done.seconds:.0f} s, peak {size:.1f} GiB, exit code {done.code}; goals: 600 s, 8 GiB")
    print(verdict.strip())


if __name__ == "__main__":
    main()
