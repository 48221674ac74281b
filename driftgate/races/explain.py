"""A report drawn for the terminal: who reads, who writes, in which barrier epoch, and what it does to the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from driftgate.races.defects import HIDDEN
from driftgate.races.judge import Judged, Report
from driftgate.races.rows import place

WIDTH = 64
"""Characters of the line that stands for the threads of a block."""


def summary(kernel: str, report: Report, where: Sequence[str]) -> Iterator[str]:
    """One report for all the configurations ``where`` that have it."""
    yield f"{kernel}: {report.label} of {report.buffer or 'a barrier'}, {report.width_note}"
    for access in report.sites:
        who = f"thread {access['thread']} ({access['axes']}), warp {access['warp']}, " if "thread" in access else ""
        block = f"block {access['block']}, " if "thread" in access else ""
        at = f"element {access['element']}, " if access.get("element", -1) >= 0 else ""
        yield f"  {access['access']:5} {place(access)}  {who}{block}{at}".rstrip(", ")
        yield f"        {access['text']}"
    if report.remedy:
        yield f"  remedy: {report.remedy}"
    yield f"  concerned: {'; '.join(where)}"


def drawing(judged: Judged, report: Report) -> Iterator[str]:
    """Threads from left to right, statements from top to bottom, between two barriers."""
    pair = [access for access in report.sites if "thread" in access]
    job = judged.job
    yield (
        f"{job.kernel}, {job.spec.name}, head_dim {job.shape.head_dim}, {job.shape.dtype}: "
        f"{judged.threads} threads a block, warps of {job.warp}"
    )
    if len(pair) < 2 or judged.threads == 0:
        return
    scale = max(judged.threads / WIDTH, 1)
    cells = min(judged.threads, WIDTH)
    warps = "".join("|" if int(n * scale) % max(job.warp, int(scale) or 1) < scale else "." for n in range(cells))
    yield f"  epoch {report.epoch:<4} {warps}  | begins a warp"
    for access in sorted(pair, key=lambda a: a["line"]):
        column = min(int(access["thread"] / scale), cells - 1)
        mark = "R" if access["access"] == "load" else "W"
        line = "".join(mark if n == column else " " for n in range(cells))
        yield f"  line {access['line']:<5} {line}  thread {access['thread']} {_verb(access)} {_element(report, access)}"
    yield "  no barrier lies between the two lines, so either may come first"


def _verb(access: dict[str, Any]) -> str:
    return "reads" if access["access"] == "load" else "writes"


def _element(report: Report, access: dict[str, Any]) -> str:
    return f"{report.buffer}[{access['element']}]" if "element" in access else report.buffer


def effect(judged: Judged) -> Iterator[str]:
    """What the race does to the numbers when warps run one after another: a demonstration, no verdict."""
    from driftgate.races.adversary import columns, demonstrate
    from driftgate.races.candidate import candidate
    from driftgate.races.catalog import build
    from driftgate.races.inputs import setups
    from driftgate.races.lowering import lower

    job = judged.job
    function = (
        candidate(job.candidate, job.shape, job.spec) if job.candidate else build(job.kernel, job.shape, job.spec)
    )
    for launch in lower(job.kernel, function, job.spec).launches:
        setup = setups(job.kernel, job.shape, launch.kernel)[0]
        shown = demonstrate(launch.kernel, setup, job.warp)
        for order in shown.orders:
            found = [d for d in shown.differences if d.order == order]
            yield f"  warps one after another, {order}: {'nothing differs' if not found else ''}".rstrip()
            for difference in found:
                size = len(setup.arrays[difference.array])
                wrong = f"{difference.count:,} of {size:,} elements wrong"
                line = f"    {difference.array}: {wrong}, by up to {difference.largest:.3g}"
                wide = (-1, job.shape.heads, job.shape.head_dim)
                if size % (job.shape.heads * job.shape.head_dim) == 0:
                    rows = size // (job.shape.heads * job.shape.head_dim)
                    ranges = columns(difference.wrong, (rows, *wide[1:]), gap=8)
                    first = next(iter(ranges))
                    spans = ", ".join(f"{a}-{b}" for a, b in ranges[first])
                    line += f"; row {first[0]}, head {first[1]}: columns {spans}"
                yield line


def shortened(places: Sequence[str]) -> str:
    """Places with the name of their file, once."""
    found: list[str] = []
    last = ""
    for text in places:
        file, _, line = text.rpartition("/")[2].rpartition(":")
        found.append(f":{line}" if file and file == last else text.rpartition("/")[2])
        last = file
    return ", ".join(found)


def hidden(reports: Sequence[Report]) -> list[str]:
    """One line for each race that this warp width hides."""
    return [f"{r.label} of {r.buffer}: {r.width_note}" for r in reports if r.grade == HIDDEN]
