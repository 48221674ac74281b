"""The mutation table: each planted fault, the check that caught it, the kernel that isolation named, prefills needed.

python -m benchmarks.faults                       every fault, and a clean model
python -m benchmarks.faults lib-merge-race:0.03   these faults alone
python -m benchmarks.faults rates                 the race at 3% and at 0.3% of prefills
python -m benchmarks.faults replay                replay alone, at 3%: prefills to the name, 20 seeds
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from driftgate import run
from driftgate.checks.verdict import Verdict
from driftgate.options import resolve
from fixtures import library_faults
from fixtures.faults import FAULTS, find
from fixtures.gate import gate_for, preset

CLEAN_RUNS = 1000
MERGES = 20
"""Merges of a prefill of the default plan: a race at rate r of prefills strikes 1 - (1 - r)^(1/20) of calls."""
RATES = {"3%": (0.03, 300, 150), "0.3%": (0.003, 1500, 1500)}
"""Rate of prefills, runs asked for, and the goal: prefills to the name."""
SEEDS = 20
REPLAYS = 50
MOST = 60


def isolated(**options: str) -> tuple[Verdict, float]:
    """The verdict of `driftgate isolate gemma4-tiny` with these options, and seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        gate = gate_for(resolve({"target": "llvm", "checks": "isolate", "out": out, **options}, {}, {}, preset))
        try:
            return run.isolate(gate), time.monotonic() - began
        finally:
            gate.close()


def row(name: str) -> bool:
    """Print one line of the table; whether the fault was caught and named rightly."""
    bare = name.partition(":")[0]
    fault = find(bare)
    library = isinstance(fault, library_faults.LibraryFault)
    expected = fault.kernel if isinstance(fault, library_faults.LibraryFault) else fault.named
    verdict, seconds = isolated(
        fault=name, plan=fault.plan if isinstance(fault, library_faults.LibraryFault) else "default"
    )
    figures = verdict.figures
    caught = {"unstable": "repeat", "off-reference": "reference", "none": "-"}[figures["symptom"]]
    named, right = ", ".join(figures["culprits"]) or "-", figures["culprits"] == [expected]
    if bare == "bit-flip":
        # It strikes one run of all and never again: there is nothing left to replay, and nobody may be blamed.
        right = not figures["culprits"]
    chance = f", p {figures['p_value']:.0e}" if "p_value" in figures else ""
    confirmed = f"{figures['confirmed_by']}{chance}" if figures["confirmed_by_swap"] else "no"
    print(
        f"| `{name}` | {fault.about} | {'library' if library else 'seam'} | {caught} | `{named}` "
        f"| {figures['prefills']} | {confirmed} ({figures['confirm_prefills']}) | {seconds:.0f} s "
        f"| {'yes' if right else 'NO'} |",
        flush=True,
    )
    return right and caught != "-"


def table(names: Sequence[str]) -> int:
    print(
        "| fault | what it does | planted in | caught by | named | prefills to the name | confirmed by (prefills) "
        "| time | right |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    right = sum([row(name) for name in names])
    print(f"\n{right} of {len(names)} caught and named rightly, no other kernel blamed")
    return 0 if right == len(names) else 1


def clean(runs: int) -> int:
    verdict, seconds = isolated(runs=str(runs))
    blamed = verdict.figures["culprits"]
    print(
        f"clean, {verdict.figures['prefills']} prefills: blamed {blamed or 'nobody'}, {seconds:.0f} s\n"
        f"  {verdict.message}"
    )
    return 1 if blamed else 0


def rates() -> int:
    missed = 0
    for label, (rate, runs, goal) in RATES.items():
        chance = 1 - (1 - rate) ** (1 / MERGES)
        verdict, seconds = isolated(fault=f"lib-merge-race:{chance:.6f}", runs=str(runs))
        figures = verdict.figures
        print(
            f"race in {label} of prefills ({chance:.5%} of merges): named {figures['culprits']} after "
            f"{figures['prefills']} prefills (goal {goal}), {seconds:.0f} s\n  {verdict.message}",
            flush=True,
        )
        missed += figures["culprits"] != ["merge"] or figures["prefills"] > goal or not figures["confirmed_by_swap"]
    return int(missed > 0)


def replay() -> int:
    """Replay of every cache kernel, and nothing else, in this process, at the rate of the public report."""
    os.environ["TVM_NUM_THREADS"] = "2"
    import models
    from benchmarks import subjects
    from driftgate.calls import Calls
    from driftgate.modes.replay import Replay
    from driftgate.plan import Plan, split
    from driftgate.runtime import open_session
    from driftgate.seam import Seam
    from driftgate.target import resolve as target

    model = models.find("gemma4-tiny")
    made = subjects.subject("gemma4-tiny")
    plan = Plan("default", model.prompt(48, 0), split(48, 16))
    for label in ("3%",):
        chance = 1 - (1 - RATES[label][0]) ** (1 / MERGES)
        path = library_faults.compiled(
            library_faults.BY_NAME["lib-merge-race"], chance, model, target("llvm"), "float32"
        )
        seam, mode = Seam(), Replay(REPLAYS)
        calls = Calls([mode])
        calls.attach(seam)
        import tvm

        session: Any = open_session(path, made.params, tvm.cpu(), made.dtype, made.capacity, seam)
        session.calls = calls
        needed, wrong = [], set()
        for seed in range(SEEDS):
            ctypes.CDLL(None).srand(1000 + seed)
            for prefill in range(1, MOST + 1):
                for _ in session.prefill(plan):
                    pass
                caught = {name for name, found in mode.take().items() if found.disagreed}
                wrong |= caught - {"merge"}
                if "merge" in caught:
                    needed.append(prefill)
                    break
            else:
                needed.append(MOST + 1)
        print(
            f"race in {label} of prefills, {REPLAYS} replays of every cache kernel call, {SEEDS} seeds: prefills "
            f"to the name {sorted(needed)}, median {statistics.median(needed):g}, most {max(needed)} (goal: below 20); "
            f"others blamed: {sorted(wrong) or 'none'}",
            flush=True,
        )
    return 0


def main(words: list[str]) -> int:
    os.environ.setdefault("DRIFTGATE_TARGET", "llvm")
    if words == ["rates"]:
        return rates()
    if words == ["replay"]:
        return replay()
    if words:
        return table(words)
    return max(table([*FAULTS, *library_faults.BY_NAME]), clean(CLEAN_RUNS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
