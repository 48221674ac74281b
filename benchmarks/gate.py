"""The main job, as its user runs it: 300 runs and all checks, with a cold compile cache and with a warm one."""

from __future__ import annotations

import os
import sys
import tempfile

from benchmarks.tree import measure


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "DRIFTGATE_CACHE": f"{folder}/cache"}
        command = [
            sys.executable,
            "-m",
            "driftgate.cli",
            "gate",
            "gemma4-tiny",
            "--target",
            "llvm",
            "--out",
            f"{folder}/out",
        ]
        for state, goal in (("cold", 120), ("warm", 60)):
            done = measure(command, env)
            print(
                f"{state} cache: {done.seconds:.1f} s (goal {goal}), "
                f"peak {done.peak / 2**30:.2f} GiB (goal 2), exit code {done.code}"
            )
            if done.code:
                print(done.out)


if __name__ == "__main__":
    main()
