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
        print(f"{MODEL}: {measure([sys.executable, '-m', 'driftgate.cli', *words], dict(os.environ))}")
        print("goals: 600 s, 8 GiB")


if __name__ == "__main__":
    main()
