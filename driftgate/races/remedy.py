"""Where a barrier would go, found by trying: it is put in, the kernel runs again, and the conflict has to be gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from driftgate.races.defects import Defect
from driftgate.races.evidence import DIVERGENT, READ_WRITE, Setup
from driftgate.races.fast import Program
from driftgate.races.kernel import (
    SHARED,
    Barrier,
    For,
    If,
    Kernel,
    Load,
    Seq,
    Site,
    Stmt,
    Store,
    While,
    expressions,
    statements,
    walk,
)


@dataclass(frozen=True)
class Remedy:
    """A barrier before ``site``'s statement takes the conflict away, as a run with it showed."""

    site: int
    still: str
    """What is left to do: empty where nothing is."""


def remedy(kernel: Kernel, setups: Sequence[Setup], defect: Defect) -> Remedy | None:
    """A place for one barrier that ends ``defect``, a read-write race in a block; None where no single one does."""
    conflict = defect.conflict
    if conflict is None or conflict.between_blocks or defect.kind != READ_WRITE:
        return None
    reads_and_writes = {conflict.first.site, conflict.second.site}
    for later in sorted(reads_and_writes, reverse=True):
        for place in _places(kernel.body, later):
            if _ends(kernel, place, setups, reads_and_writes):
                written = [s.site for s in kernel.stores if s.site in reads_and_writes]
                alone = any(
                    c.first.site == c.second.site and c.first.site in written
                    for c in Program(with_barrier(kernel, place)).run(setups[0]).conflicts
                )
                return Remedy(_site_of(place), "one thread alone should store" if alone else "")
    return None


def with_barrier(kernel: Kernel, place: Stmt) -> Kernel:
    """``kernel`` with a barrier before the statement ``place``."""
    number, site = len(kernel.barriers), len(kernel.sites)
    barrier = Barrier(SHARED, number, site)
    label = Site(site, "barrier", None, 'T.tvm_storage_sync("shared")', 0)
    return replace(kernel, body=_before(kernel.body, place, barrier), sites=(*kernel.sites, label))


def _ends(kernel: Kernel, place: Stmt, setups: Sequence[Setup], sites: set[int]) -> bool:
    program = Program(with_barrier(kernel, place))
    for setup in setups:
        evidence = program.run(setup)
        if any(f.kind == DIVERGENT for f in evidence.faults):
            return False
        if any({c.first.site, c.second.site} == sites and c.kind == READ_WRITE for c in evidence.conflicts):
            return False
    return True


def _places(body: Stmt, site: int) -> list[Stmt]:
    """The statement of ``site`` and those around it, innermost first."""
    return [s for s in reversed(_path(body, site)) if not isinstance(s, Seq)]


def _path(stmt: Stmt, site: int) -> list[Stmt]:
    if getattr(stmt, "site", None) == site or any(
        isinstance(e, Load) and e.site == site for x in expressions(stmt) for e in walk(x)
    ):
        return [stmt]
    for part in _parts(stmt):
        if path := _path(part, site):
            return [stmt, *path]
    return []


def _parts(stmt: Stmt) -> tuple[Stmt, ...]:
    match stmt:
        case Seq():
            return stmt.body
        case For() | While():
            return (stmt.body,)
        case If():
            return (stmt.then,) if stmt.otherwise is None else (stmt.then, stmt.otherwise)
    return ()


def _before(stmt: Stmt, place: Stmt, barrier: Barrier) -> Stmt:
    if stmt is place:
        return Seq((barrier, stmt))
    changes: dict[str, Any] = {}
    match stmt:
        case Seq():
            changes = {"body": tuple(_before(part, place, barrier) for part in stmt.body)}
        case For() | While():
            changes = {"body": _before(stmt.body, place, barrier)}
        case If():
            other = None if stmt.otherwise is None else _before(stmt.otherwise, place, barrier)
            changes = {"then": _before(stmt.then, place, barrier), "otherwise": other}
    return replace(stmt, **changes) if changes else stmt


def _site_of(stmt: Stmt) -> int:
    return next(s.site for s in statements(stmt) if isinstance(s, Store | For | While | If | Barrier))
