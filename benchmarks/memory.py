"""Peak memory of one block of check repeat, 300 runs against 3,000 or as given: it must not grow with the runs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks import subjects
from benchmarks.tree import measure
from driftgate.job import plan_to_json
from driftgate.plan import Plan, split

RUNS = (300, 3000)


def main() -> None:
    made = subjects.subject("gemma4-tiny")
    plan = Plan("default", made.model.prompt(48, 0), split(48, 16))
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for runs in [int(word) for word in sys.argv[1:]] or RUNS:
            task = {
                "kind": "repeat",
                "plan": plan_to_json(plan),
                "first": 0,
                "runs": runs,
                "keep_going": True,
                "folder": folder,
            }
            path = Path(folder) / "job.json"
            made.job(task, threads=1).write(path)
            done = measure([sys.executable, "-m", "driftgate.worker", str(path)], dict(os.environ))
            peaks.append(done.peak)
            print(f"{runs} runs: peak {done.peak / 2**20:.0f} MiB, {done.seconds:.0f} s")
    print(f"ratio {peaks[1] / peaks[0]:.3f}; goal: flat")


if __name__ == "__main__":
    main()
