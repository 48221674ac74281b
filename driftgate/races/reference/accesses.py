"""Which accesses conflict: pairs by different threads to a common byte, one of them a write, that nothing orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

WARP = 32
"""Lanes that may execute one statement together: the widest that any target of TVM has."""


@dataclass(frozen=True)
class Accesses:
    """Accesses to one storage, a row for every cell of each. A cell is the smallest element that the kernel accesses
    there; elements are aligned, so two accesses overlap exactly if they have a cell in common."""

    cell: np.ndarray
    actor: np.ndarray
    """Who is to be kept apart: the thread of a block, or the block of a launch."""
    site: np.ndarray
    value: np.ndarray
    """uint64: what a write left in the cell; 0 for reads."""
    thread: np.ndarray
    execution: np.ndarray
    """The same number for the accesses of one execution of one statement by all its threads."""

    def where(self, rows: np.ndarray) -> Accesses:
        """Those rows."""
        return Accesses(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @classmethod
    def joined(cls, parts: list[Accesses]) -> Accesses:
        """All of ``parts``, of which there is at least one."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))

    def by_block(self, block: int) -> Accesses:
        """One row for each cell, site and value, in the name of the block."""
        keys = np.stack([self.cell, self.site, self.value.view(np.int64)], axis=1)
        _, rows = np.unique(keys, axis=0, return_index=True)
        some = self.where(np.sort(rows))
        return Accesses(some.cell, np.full(len(rows), block), some.site, some.value, some.thread, some.execution)


@dataclass(frozen=True)
class Pair:
    """What two sites have in conflict in one storage and epoch."""

    sites: tuple[int, int]
    cells: int
    """Cells in conflict."""
    cell: int
    """One in which ``actors`` are farthest apart."""
    actors: tuple[int, int]
    threads: tuple[int, int]
    distance: int
    """Largest ``actor ^ actor`` of any pair in conflict."""
    same_statement: bool
    changing: bool


def conflicts(accesses: Accesses, writes: np.ndarray, before: np.ndarray) -> Iterator[Pair]:
    """Each pair of sites that conflict.

    ``writes`` says by site whether it writes. ``before`` has the cells as unsigned integers, as they were when the
    accesses began: a read and a write are ``changing`` if the write left something else.
    """
    contended = accesses.where(_contended(accesses, writes, len(before)))
    by_site = {int(site): contended.where(contended.site == site) for site in np.unique(contended.site)}
    for first, a in by_site.items():
        for second, b in by_site.items():
            if first > second or not (writes[first] or writes[second]):
                continue
            cells, distances = farthest(a, b)
            if not distances.any():
                continue
            if writes[first] and writes[second]:
                changing = _differing(a, b)
            else:
                changing = _changed(*((a, b) if writes[first] else (b, a)), before)
            same_statement = first == second and _within_execution(a)
            yield _pair(a, b, cells, distances, same_statement, changing)


def _contended(accesses: Accesses, writes: np.ndarray, cells: int) -> np.ndarray:
    """Whether a row's cell is accessed by two actors and written by one; other rows are in no conflict."""
    written, shared = np.zeros(cells, bool), np.zeros(cells, bool)
    some_actor = np.zeros(cells, accesses.actor.dtype)
    written[accesses.cell[writes[accesses.site]]] = True
    some_actor[accesses.cell] = accesses.actor
    shared[accesses.cell[some_actor[accesses.cell] != accesses.actor]] = True
    return (written & shared)[accesses.cell]


def farthest(a: Accesses, b: Accesses) -> tuple[np.ndarray, np.ndarray]:
    """The cells that both access, and for each the largest ``actor ^ actor``: 0 if one actor has it to itself.

    Found bit by bit from the top, for all cells at once: a bit can be set if some actor of ``a`` and some of ``b``
    differ as the bits above and this one say.
    """
    cells = np.intersect1d(a.cell, b.cell)
    bits = max(int(a.actor.max()), int(b.actor.max())).bit_length()
    at, actor = (column[np.isin(a.cell, cells)] for column in (np.searchsorted(cells, a.cell), a.actor))
    other_at, other = (column[np.isin(b.cell, cells)] for column in (np.searchsorted(cells, b.cell), b.actor))
    keys = np.unique(other_at << bits | other)
    best = np.zeros(len(cells), np.int64)
    for bit in reversed(range(bits)):
        guess = best | 1 << bit
        possible = np.isin((at << bits | actor ^ guess[at]) >> bit, keys >> bit)
        best[at[possible]] = guess[at[possible]]
    return cells, best


def _pair(
    a: Accesses, b: Accesses, cells: np.ndarray, distances: np.ndarray, same_statement: bool, changing: bool
) -> Pair:
    worst = int(distances.argmax())
    here, there = a.where(a.cell == cells[worst]), b.where(b.cell == cells[worst])
    one, other = np.unique(here.actor), np.unique(there.actor)
    i, j = np.argwhere(one[:, None] ^ other == distances[worst])[0]
    threads = here.thread[here.actor == one[i]][0], there.thread[there.actor == other[j]][0]
    return Pair(
        (int(a.site[0]), int(b.site[0])),
        int((distances > 0).sum()),
        int(cells[worst]),
        (int(one[i]), int(other[j])),
        (int(threads[0]), int(threads[1])),
        int(distances[worst]),
        same_statement,
        changing,
    )


def _within_execution(a: Accesses) -> bool:
    """Whether two threads of one warp accessed a cell in one execution of the statement."""
    together = _numbered(a.cell, a.execution, a.thread // WARP)
    _, first = np.unique(_numbered(together, a.thread), return_index=True)
    return bool((np.bincount(together[first]) > 1).any())


def _differing(a: Accesses, b: Accesses) -> bool:
    """Whether two actors, one of each side, left different values in a cell."""
    _, first = np.unique(_numbered(b.cell, b.actor, b.value), return_index=True)
    b = b.where(first)

    def matches(*names: str) -> np.ndarray:
        return _matches(a, b, *names)

    # Those of the same cell, less those of the same actor or value: the both are subtracted twice.
    left = matches("cell") - matches("cell", "actor") - matches("cell", "value") + matches("cell", "actor", "value")
    return bool((left > 0).any())


def _changed(written: Accesses, read: Accesses, before: np.ndarray) -> bool:
    """Whether some actor wrote something new to a cell that another one read."""
    new = written.where(written.value != before[written.cell])
    return bool((_matches(new, read, "cell") > _matches(new, read, "cell", "actor")).any())


def _matches(a: Accesses, b: Accesses, *names: str) -> np.ndarray:
    """For each row of ``a`` the number of rows of ``b`` that are the same in the columns ``names``."""
    rows = len(a.cell)
    numbers = _numbered(*(np.concatenate([getattr(a, name), getattr(b, name)]) for name in names))
    return np.bincount(numbers[rows:], minlength=len(numbers))[numbers[:rows]]


def _numbered(*columns: np.ndarray) -> np.ndarray:
    """Each row's number: the same for equal rows, below the number of rows."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, part = np.unique(column, return_inverse=True)
        _, numbers = np.unique(numbers * len(values) + part, return_inverse=True)
    return numbers
