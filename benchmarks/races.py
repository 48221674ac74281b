"""The race detector: what mutants it catches, what it says of clean kernels, whom it agrees with, and how fast it is.

python -m benchmarks.races recall [--targets metal,...] [--head-dim 512,256] [--full]
python -m benchmarks.races positives [--targets ...] [--head-dim ...]
python -m benchmarks.races agreement
python -m benchmarks.races speed
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from driftgate import target
from driftgate.outcome import UsageError
from driftgate.races import fast, reference
from driftgate.races.catalog import KERNELS, Shape, build
from driftgate.races.evidence import Setup
from driftgate.races.inputs import setups
from driftgate.races.judge import Job, judge
from driftgate.races.kernel import Kernel
from driftgate.races.lowering import lower
from driftgate.races.mutation.kills import Hunt
from driftgate.races.mutation.mutants import CLASSES, mutants
from driftgate.races.proofs.assumptions import ASSUMPTIONS, assumptions_for
from driftgate.races.proofs.harmless import argument
from driftgate.races.rows import limit_rows, race_row
from driftgate.races.sweep import sweep
from fixtures import micro, oclgrind
from fixtures.known_kernels import findings
from fixtures.small_launches import SETUPS

ALL_TARGETS = ("metal", "cuda", "opencl", "webgpu")
HEADS = 6
"""Query heads to one KV head. With 8 a prefill tile of 8 rows has no padding, and what is there for it never runs."""
ALL_HEAD_DIMS = (512, 256, 192, 128, 96, 80, 64)
KILLED, NARROW, PROVED, SURVIVED, UNREACHED = "killed", "at width 1", "equivalent", "SURVIVED", "NOT REACHED"


def kernels(targets: tuple[str, ...], head_dims: tuple[int, ...], dtypes: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Every kernel that TVM builds, lowered: its name, shape, target, and the kernel."""
    for spec in map(target.resolve, targets):
        for name in KERNELS:
            for head_dim in head_dims:
                for dtype in dtypes:
                    shape = Shape(head_dim, HEADS, 1, dtype)
                    try:
                        lowered = lower(name, build(name, shape, spec), spec)
                    except UsageError:
                        continue
                    yield name, shape, spec, lowered.launches[0].kernel


def recall(targets: tuple[str, ...], head_dims: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Every mutant of every kernel: killed, proved equivalent, or survived; the last two one by one."""
    begun = time.monotonic()
    total: Counter[tuple[str, str]] = Counter()
    for name, shape, spec, kernel in kernels(targets, head_dims, dtypes):
        found: Counter[tuple[str, str]] = Counter()
        hunt = Hunt(kernel, setups(name, shape, kernel), spec.warp_width)
        given = assumptions_for(name, shape) if name in ASSUMPTIONS else None
        lines = []
        for mutant in mutants(kernel):
            outcome = hunt.run(mutant)
            word, why = KILLED, ""
            if not outcome.killed:
                argued = argument(kernel, mutant, given)
                word = NARROW if outcome.narrow else PROVED if argued.holds else SURVIVED
                word = UNREACHED if word == SURVIVED and not outcome.reached else word
                why = outcome.finding or argued.reason
                lines.append(f"    {word:11} {mutant.kind}, {mutant.description}: {why}")
            found[mutant.kind, word] += 1
        total += found
        words = ", ".join(f"{kind}: {_words(found, kind)}" for kind in CLASSES if _words(found, kind))
        print(f"{spec.name} {shape.head_dim} {shape.dtype} {name}: {words}")
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    print()
    for kind in CLASSES:
        print(f"{kind:30} {_words(total, kind)}")
    words = Counter({word: sum(n for (_, w), n in total.items() if w == word) for word in {w for _, w in total}})
    counted = sum(words.values()) - words[PROVED]
    killed = words[KILLED] + words[NARROW]
    print(
        f"{sum(words.values())} mutants: {words[KILLED]} killed at the target's warp width, {words[NARROW]} at width 1 "
        f"alone, {words[PROVED]} proved equivalent, {words[SURVIVED]} survived, {words[UNREACHED]} not reached"
    )
    print(f"recall {killed}/{counted} = {killed / max(counted, 1):.1%}; {time.monotonic() - begun:.0f} s, {_memory()}")


def _words(found: Counter[tuple[str, str]], kind: str) -> str:
    order = (KILLED, NARROW, PROVED, SURVIVED, UNREACHED)
    return ", ".join(f"{found[kind, word]} {word}" for word in order if found[kind, word])


def positives(targets: tuple[str, ...], head_dims: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Findings on TVM's kernels as they are, beyond what is known to be wrong with them."""
    begun, known = time.monotonic(), findings()
    jobs = [
        Job(name, Shape(head_dim, 8, 1, dtype), spec, spec.warp_width)
        for spec in map(target.resolve, targets)
        for name in KERNELS
        for head_dim in head_dims
        for dtype in dtypes
    ]
    words: Counter[str] = Counter()
    for judged in sweep(jobs):
        if judged.refused:
            words["not built"] += 1
            continue
        for row in (race_row(judged, known), *limit_rows(judged, known)):
            kind = "limits" if "class" not in row else "races"
            words[f"{kind} {row['verdict']}"] += 1
            if row["verdict"] == "drift":
                found = row.get("class") or row["text"]
                print(f"{row['target']} {row['head_dim']} {row['dtype']} {row['kernel']}: {found} {row.get('sites')}")
    print(f"{len(jobs)} kernels and configurations: {dict(sorted(words.items()))}")
    print(f"false positives: {words['races drift']}; {time.monotonic() - begun:.0f} s, {_memory()}")


def agreement() -> None:
    """Both engines on every kernel of the cache and every micro kernel; Oclgrind on four kernels at warp width 1."""
    same = 0
    launches = list(_small())
    for name, _, spec, kernel, launch in launches:
        one, other = fast.run(kernel, launch), reference.run(kernel, launch)
        agrees = _said(one) == _said(other)
        same += agrees
        if not agrees:
            print(f"{spec.name} {name}: the engines differ")
    print(f"fast and reference engine: the same conflicts and faults on {same} of {len(launches)} kernels of the cache")
    spec = target.resolve("metal")
    right = sum(
        not m.wrong(m.kernel(spec), e.run(m.kernel(spec), m.setup())) for e in (fast, reference) for m in micro.KERNELS
    )
    racy = sum(m.racy for m in micro.KERNELS)
    print(
        f"micro kernels: {racy} racy and {len(micro.KERNELS) - racy} clean ones, each told exactly by both engines: "
        f"{right} of {2 * len(micro.KERNELS)}"
    )
    if not oclgrind.found():
        print("Oclgrind (Debian package oclgrind) is not installed: not compared")
        return
    spec, shape = target.resolve("opencl"), Shape(64, 2, 2, "float32")
    for name, launch_of in SETUPS.items():
        lowered = lower(name, build(name, shape, spec), spec)
        launch = launch_of(shape, 2)
        theirs = oclgrind.run(lowered, launch, uniform_writes=True)
        ours = fast.run(lowered.launches[0].kernel, launch)
        kinds = sorted({c.kind for c in ours.conflicts})
        print(f"Oclgrind, {name}: {sorted(theirs.kinds)} ({theirs.reports} reports); ours at width 1: {kinds}")


def _small() -> Iterator[tuple[str, Shape, target.TargetSpec, Kernel, Setup]]:
    for spec in map(target.resolve, ALL_TARGETS):
        for name in KERNELS:
            shape = Shape(64, 16, 1, "float16")
            kernel = lower(name, build(name, shape, spec), spec).launches[0].kernel
            yield name, shape, spec, kernel, setups(name, shape, kernel)[0]


def _said(evidence: Any) -> tuple[Any, ...]:
    conflicts = {
        (c.kind, c.first.site, c.second.site, c.distance, c.between_blocks, c.changing) for c in evidence.conflicts
    }
    return conflicts, {(f.kind, f.site) for f in evidence.faults}


def speed() -> None:
    """Merge of 256 tokens x 2 heads x 512 against Oclgrind in the same run, and all kernels of a target."""
    from benchmarks.oclgrind import SHAPE, TOKENS, measure

    spec = target.resolve("opencl")
    begun = time.monotonic()
    lowered = lower("merge", build("merge", SHAPE, spec), spec)
    kernel = lowered.launches[0].kernel
    program = fast.Program(kernel)
    ready = time.monotonic()
    evidence = program.run(SETUPS["merge"](SHAPE, TOKENS))
    ran, whole = time.monotonic() - ready, time.monotonic() - begun
    print(
        f"merge, {TOKENS} tokens x {SHAPE.heads} heads x {SHAPE.head_dim} {SHAPE.dtype}: {whole:.2f} s lowered, "
        f"compiled and run ({ran:.3f} s of it the run), {len(evidence.conflicts)} pairs of statements, one report"
    )
    if oclgrind.found():
        timing = measure()
        print(
            f"Oclgrind in the same minute: {timing.detecting:.1f} s detecting races ({timing.plain:.1f} s without), "
            f"{timing.reports:,} reports: {timing.detecting / whole:.0f} x ours, {timing.detecting / ran:.0f} x the run"
        )
    else:
        print("Oclgrind (Debian package oclgrind) is not installed: no ratio")
    begun = time.monotonic()
    jobs = [
        Job(n, Shape(d, 8, 1, "float16"), s, 32) for s in [target.resolve("metal")] for n in KERNELS for d in (512, 256)
    ]
    for job in jobs:
        judge(job)
    print(
        f"{len(jobs)} kernels of metal at 512 and 256, float16, one process: {time.monotonic() - begun:.0f} s (goal 60)"
    )
    print(f"peak memory of this process: {_memory()}")


def _memory() -> str:
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"{peak * (1 if sys.platform == 'darwin' else 1024) / 2**30:.2f} GiB a process at most"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.races")
    parser.add_argument("part", choices=("recall", "positives", "agreement", "speed"))
    parser.add_argument("--targets", default=",".join(ALL_TARGETS))
    parser.add_argument("--head-dim")
    parser.add_argument("--full", action="store_true", help="every head_dim, both dtypes")
    parsed = parser.parse_args()
    if parsed.part in ("agreement", "speed"):
        globals()[parsed.part]()
        return
    wide = parsed.full or parsed.part == "positives"
    head_dims = (
        tuple(map(int, parsed.head_dim.split(","))) if parsed.head_dim else ALL_HEAD_DIMS if wide else (512, 256)
    )
    dtypes = ("float16", "float32") if wide else ("float16",)
    globals()[parsed.part](tuple(parsed.targets.split(",")), head_dims, dtypes)


if __name__ == "__main__":
    main()
