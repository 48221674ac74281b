"""Whether a mutant is noticed: a finding that the kernel itself does not have, and that names what was changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftgate.races.evidence import WRITE_WRITE, Conflict, Evidence, Setup
from driftgate.races.fast import Program
from driftgate.races.kernel import Kernel
from driftgate.races.mutation.mutants import ALL_STORE, Mutant
from driftgate.races.proofs.flow import around

Key = tuple[str, int, int, bool, bool]


@dataclass(frozen=True)
class Outcome:
    """What the launches said about one mutant."""

    killed: bool
    """At the warp width that was asked for."""
    narrow: bool
    """At warp width 1, where every thread counts for itself."""
    reached: bool
    """Whether some thread executed what was changed."""
    finding: str
    """The report that names the change, if any."""


class Hunt:
    """A kernel with its launches, compiled once, and its mutants run one by one.

    A report names a barrier that is gone if the barrier stands between its two accesses, with no other one on the way;
    a store if it is one of the accesses; a guard if it is a store inside the branch, or a fault of an access in there.
    It is new if the kernel itself has none of this kind at these accesses.
    """

    def __init__(self, kernel: Kernel, launches: Sequence[Setup], warp: int) -> None:
        self.kernel, self.launches, self.warp = kernel, tuple(launches), warp
        self.program = Program(kernel, switches=True)
        self.clean = [self.program.run(launch) for launch in self.launches]
        self.known = {
            width: {_key(c) for e in self.clean for c in e.conflicts if _counts(c, width)} for width in {1, warp}
        }
        self.faults = {(f.kind, f.site) for e in self.clean for f in e.faults}

    def run(self, mutant: Mutant) -> Outcome:
        """Run ``mutant`` on each launch until one kills it."""
        narrow, reached = "", False
        for launch in self.launches:
            evidence = self.program.run(launch, *mutant.switches)
            reached = reached or self._reached(mutant, evidence)
            for width in (self.warp, 1):
                finding = next(self._named(mutant, evidence, width), "")
                if finding and width == self.warp:
                    return Outcome(True, True, True, finding)
                narrow = narrow or finding
        return Outcome(False, bool(narrow), reached, narrow)

    def _reached(self, mutant: Mutant, evidence: Evidence) -> bool:
        barriers = (b.site for b in self.kernel.barriers if b.number == mutant.barrier)
        return all(any(evidence.hits[s] for s in sites) for sites in (tuple(barriers), mutant.stores) if sites)

    def _named(self, mutant: Mutant, evidence: Evidence, width: int) -> Iterator[str]:
        """The new findings that name what ``mutant`` changed: those of its stores first."""
        if mutant.barrier is None:
            for fault in evidence.faults:
                if (fault.kind, fault.site) not in self.faults and fault.site in mutant.accesses:
                    yield f"{fault.kind}, {self.kernel.sites[fault.site].where}"
        named = [c for c in evidence.conflicts if _counts(c, width) and _key(c) not in self.known[width]]
        for conflict in sorted(named, key=lambda c: not _sites(c) & set(mutant.stores)):
            if self._blames(mutant, conflict):
                value = "" if conflict.changing else ", same value"
                places = " and ".join(self.kernel.sites[s].where for s in sorted(_sites(conflict)))
                yield f"{conflict.kind} on {conflict.storage}{value}, {places}"

    def _blames(self, mutant: Mutant, conflict: Conflict) -> bool:
        if mutant.barrier is not None:
            return conflict.changing and self._divided(mutant.barrier, conflict)
        # That all threads store one value is what the report of equal writes is for; else it takes a change.
        alike = (mutant.kind, conflict.kind) == (ALL_STORE, WRITE_WRITE)
        return (conflict.changing or alike) and bool(_sites(conflict) & set(mutant.stores))

    def _divided(self, barrier: int, conflict: Conflict) -> bool:
        """Whether ``barrier`` stands between the two accesses, on a way that passes no other barrier."""
        way = around(self.kernel, barrier)
        before, after = ({site for site, _ in reached} for reached in (way.before, way.after))
        one, other = conflict.first.site, conflict.second.site
        return (one in before and other in after) or (other in before and one in after)


def _sites(conflict: Conflict) -> set[int]:
    return {conflict.first.site, conflict.second.site}


def _key(conflict: Conflict) -> Key:
    changing = conflict.changing and conflict.kind == WRITE_WRITE
    return conflict.kind, conflict.first.site, conflict.second.site, conflict.between_blocks, changing


def _counts(conflict: Conflict, width: int) -> bool:
    return conflict.between_blocks or conflict.distance >= width or (conflict.same_statement and conflict.changing)
