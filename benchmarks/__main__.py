"""Run every benchmark, one after the other: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import subprocess
import sys

NAMES = ("startup", "matmul", "overhead", "memory", "gate", "gemma3", "seam", "faults", "isolation")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    worst = 0
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        # A process each: threads and libraries that one benchmark leaves behind would count in the next.
        worst = max(worst, subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
