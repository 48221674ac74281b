"""Faults that can be put into a kernel, one at a time: barriers, guards and indices, each with what it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from driftgate.races.fast.setting import GUARD, UNGUARD, WIDEN
from driftgate.races.kernel import (
    LOCAL,
    Bind,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Seq,
    Stmt,
    Store,
    Var,
    While,
    expressions,
    statements,
    walk,
)
from driftgate.races.proofs.flow import around

BARRIER, SINGLE_WRITER = "barrier deletion", "single writer without barrier"
ALL_STORE, WIDENED = "all threads store", "widened index"
CLASSES = (BARRIER, SINGLE_WRITER, ALL_STORE, WIDENED)


@dataclass(frozen=True)
class Mutant:
    """One change of a kernel, and the switches of the fast engine that make it."""

    kind: str
    """One of `CLASSES`."""
    switches: tuple[int, ...]
    """One or two: see `driftgate.races.fast.setting`."""
    barrier: int | None
    """Number of the barrier that is gone."""
    stores: tuple[int, ...]
    """Sites of the stores that are changed."""
    description: str
    """What was done, with the line of the lowered kernel."""
    guard: int | None = None
    """Site of the branch that is always taken."""
    accesses: frozenset[int] = frozenset()
    """Sites of the loads and stores in what is changed: a report of one of them names it."""


def mutants(kernel: Kernel) -> tuple[Mutant, ...]:
    """All mutants of ``kernel``, in the order of `CLASSES` and then of the program.

    - Each barrier is deleted.
    - For each store under a guard, one thread of the block is left to store, and the next barrier behind it is deleted
      (where there is none, the last before it).
    - Each guard is always passed. A guard is a branch around a store whose condition depends on the thread: directly,
      through bound variables or as the index of a load; what a thread keeps in its own arrays is not followed. A
      branch whose other side stores to the same memory chooses what is stored, not who stores, and is no guard.
    - Each store of odd threads goes one element further.

    Stores are those to shared and device memory.
    """
    guarded = list(_guarded(kernel))
    return (
        *(_deletion(kernel, barrier.number) for barrier in kernel.barriers),
        *(m for store, guards in guarded if guards for m in _single_writer(kernel, store)),
        *_unguarded(kernel, guarded),
        *(_widened(kernel, store) for store in kernel.stores),
    )


def _at(kernel: Kernel, stmt: Store | If) -> str:
    site = kernel.sites[stmt.site]
    return f"line {site.line}: {site.text}"


def _deletion(kernel: Kernel, number: int) -> Mutant:
    (barrier,) = (b for b in kernel.barriers if b.number == number)
    line = kernel.sites[barrier.site].line
    return Mutant(BARRIER, (number + 1,), number, (), f"barrier {number} (line {line}) is gone")


def _single_writer(kernel: Kernel, store: Store) -> Iterator[Mutant]:
    number = _nearest(kernel, store.site)
    if number is not None:
        yield Mutant(
            SINGLE_WRITER,
            (GUARD + store.site, number + 1),
            number,
            (store.site,),
            f"thread 0 alone stores and {_deletion(kernel, number).description}: {_at(kernel, store)}",
        )


def _nearest(kernel: Kernel, site: int) -> int | None:
    """The barrier that a thread reaches first behind ``site``, else the last one before it; None without barriers."""
    ways = [(barrier, around(kernel, barrier.number)) for barrier in kernel.barriers]
    behind = [b for b, way in ways if any(site == s for s, _ in way.before)]
    if behind:
        # In a loop the next barrier may stand above the store.
        return min(behind, key=lambda b: (b.site < site, b.number)).number
    return next((b.number for b, way in reversed(ways) if any(site == s for s, _ in way.after)), None)


def _unguarded(kernel: Kernel, guarded: list[tuple[Store, tuple[If, ...]]]) -> Iterator[Mutant]:
    inside: dict[If, list[int]] = {}
    for store, guards in guarded:
        for guard in guards:
            inside.setdefault(guard, []).append(store.site)
    for guard, sites in sorted(inside.items(), key=lambda entry: entry[0].site):
        text = f"always taken: {_at(kernel, guard)}"
        yield Mutant(
            ALL_STORE, (UNGUARD + guard.site,), None, tuple(sites), text, guard.site, frozenset(_accesses(guard.then))
        )


def _widened(kernel: Kernel, store: Store) -> Mutant:
    text = f"odd threads go one element further: {_at(kernel, store)}"
    return Mutant(WIDENED, (WIDEN + store.site,), None, (store.site,), text, None, frozenset({store.site}))


def _accesses(body: Stmt) -> Iterator[int]:
    for stmt in statements(body):
        if isinstance(stmt, Store):
            yield stmt.site
        for expr in expressions(stmt):
            yield from (part.site for part in walk(expr) if isinstance(part, Load))


def _guarded(kernel: Kernel) -> Iterator[tuple[Store, tuple[If, ...]]]:
    """Each store to memory that threads share, with the guards around it, outermost first."""
    depends = _by_thread(kernel)

    def visit(stmt: Stmt, guards: tuple[If, ...]) -> Iterator[tuple[Store, tuple[If, ...]]]:
        match stmt:
            case Store() if stmt.buffer.scope != LOCAL:
                yield stmt, tuple(g for g in guards if not _stores(g.otherwise, stmt))
            case Seq():
                for part in stmt.body:
                    yield from visit(part, guards)
            case For() | While():
                yield from visit(stmt.body, guards)
            case If():
                yield from visit(stmt.then, (*guards, stmt) if depends(stmt.condition) else guards)
                if stmt.otherwise is not None:
                    yield from visit(stmt.otherwise, guards)

    yield from visit(kernel.body, ())


def _stores(stmt: Stmt | None, like: Store) -> bool:
    return stmt is not None and any(
        isinstance(s, Store) and s.buffer.storage is like.buffer.storage for s in statements(stmt)
    )


def _by_thread(kernel: Kernel) -> Callable[[Expr], bool]:
    """Whether an expression depends on which thread evaluates it."""
    found: set[Var] = {var for var, extent in kernel.block if extent > 1}

    def depends(expr: Expr) -> bool:
        return any(part in found for part in walk(expr) if isinstance(part, Var))

    for stmt in statements(kernel.body):
        if (isinstance(stmt, Bind) and depends(stmt.value)) or (
            isinstance(stmt, For) and (depends(stmt.start) or depends(stmt.extent))
        ):
            found.add(stmt.var)
    return depends
