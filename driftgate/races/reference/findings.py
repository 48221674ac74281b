"""What the reference engine collects during a launch: one entry for each fault and each pair of sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from driftgate.races.evidence import READ_WRITE, WRITE_WRITE, Access, Conflict, Fault
from driftgate.races.kernel import Storage
from driftgate.races.reference.accesses import Pair


class Findings:
    """Conflicts, faults and hits of a launch.

    A conflict's ``count`` is its bytes, added up over epochs and blocks; a fault's the executions by a thread. A vector
    access counts once, with its first element that is wrong.
    """

    def __init__(self, writes: np.ndarray) -> None:
        self.writes = writes
        """By site: whether it writes."""
        self.hits = np.zeros(len(writes), np.int64)
        self._faults: dict[tuple[str, int], Fault] = {}
        self._conflicts: dict[tuple[int, int, bool], Conflict] = {}

    @property
    def faults(self) -> tuple[Fault, ...]:
        """By site."""
        return tuple(sorted(self._faults.values(), key=lambda f: (f.site, f.kind)))

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """By sites."""
        return tuple(conflict for _, conflict in sorted(self._conflicts.items()))

    def fault(self, kind: str, site: int, thread: int, block: int, index: int, count: int) -> None:
        """Note a fault: the first of a kind and site is kept as the example."""
        known = self._faults.get((kind, site))
        if known is None:
            self._faults[kind, site] = Fault(kind, site, thread, block, index, count)
        else:
            self._faults[kind, site] = replace(known, count=known.count + count)

    def conflict(
        self, pair: Pair, storage: Storage, cell_bytes: int, blocks: tuple[int, int], epoch: int, between_blocks: bool
    ) -> None:
        """Note a conflict: the farthest pair of threads of two sites is kept as the example."""
        first, second = (
            Access(site, thread, block, bool(self.writes[site]))
            for site, thread, block in zip(pair.sites, pair.threads, blocks, strict=True)
        )
        found = Conflict(
            WRITE_WRITE if first.write and second.write else READ_WRITE,
            first,
            second,
            storage.name,
            pair.cell * cell_bytes,
            epoch,
            0 if between_blocks else pair.distance,
            pair.same_statement and not between_blocks,
            between_blocks,
            pair.changing,
            pair.cells * cell_bytes,
        )
        key = (*pair.sites, between_blocks)
        known = self._conflicts.get(key)
        if known is not None:
            example = found if found.distance > known.distance else known
            found = replace(
                example,
                same_statement=known.same_statement or found.same_statement,
                changing=known.changing or found.changing,
                count=known.count + found.count,
            )
        self._conflicts[key] = found
