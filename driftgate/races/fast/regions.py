"""A kernel's body cut where its threads meet: what lies between can run thread after thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from driftgate.races.kernel import (
    Barrier,
    Bind,
    Expr,
    For,
    If,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
    While,
    expressions,
    meets,
    statements,
    walk,
)


@dataclass(frozen=True, eq=False)
class Region:
    """Statements that every thread executes without waiting."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """A statement whose value takes some of it from other lanes of the warp."""

    statement: Bind | Store
    shuffles: tuple[Shuffle, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop in which threads meet: all of them have to run it equally often."""

    statement: For | While
    body: tuple[Item, ...]


@dataclass(frozen=True, eq=False)
class Branch:
    """A branch in which threads meet: all of them have to take the same side."""

    statement: If
    then: tuple[Item, ...]
    otherwise: tuple[Item, ...]


Item = Region | Exchange | Loop | Branch | Barrier


def cut(stmt: Stmt) -> tuple[Item, ...]:
    """``stmt`` as items in program order."""
    items: list[Item] = []
    run: list[Stmt] = []

    def close() -> None:
        if run:
            items.append(Region(tuple(run)))
            run.clear()

    for part in _flat(stmt):
        if not meets(part):
            run.append(part)
            continue
        close()
        match part:
            case Barrier():
                items.append(part)
            case For() | While():
                items.append(Loop(part, cut(part.body)))
            case If():
                items.append(Branch(part, cut(part.then), cut(part.otherwise) if part.otherwise is not None else ()))
            case Bind() | Store():
                found = tuple(e for x in expressions(part) for e in walk(x) if isinstance(e, Shuffle))
                items.append(Exchange(part, found))
    close()
    return tuple(items)


def _flat(stmt: Stmt) -> Iterator[Stmt]:
    if isinstance(stmt, Seq):
        for part in stmt.body:
            yield from _flat(part)
    else:
        yield stmt


def crossing(items: tuple[Item, ...]) -> frozenset[Var]:
    """Bound variables that are used in another item than the one that binds them."""
    home: dict[Var, int] = {}
    found: set[Var] = set()

    def note(number: int, stmts: tuple[Stmt, ...], used: tuple[Expr, ...] = ()) -> None:
        for stmt in stmts:
            for inner in statements(stmt):
                look(number, expressions(inner))
                if isinstance(inner, Bind):
                    home.setdefault(inner.var, number)
        look(number, used)

    def look(number: int, used: tuple[Expr, ...]) -> None:
        for expr in used:
            for part in walk(expr):
                if isinstance(part, Var) and home.get(part, number) != number:
                    found.add(part)

    counter = iter(range(10**9))

    def visit(parts: tuple[Item, ...]) -> None:
        for item in parts:
            number = next(counter)
            match item:
                case Region():
                    note(number, item.body)
                case Exchange():
                    note(number, (item.statement,))
                    # Its value is computed in one pass over the threads and stored in another.
                    if isinstance(item.statement, Bind):
                        found.add(item.statement.var)
                case Loop():
                    note(number, (), expressions(item.statement))
                    visit(item.body)
                case Branch():
                    note(number, (), expressions(item.statement))
                    visit(item.then)
                    visit(item.otherwise)

    visit(items)
    return frozenset(found)
