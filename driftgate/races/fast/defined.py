"""Which of a thread's own arrays are written before they are read, whatever the input: those need no watch."""

from __future__ import annotations

from typing import Any

from driftgate.races.kernel import (
    LOCAL,
    Bind,
    Broadcast,
    Cast,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Op,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Storage,
    Store,
    Var,
    While,
    bytes_of,
    expressions,
    lanes_of,
    walk,
)

MOST_ITERATIONS = 64
"""Loops with more iterations than this are not unrolled."""


def watched(kernel: Kernel) -> frozenset[Storage]:
    """The local storages of which some byte may be read before it was written, or be given an undefined value."""
    locals_ = {b.storage for b in kernel.buffers if b.scope == LOCAL}
    suspects: set[Storage] = set()
    while True:
        found = suspects | _Walk(frozenset(suspects)).run(kernel.body)
        if found == suspects:
            return frozenset(suspects & locals_)
        suspects = found


class _Walk:
    """One pass in program order. ``written`` are the bytes that are defined on every path to where it stands."""

    def __init__(self, suspects: frozenset[Storage]) -> None:
        self.suspects = suspects
        self.read_early: set[Storage] = set()
        self.values: dict[Var, int] = {}

    def run(self, body: Stmt) -> set[Storage]:
        self.visit(body, {})
        return self.read_early

    def visit(self, stmt: Stmt, written: dict[Storage, frozenset[int]]) -> dict[Storage, frozenset[int]]:
        for expr in expressions(stmt):
            self.reads(expr, written)
        match stmt:
            case Seq():
                for part in stmt.body:
                    written = self.visit(part, written)
            case Store() if stmt.buffer.scope == LOCAL:
                if self.tainted(stmt.value):
                    self.read_early.add(stmt.buffer.storage)
                storage = stmt.buffer.storage
                return {**written, storage: written.get(storage, frozenset()) | self.bytes(stmt)}
            case For():
                if not (isinstance(stmt.start, Const) and isinstance(stmt.extent, Const)):
                    self.visit(stmt.body, written)  # perhaps not once
                    return written
                start, extent = int(stmt.start.value), int(stmt.extent.value)
                if extent > MOST_ITERATIONS:
                    self.visit(stmt.body, written)  # with an unknown variable: its stores count for nothing
                    return written
                for value in range(start, start + extent):
                    self.values[stmt.var] = value
                    written = self.visit(stmt.body, written)
                self.values.pop(stmt.var, None)
            case While():
                self.visit(stmt.body, written)
            case If():
                then = self.visit(stmt.then, written)
                other = self.visit(stmt.otherwise, written) if stmt.otherwise is not None else written
                return {s: then.get(s, frozenset()) & other.get(s, frozenset()) for s in then}
            case Bind() | _:
                pass
        return written

    def reads(self, expr: Expr, written: dict[Storage, frozenset[int]]) -> None:
        for part in walk(expr):
            if isinstance(part, Load) and part.buffer.scope == LOCAL:
                needed = self.places(part)
                have = written.get(part.buffer.storage, frozenset())
                if needed is None:
                    size = part.buffer.storage.bytes or 0
                    needed = frozenset(range(size))
                if not needed <= have:
                    self.read_early.add(part.buffer.storage)

    def tainted(self, value: Expr) -> bool:
        return any(isinstance(part, Load) and part.buffer.storage in self.suspects for part in walk(value))

    def bytes(self, store: Store) -> frozenset[int]:
        """What the store writes; nothing where that is unknown."""
        return self.places(store) or frozenset()

    def places(self, access: Load | Store) -> frozenset[int] | None:
        places = _evaluate(access.index, self.values)
        if places is None:
            return None
        size = bytes_of(access.buffer.dtype) * lanes_of(access.buffer.dtype)
        return frozenset(byte for place in places for byte in range(place * size, (place + 1) * size))


def _evaluate(expr: Expr, values: dict[Var, int]) -> list[int] | None:
    """The values of an integer expression, one a lane; None where it depends on more than ``values``."""
    match expr:
        case Const():
            return [int(expr.value)]
        case Var():
            return [values[expr]] if expr in values else None
        case Cast():
            return _evaluate(expr.value, values)
        case Broadcast():
            inner = _evaluate(expr.value, values)
            return inner and inner * expr.lanes
        case Ramp():
            base, stride = _evaluate(expr.base, values), _evaluate(expr.stride, values)
            return base and stride and [base[0] + lane * stride[0] for lane in range(expr.lanes)]
        case Op() if expr.name in _INTEGER:
            sides = [_evaluate(arg, values) for arg in expr.args]
            if None in sides:
                return None
            left, right = (side or [] for side in sides)
            lanes = max(len(left), len(right))
            return [_INTEGER[expr.name](left[n % len(left)], right[n % len(right)]) for n in range(lanes)]
        case Shuffle() | _:
            return None


_INTEGER: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}
