"""Questions to the solver: can two accesses touch a common byte?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftgate.races.kernel import bytes_of, lanes_of
from driftgate.races.proofs.digits import Term, equal, linear
from driftgate.races.proofs.symbolic_trace import SymbolicAccess

TIMEOUT = 20.0
"""Seconds for one question."""
DIGIT_TIMEOUT = 3.0
"""Seconds for a question whose answer only makes another one easier."""


class GaveUp(Exception):
    """The solver did not answer in time."""


def solver(facts: Sequence[Term], timeout: float = TIMEOUT) -> Any:
    """A solver that takes ``facts`` for granted."""
    import z3

    made = z3.Solver()
    made.set("timeout", int(timeout * 1000))
    made.add(*facts)
    return made


def model(facts: Sequence[Term]) -> Any:
    """Values under which all ``facts`` hold, or None where there are none. Raises GaveUp."""
    import z3

    asked = solver(facts)
    answer = asked.check()
    if answer == z3.unknown:
        raise GaveUp
    return asked.model() if answer == z3.sat else None


class Overlaps:
    """Says when two accesses to one storage have a byte in common, given ``facts`` about both threads."""

    def __init__(self, facts: Sequence[Term]) -> None:
        self.facts = tuple(facts)
        self.known: dict[tuple[Term, Term], bool] = {}
        self.offsets = 0

    def __call__(self, first: SymbolicAccess, second: SymbolicAccess) -> Term:
        import z3

        units = [lanes_of(a.buffer.dtype) * bytes_of(a.buffer.dtype) for a in (first, second)]
        if units[0] == units[1]:
            units = [1, 1]
        return z3.Or([self._meet(first, a, units[0], second, b, units[1]) for a in first.lanes for b in second.lanes])

    def _meet(
        self,
        first: SymbolicAccess,
        mine: tuple[Term, int],
        unit: int,
        second: SymbolicAccess,
        other: tuple[Term, int],
        other_unit: int,
    ) -> Term:
        import z3

        a, inside = self._element(*mine, unit)
        b, other_inside = self._element(*other, other_unit)
        return z3.And(
            *inside,
            *other_inside,
            *equal(
                linear(a),
                linear(b),
                lambda c: self._holds(z3.And(first.condition, *inside), c),
                lambda c: self._holds(z3.And(second.condition, *other_inside), c),
            ),
        )

    def _element(self, start: Term, count: int, unit: int) -> tuple[Term, list[Term]]:
        """Any element (or byte) of a range, and the condition that it lies in the range."""
        import z3

        if count * unit == 1:
            return start, []
        self.offsets += 1
        offset = z3.Int(f"offset.{self.offsets}")
        return start * unit + offset, [offset >= 0, offset < count * unit]

    def _holds(self, condition: Term, fact: Term) -> bool:
        import z3

        key = (condition, fact)
        if key not in self.known:
            asked = solver((*self.facts, condition, z3.Not(fact)), DIGIT_TIMEOUT)
            self.known[key] = asked.check() == z3.unsat
        return self.known[key]
