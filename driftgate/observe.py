"""Execute plans on a subject, in fresh processes, and return what was observed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftgate.job import plan_to_json
from driftgate.outcome import InfraError
from driftgate.plan import Plan
from driftgate.processes import run_jobs
from driftgate.reach.observations import Compared, Poisoned
from driftgate.reach.script import MOST_SEQUENCES, Script
from driftgate.subject import Subject

if TYPE_CHECKING:
    import numpy as np

Progress = Callable[[int, int], None]
"""``(runs done, runs asked for)``."""


@dataclass(frozen=True)
class Run:
    """One of N identical prefills."""

    run: int
    block: int
    digests: tuple[tuple[str, str], ...]
    """Per chunk: digest of the hidden states, digest of the last token's logits."""
    merge_calls: int
    rows_merged: int


@dataclass(frozen=True)
class Repeats:
    """N identical prefills in blocks of fresh processes, or as many as ran before the first disagreement."""

    asked: int
    blocks: int
    runs: tuple[Run, ...]
    """In order of run number."""
    folder: Path
    """Holds ``runK.npz``, the tensors, of each block's first run and of the first run there that differs from it."""
    fault_hits: int

    def tensors(self, run: int) -> dict[str, np.ndarray] | None:
        """``hidden0``, ``logits0``, ... by chunk, if the run was kept."""
        import numpy as np

        path = self.folder / f"run{run}.npz"
        return dict(np.load(path)) if path.exists() else None


@dataclass(frozen=True)
class Positions:
    """One prefill's logits at every position."""

    plan: Plan
    file: Path
    merge_calls: int
    rows_merged: int
    fault_hits: int
    swap_not_finite: dict[str, int] = field(default_factory=dict)
    """Calls of swapped-in kernels that were given a NaN or an infinity, by kernel: a swap repairs nothing unseen."""

    def logits(self) -> np.ndarray:
        """float32 ``(n, vocab)``, mapped from disk."""
        import numpy as np

        return np.load(self.file, mmap_mode="r")


@dataclass(frozen=True)
class Watched:
    """A few prefills under the sentinel."""

    runs: int
    merge_calls: int
    rows_merged: int
    kernel_calls: dict[str, int]
    vm_calls: int
    values: int
    bad: dict[str, int]
    """``nan``, ``inf``, ``lse_minus_inf`` to how many."""
    first: dict[str, Any] | None
    """The first bad value: run, chunk, call, tensor, index, value."""
    fault_hits: int


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def repeats(
    subject: Subject, plan: Plan, runs: int, blocks: int, keep_going: bool, progress: Progress = lambda *_: None
) -> Repeats:
    """Run ``plan`` ``runs`` times in ``blocks`` processes of one thread each, all of them side by side.

    Sizes of blocks differ by one run at most. Without ``keep_going`` all stop at the first disagreement, be it
    inside a block or between two.
    """
    blocks = min(blocks, runs)
    folder = subject.work / "repeat"
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [runs // blocks + (i < runs % blocks) for i in range(blocks)]
    jobs = []
    for i, size in enumerate(sizes):
        task = {
            "kind": "repeat",
            "plan": plan_to_json(plan),
            "first": sum(sizes[:i]),
            "runs": size,
            "keep_going": keep_going,
            "folder": str(folder),
        }
        jobs.append(subject.job(task, threads=1))
    seen: list[Run] = []
    hits: dict[int, int] = {}

    def on_event(block: int, message: dict[str, Any]) -> bool:
        if message["event"] != "run":
            return True
        hits[block] = message["fault_hits"]
        digests = tuple((hidden, logits) for hidden, logits in message["digests"])
        seen.append(Run(message["run"], block, digests, message["merge_calls"], message["rows_merged"]))
        progress(len(seen), runs)
        return keep_going or digests == seen[0].digests

    # On a GPU the processes would share the one device's memory and time: one after the other there.
    at_once = 1 if subject.target.is_gpu else max(cores(), min(blocks, cores() + 1))
    try:
        run_jobs(jobs, on_event, subject.timeout, at_once)
    except InfraError:
        # A drift that was proved stands, whatever broke afterwards.
        if all(run.digests == seen[0].digests for run in seen):
            raise
    return Repeats(runs, blocks, tuple(sorted(seen, key=lambda run: run.run)), folder, sum(hits.values()))


def positions(subject: Subject, plans: Sequence[Plan]) -> list[Positions]:
    """The logits at every position of each plan, one prefill each, in one process."""
    folder = subject.work / "positions"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{plan.name}.npy" for plan in plans]
    entries = [{"plan": plan_to_json(p), "file": str(f)} for p, f in zip(plans, files, strict=True)]
    found: list[dict[str, Any]] = []
    done: dict[str, Any] = {}

    def on_event(_: int, message: dict[str, Any]) -> bool:
        if message["event"] == "logits":
            found.append(message)
        elif message["event"] == "done":
            done.update(message)
        return True

    run_jobs([subject.job({"kind": "logits", "plans": entries}, cores())], on_event, subject.timeout, 1)
    return [
        Positions(
            plan, file, message["merge_calls"], message["rows_merged"], done["fault_hits"], done["swap_not_finite"]
        )
        for plan, file, message in zip(plans, files, found, strict=True)
    ]


def watched(subject: Subject, plan: Plan, runs: int) -> Watched:
    """``runs`` prefills of ``plan`` with every cache kernel and VM call under the sentinel."""
    calls, rows, done = 0, 0, {}

    def on_event(_: int, message: dict[str, Any]) -> bool:
        nonlocal calls, rows, done
        if message["event"] == "watched":
            calls, rows = calls + message["merge_calls"], rows + message["rows_merged"]
        elif message["event"] == "done":
            done = message
        return True

    task = {"kind": "sentinel", "plan": plan_to_json(plan), "runs": runs}
    run_jobs([subject.job(task, cores())], on_event, subject.timeout, 1)
    return Watched(runs=runs, merge_calls=calls, rows_merged=rows, fault_hits=done["fault_hits"], **done["watch"])


def at_edges(subject: Subject, plans: Sequence[Plan], exact: np.ndarray, progress: Progress) -> list[Compared]:
    """Each plan against ``exact``, the logits ``(n, vocab)`` of a prompt of which all plans are the beginning."""
    import numpy as np

    folder = subject.work / "edges"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"exact{len(list(folder.iterdir()))}.npy"
    np.save(file, exact)
    shares = _shared(plans, [len(plan.ids) for plan in plans], subject)
    tasks = [{"kind": "edges", "plans": [plan_to_json(p) for p in share], "reference": str(file)} for share in shares]
    return _told(subject, tasks, [plan.name for plan in plans], progress)


def of_histories(
    subject: Subject, scripts: Sequence[Script], exact: Sequence[Sequence[np.ndarray]], progress: Progress
) -> list[Compared]:
    """Each script, run twice, against ``exact``: for each of its token lists the logits ``(n, vocab)``."""
    import numpy as np

    folder = subject.work / "histories"
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for script, lists in zip(scripts, exact, strict=True):
        file = folder / f"{script.name}.npz"
        np.savez(file, **{f"list{i}": logits for i, logits in enumerate(lists)})  # type: ignore[arg-type]
        entries.append({**script_to_json(script), "reference": str(file)})
    shares = _shared(entries, [sum(n for _, n in script.chunks) for script in scripts], subject)
    tasks = [{"kind": "histories", "scripts": share} for share in shares]
    return _told(subject, tasks, [script.name for script in scripts], progress, MOST_SEQUENCES)


def poisoned(subject: Subject, entries: Sequence[Plan | Script], poisons: Sequence[str]) -> list[Poisoned]:
    """Each plan and script clean, and with each poison."""
    listed = [plan_to_json(entry) if isinstance(entry, Plan) else script_to_json(entry) for entry in entries]
    found: list[Poisoned] = []

    def on_event(_: int, message: dict[str, Any]) -> bool:
        if message.pop("event") == "poisoned":
            found.append(Poisoned(**message))
        return True

    task = {"kind": "poison", "entries": listed, "poisons": list(poisons)}
    run_jobs([subject.job(task, cores(), MOST_SEQUENCES)], on_event, subject.timeout, 1)
    return found


def script_to_json(script: Script) -> dict[str, Any]:
    """``script`` as a process is told it."""
    return {"name": script.name, "steps": [asdict(step) for step in script.steps]}


def _shared(work: Sequence[Any], costs: Sequence[int], subject: Subject) -> list[list[Any]]:
    """``work`` for as many processes as there are cores, of about the same cost each; on a GPU for one."""
    count = 1 if subject.target.is_gpu else min(cores(), len(work))
    shares: list[list[Any]] = [[] for _ in range(count)]
    loads = [0] * count
    for cost, item in sorted(zip(costs, work, strict=True), key=lambda pair: -pair[0]):
        least = loads.index(min(loads))
        shares[least].append(item)
        loads[least] += cost
    return [share for share in shares if share]


def _told(
    subject: Subject,
    tasks: Sequence[dict[str, Any]],
    names: Sequence[str],
    progress: Progress,
    sequences: int = 1,
) -> list[Compared]:
    """What the processes say of ``names``, in that order."""
    found: dict[str, Compared] = {}

    def on_event(_: int, message: dict[str, Any]) -> bool:
        if message.pop("event") == "compared":
            found[message["name"]] = Compared(**message)
            progress(len(found), len(names))
        return True

    run_jobs([subject.job(task, 1, sequences) for task in tasks], on_event, subject.timeout, len(tasks))
    return [found[name] for name in names]
