"""The barriers and stores of a kernel as one sequence, of its lowered form or of its generated source, to compare."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from driftgate.races.kernel import (
    LOCAL,
    Barrier,
    For,
    If,
    Kernel,
    Seq,
    Stmt,
    Storage,
    Store,
    While,
    bytes_of,
    lanes_of,
)
from driftgate.races.source.listing import BARRIER, STORE, Listing, Statement

_LANE = re.compile(r"(?:\[(\d+)\]|\.s([\da-f])|\.([xyzw])| \+ (\d+))$")


@dataclass(frozen=True)
class Event:
    """A barrier or a store, or where a loop or branch with one in it begins or ends."""

    key: str
    """Equal where events are: the kind, and of a store the array and the bytes."""
    what: str
    """For reports."""
    line: int
    """Of the lowered script, or of the source; of a begin or end that of the event next to it."""
    text: str


Placed = tuple[Event, tuple[tuple[str, Any], ...]]
"""An event, and the kind and identity of every block around it."""


def of_kernel(kernel: Kernel, names: dict[Storage, str]) -> Iterator[Placed]:
    """The events of the lowered kernel; ``names`` has the source's name of every storage."""

    def events(stmt: Stmt, around: tuple[tuple[str, Any], ...]) -> Iterator[Placed]:
        match stmt:
            case Seq():
                for part in stmt.body:
                    yield from events(part, around)
            case For():
                yield from events(stmt.body, (*around, ("for", stmt)))
            case While():
                yield from events(stmt.body, (*around, ("while", stmt)))
            case If():
                yield from events(stmt.then, (*around, ("if", stmt)))
                if stmt.otherwise is not None:
                    yield from events(stmt.otherwise, (*around, ("else", stmt)))
            case Barrier():
                site = kernel.sites[stmt.site]
                yield Event("barrier", f"barrier {stmt.number}", site.line, site.text), around
            case Store() if stmt.buffer.scope != LOCAL:
                site, name = kernel.sites[stmt.site], names[stmt.buffer.storage]
                size = lanes_of(stmt.buffer.dtype) * lanes_of(stmt.index.dtype) * bytes_of(stmt.buffer.dtype)
                yield Event(f"{name} {size}", f"the store to {name}", site.line, site.text), around

    return events(kernel.body, ())


def of_listing(listing: Listing) -> Iterator[Placed]:
    """The events of the source."""
    memory = {a.name for a in listing.arrays if a.scope != "local"}
    number = 0
    pending: list[Statement] = []
    for s in listing.statements:
        if pending and not _continues(pending, s):
            yield _stored(pending)
            pending = []
        if s.kind == BARRIER:
            yield Event("barrier", f"barrier {number}", s.line, s.text), _around(s)
            number += 1
        elif s.kind == STORE and s.name in memory:
            pending.append(s)
    if pending:
        yield _stored(pending)


def _continues(pending: list[Statement], s: Statement) -> bool:
    """Whether ``s`` writes the next lane of the vector whose first lanes ``pending`` writes."""
    first = pending[0]
    if s.kind != STORE or s.name != first.name or s.blocks != first.blocks:
        return False
    lane = len(pending)
    pairs = ((first.place.removesuffix("]"), s.place.removesuffix("]")), (first.value, s.value))
    return all(_lane(a)[1] == 0 and _lane(b)[1] == lane and _lane(a)[0] == _lane(b)[0] for a, b in pairs)


def _lane(text: str) -> tuple[str, int | None]:
    """``text`` without the lane that it ends in, and the lane: ``[1]``, ``.s1``, ``.y`` or, of an index, `` + 1``."""
    found = _LANE.search(text)
    if not found:
        return text, None
    lane = "xyzw".index(found[3]) if found[3] else int(found[1] or found[2] or found[4], 16)
    return text[: found.start()], lane


def _stored(lanes: list[Statement]) -> Placed:
    first = lanes[0]
    size = sum(s.bytes or 0 for s in lanes)
    return Event(f"{first.name} {size}", f"the store to {first.name}", first.line, first.text), _around(first)


def _around(s: Statement) -> tuple[tuple[str, Any], ...]:
    return tuple((block.kind, block) for block in s.blocks)


def structured(placed: Iterator[Placed]) -> list[Event]:
    """The events with the begin and end of the blocks around them; blocks without an event do not appear."""
    found: list[Event] = []
    before: tuple[tuple[str, Any], ...] = ()
    last = Event("", "", 0, "")
    for event, around in placed:
        same = next((n for n, (a, b) in enumerate(zip(before, around, strict=False)) if a != b), None)
        same = min(len(before), len(around)) if same is None else same
        found += [Event("end", f"the end of the {kind}", last.line, last.text) for kind, _ in before[same:][::-1]]
        found += [Event(kind, f"the {kind}", event.line, event.text) for kind, _ in around[same:]]
        found.append(event)
        before, last = around, event
    found += [Event("end", f"the end of the {kind}", last.line, last.text) for kind, _ in before[::-1]]
    return found
