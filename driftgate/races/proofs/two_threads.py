"""Two symbolic threads of a launch, what is assumed about them, and when two of their accesses conflict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import Any

from driftgate.races.kernel import SHARED, Kernel
from driftgate.races.proofs.assumptions import Assumptions
from driftgate.races.proofs.digits import Term
from driftgate.races.proofs.queries import Overlaps, model
from driftgate.races.proofs.symbolic import is_integer
from driftgate.races.proofs.symbolic_trace import Point, SymbolicAccess, Trace, parameters, point

LIMITS = (0, 1, 2, 4, 16)
"""What each parameter of a witness is tried to stay within, smallest first, so that its launch is quick to run."""


@dataclass(frozen=True)
class Meeting:
    """Two accesses of unordered threads to common bytes."""

    changing: bool
    """False where both surely write the same."""
    values: Any
    """The solver's model: numbers for every unknown."""


class TwoThreads:
    """Any two threads of any launch, with the parameters that ``given`` and ``chosen`` fix."""

    def __init__(self, kernel: Kernel, given: Assumptions, chosen: Mapping[str, int], warp: int) -> None:
        scalars = parameters(kernel, {**given.fixed, **chosen})
        self.points = point(kernel, "t1", "b1"), point(kernel, "t2", "b2")
        self.first, self.second = (Trace(kernel, p, scalars, stable=True) for p in self.points)
        self.reads = (*self.first.reads, *self.second.reads)
        self.integers = {v.name: scalars[v.name] for v in kernel.scalars if is_integer(v.dtype)}
        self.warp = warp
        one, other = self.points
        self.one_warp = _warp(kernel, self.first, one, warp) == _warp(kernel, self.second, other, warp)
        self.facts = [*self.first.facts, *self.second.facts, *self._assumed(given), self._different()]
        self.overlaps = Overlaps(self.facts)

    def _assumed(self, given: Assumptions) -> Iterator[Term]:
        import z3

        for name, term in self.integers.items():
            yield term >= given.least.get(name, 0)
        for one, other in given.differ:
            yield self.integers[one] != self.integers[other]
        # An array matters only where the two threads read it, so that is where the assumptions are put.
        for read in self.reads:
            if read.array in given.entries:
                yield read.value >= given.entries[read.array]
        for a, b in combinations(self.reads, 2):
            if a.array == b.array and a.array in given.distinct:
                yield z3.Implies(a.index != b.index, z3.Or(a.value != b.value, a.value == -1))

    def _different(self) -> Term:
        import z3

        a, b = self.points
        return z3.Or([x != y for x, y in zip(a.threads + a.blocks, b.threads + b.blocks, strict=True)])

    def pairs(self) -> Iterator[tuple[SymbolicAccess, SymbolicAccess]]:
        """Accesses to one storage, one of them a write. The threads are interchangeable: no pair comes twice."""
        for i, j in combinations_with_replacement(range(len(self.first.accesses)), 2):
            a, b = self.first.accesses[i], self.second.accesses[j]
            if a.storage is b.storage and (a.write or b.write):
                yield a, b

    def meet(self, a: SymbolicAccess, b: SymbolicAccess) -> Meeting | None:
        """How the first thread in ``a`` and the second in ``b`` conflict, or None. Raises GaveUp."""
        import z3

        facts = [*self.facts, a.condition, b.condition, self._unordered(a, b), self.overlaps(a, b)]
        found = model(facts)
        if found is None:
            return None
        if a.write and b.write and a.buffer is b.buffer and a.value.sort() == b.value.sort():
            facts.append(z3.Not(z3.And(a.value == b.value, *_same(a, b))))
            if model(facts) is None:
                return Meeting(False, found)
        return Meeting(True, self._smallest(facts))

    def _unordered(self, a: SymbolicAccess, b: SymbolicAccess) -> Term:
        import z3

        one, other = self.points
        same_block = z3.And([x == y for x, y in zip(one.blocks, other.blocks, strict=True)])
        within: Term = z3.BoolVal(a.epoch == b.epoch)
        if self.warp > 1 and not (a.site == b.site and a.write):
            within = z3.And(within, z3.Not(self.one_warp))
        return z3.If(same_block, within, z3.BoolVal(a.storage.scope != SHARED))

    def _smallest(self, facts: list[Term]) -> Any:
        import z3

        facts, found = list(facts), None
        for term in (t for t in self.integers.values() if not z3.is_int_value(t)):
            for limit in LIMITS:
                smaller = model([*facts, term <= limit])
                if smaller is not None:
                    facts.append(term <= limit)
                    found = smaller
                    break
        return model(facts) if found is None else found


def _warp(kernel: Kernel, trace: Trace, where: Point, warp: int) -> Term:
    """The number of a thread's warp in its block."""
    import z3

    linear: Term = z3.IntVal(0)
    stride = 1
    for term, (_, extent) in zip(where.threads, kernel.block, strict=True):
        linear, stride = linear + term * stride, stride * extent
    return trace.terms.division.divide(linear, warp)[0]


def _same(a: SymbolicAccess, b: SymbolicAccess) -> list[Term]:
    """That the elements are the same, one for one."""
    import z3

    if [n for _, n in a.lanes] != [n for _, n in b.lanes]:
        return [z3.BoolVal(False)]
    return [x == y for (x, _), (y, _) in zip(a.lanes, b.lanes, strict=True)]
