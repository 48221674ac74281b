"""How fast ``driftgate --help`` and ``driftgate models`` answer, next to a Python that does nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.timing import interleaved, ratio

ROUNDS = 11


def main() -> None:
    commands = {
        "python -c pass": ["-c", "pass"],
        "driftgate --help": ["-m", "driftgate.cli", "--help"],
        "driftgate models": ["-m", "driftgate.cli", "models"],
    }
    actions = [
        lambda words=words: subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        for words in commands.values()
    ]
    seconds = interleaved(actions, ROUNDS)
    for name, times in zip(commands, seconds, strict=True):
        low, middle, high = ratio(times, seconds[0])
        print(f"{name:18} {statistics.median(times):6.3f} s  {middle:5.2f} x python ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
