"""That a barrier can go without a new conflict: for a mutant without it that no run kills.

An over-approximation: any two threads of a block, every path, unknown values for whatever memory holds. A proof is
one for the deletion of this barrier alone, and for a kernel whose threads meet at barriers uniformly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from driftgate.outcome import UsageError
from driftgate.races.kernel import Kernel
from driftgate.races.proofs.digits import Term
from driftgate.races.proofs.flow import Around, Loop, around
from driftgate.races.proofs.queries import GaveUp, Overlaps, model
from driftgate.races.proofs.symbolic_trace import SymbolicAccess, Trace, parameters, point

PROVED, NOT_PROVED = "proved", "not proved"


@dataclass(frozen=True)
class Redundancy:
    """Whether the argument for a barrier's redundancy went through."""

    verdict: str
    """``proved`` or ``not proved``. The latter is no proof that the barrier is needed."""
    reason: str
    pairs: int
    """Pairs of accesses that were argued about."""
    storage: str = ""
    sites: tuple[int, int] | None = None
    """The access before the barrier and the one behind it that may meet."""
    seconds: float = 0.0


def redundant(kernel: Kernel, number: int) -> Redundancy:
    """Whether barrier ``number`` of ``kernel`` can be deleted. UsageError where there is no such barrier."""
    if number not in {b.number for b in kernel.barriers}:
        raise UsageError(f"kernel {kernel.name} has no barrier {number}: it has {len(kernel.barriers)}")
    begun = time.perf_counter()
    return replace(_Argument(kernel, around(kernel, number)).result(), seconds=time.perf_counter() - begun)


class _Argument:
    def __init__(self, kernel: Kernel, where: Around) -> None:
        import z3

        self.kernel, self.where = kernel, where
        scalars = parameters(kernel, {})
        one, other = point(kernel, "t1", "b"), point(kernel, "t2", "b")
        self.first, self.second = Trace(kernel, one, scalars), Trace(kernel, other, scalars)
        different = z3.Or([x != y for x, y in zip(one.threads, other.threads, strict=True)])
        self.facts = [*self.first.facts, *self.second.facts, different]
        self.overlaps = Overlaps(self.facts)

    def result(self) -> Redundancy:
        if self.kernel.threads < 2:
            return Redundancy(NOT_PROVED, "a block has no two threads to argue about", 0)
        pairs = 0
        reached: set[int] = set()
        for a, b, facts in self._pairs():
            pairs += 1
            what = f"{self._at(a)} before it and {self._at(b)} behind it"
            try:
                for access in (a, b):
                    # An argument about what nobody reaches would hold of anything.
                    if access.site not in reached and model([*self.facts, access.condition]) is None:
                        return Redundancy(NOT_PROVED, f"no thread reaches {self._at(access)}", pairs)
                    reached.add(access.site)
                met = model([*self.facts, a.condition, b.condition, *facts, self.overlaps(a, b)]) is not None
            except GaveUp:
                return Redundancy(NOT_PROVED, f"the solver gave up on {what}", pairs, a.storage.name, (a.site, b.site))
            if met:
                return Redundancy(NOT_PROVED, f"{what} may meet", pairs, a.storage.name, (a.site, b.site))
        reason = f"none of the {pairs} pairs of accesses before and behind it, one of them a write, can meet"
        return Redundancy(PROVED, reason, pairs)

    def _pairs(self) -> Iterator[tuple[SymbolicAccess, SymbolicAccess, list[Term]]]:
        before, after = _by_site(self.first), _by_site(self.second)
        for site, wrapped in sorted(self.where.before, key=_order):
            for other, other_wrapped in sorted(self.where.after, key=_order):
                for a in before.get(site, ()):
                    for b in after.get(other, ()):
                        if a.storage is b.storage and (a.write or b.write):
                            yield a, b, list(self._iterations(a, b, wrapped | other_wrapped))

    def _iterations(self, a: SymbolicAccess, b: SymbolicAccess, wrapped: frozenset[Loop]) -> Iterator[Term]:
        """How the iterations of the two threads relate, which meet at the barrier in the same one."""
        for loop in self.where.loops:
            if loop not in a.iterations or loop not in b.iterations:
                return
            mine, other = a.iterations[loop], b.iterations[loop]
            if loop in wrapped:
                # The one before the barrier is in an earlier iteration, and inner loops have begun anew.
                yield mine < other
                return
            yield mine == other

    def _at(self, access: SymbolicAccess) -> str:
        does = "a write" if access.write else "a read"
        return f"{does} of {access.storage.name} ({self.kernel.sites[access.site].where})"


def _by_site(trace: Trace) -> dict[int, list[SymbolicAccess]]:
    found: dict[int, list[SymbolicAccess]] = {}
    for access in trace.accesses:
        found.setdefault(access.site, []).append(access)
    return found


def _order(entry: tuple[int, frozenset[Loop]]) -> tuple[int, list[int]]:
    return entry[0], sorted(loop.site for loop in entry[1])
