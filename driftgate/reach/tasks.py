"""What these checks ask of a fresh process (see ``driftgate.worker``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from driftgate.job import NO_RUN, Job, plan_from_json
from driftgate.metrics import bits, first_difference, max_abs, unusable
from driftgate.modes.poison import Poison
from driftgate.plan import Plan
from driftgate.reach.observations import Compared, Poisoned
from driftgate.reach.script import Part, Step
from driftgate.seam import MergeCounter

if TYPE_CHECKING:
    from driftgate.runtime import Session

Piece = tuple[int, np.ndarray, np.ndarray]
"""Number of the token list, positions ``(n,)`` in it, and their logits ``(n, vocab)``."""


def edges(job: Job) -> None:
    """Each plan once, against the logits of one prompt of which all plans are the beginning."""
    from driftgate import worker

    counter = MergeCounter()
    session, fault = worker.opened(job, counter.attach)
    exact = np.load(job.task["reference"], mmap_mode="r")
    for number, entry in enumerate(job.task["plans"]):
        plan = plan_from_json(entry)
        fault.begin_run(NO_RUN - number)
        before = fault.hits
        found = compared(plan.name, list(of_plan(session, plan)), [exact], counter.take()[0])
        worker.emit("compared", **{**asdict(found), "fault_hits": fault.hits - before})
    worker.emit("done", fault_hits=fault.hits)


def histories(job: Job) -> None:
    """Each history twice, the first time against logits of every token list that its sequences had."""
    from driftgate import worker

    counter = MergeCounter()
    session, fault = worker.opened(job, counter.attach)
    for number, entry in enumerate(job.task["scripts"]):
        steps = [step_from_json(step) for step in entry["steps"]]
        fault.begin_run(NO_RUN - number)
        before = fault.hits
        first = list(of_steps(session, steps))
        merges = counter.take()[0]
        again = list(of_steps(session, steps))
        counter.take()
        exact = np.load(entry["reference"])
        found = asdict(compared(entry["name"], first, [exact[f"list{i}"] for i in range(len(exact))], merges))
        hits = fault.hits - before
        worker.emit("compared", **{**found, "fault_hits": hits, "differs": differing(first, again)})
    worker.emit("done", fault_hits=fault.hits)


def poison(job: Job) -> None:
    """Each plan and history clean, then with each poison; the bytes have to stay the same."""
    from driftgate import worker

    counter, spoiler = MergeCounter(), Poison()
    session, fault = worker.opened(job, counter.attach, spoiler.attach)

    def pieces(entry: dict[str, Any]) -> list[Piece]:
        fault.begin_run(NO_RUN)
        if "steps" in entry:
            return list(of_steps(session, [step_from_json(step) for step in entry["steps"]]))
        return list(of_plan(session, plan_from_json(entry)))

    for entry in job.task["entries"]:
        clean = pieces(entry)
        counter.take()
        nothing = next(
            (r for _, _, logits in clean if logits.size and (r := unusable(logits, "the run without poison"))), None
        )
        for name in job.task["poisons"]:
            before = fault.hits
            spoiler.begin(name, job.dtype, session)
            found = pieces(entry)
            filled = spoiler.end()
            merges, hits = counter.take()[0], fault.hits - before
            # NaN has the bytes of NaN: a run that proves nothing is not the same as another.
            differs = nothing.as_dict() if nothing else differing(clean, found)
            made = Poisoned(name, entry["name"], filled, differs, merges, hits)
            worker.emit("poisoned", **asdict(made))
    worker.emit("done", fault_hits=fault.hits)


def of_plan(session: Session, plan: Plan) -> Iterator[Piece]:
    """The logits of every chunk."""
    for start, count, chunk in zip(plan.starts, plan.chunks, session.prefill(plan), strict=True):
        logits = session.all_logits(chunk)
        yield 0, np.arange(start + count - len(logits), start + count), logits


def of_steps(session: Session, steps: list[Step]) -> Iterator[Piece]:
    """The logits of every piece that was prefilled."""
    for step, found in zip(steps, session.live(steps), strict=True):
        at = 0
        for part in step.parts:
            count = len(part.ids)
            yield part.whole, np.arange(part.start, part.start + count), found[at : at + count]
            at += count


def compared(name: str, pieces: list[Piece], exact: list[Any], merge_calls: int) -> Compared:
    """``pieces`` against ``exact``, the logits of each token list."""
    positions = sum(len(at) for _, at, _ in pieces)
    largest, worst = -1.0, {}
    for whole, at, logits in pieces:
        right = exact[whole][at]
        if logits.shape != right.shape:
            shapes = f"logits are {list(logits.shape)}, but the reference has {list(right.shape)}"
            return Compared(name, positions, None, {"what": shapes}, merge_calls)
        if reason := unusable(logits, "logits"):
            place = {"position": int(at[reason.index[0]])} if reason.index else {}
            return Compared(name, positions, None, {**reason.as_dict(), **place}, merge_calls)
        off, (row, word) = max_abs(logits, right)
        if off > largest:
            values = logits[row, word], right[row, word]
            largest = off
            worst = {
                "position": int(at[row]),
                "vocabulary_index": word,
                "values": [float(v) for v in values],
                "bits": [bits(v) for v in values],
            }
    return Compared(name, positions, largest, worst, merge_calls)


def differing(first: list[Piece], again: list[Piece]) -> dict[str, Any] | None:
    """The first piece whose logits differ in bytes."""
    for (_, at, left), (_, _, right) in zip(first, again, strict=True):
        if difference := first_difference(left, right):
            place = {"position": int(at[difference.index[0]])} if difference.index else {}
            return {**difference.as_dict(), **place}
    return None


def step_from_json(data: dict[str, Any]) -> Step:
    """The step that ``dataclasses.asdict`` made ``data`` of."""
    parts = tuple(Part(**{**part, "ids": tuple(part["ids"])}) for part in data["parts"])
    return Step(**{**data, "parts": parts})
