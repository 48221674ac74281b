"""The accesses to one storage since the last barrier that orders them."""

from __future__ import annotations

from itertools import count

import numpy as np

from driftgate.races.kernel import Kernel, Storage, Store, bytes_of, statements
from driftgate.races.reference.accesses import Accesses
from driftgate.races.reference.memory import Memory

_EXECUTIONS = count()


def cell_bytes(kernel: Kernel, storage: Storage) -> int:
    """Bytes of the smallest element as which the kernel sees ``storage``."""
    return min(bytes_of(b.dtype) for b in (*kernel.buffers, *kernel.pointers) if b.storage is storage)


def written_storages(kernel: Kernel) -> set[Storage]:
    """Those in which accesses can conflict: the kernel writes them somewhere, and its threads share them."""
    return {store.buffer.storage for store in kernel.stores}


def writing_sites(kernel: Kernel) -> np.ndarray:
    """By site: whether it is a store."""
    writes = np.zeros(len(kernel.sites), bool)
    writes[[s.site for s in statements(kernel.body) if isinstance(s, Store)]] = True
    return writes


class Journal:
    """What threads did to one storage, and what it held before the first write."""

    def __init__(self, storage: Storage, memory: Memory, cell: int) -> None:
        self.storage, self.memory, self.cell = storage, memory, cell
        self.epoch = 0
        """Barriers that the block had passed when this began."""
        self.before: np.ndarray | None = None
        self._parts: list[Accesses] = []

    def note(
        self, site: int, threads: np.ndarray, elements: np.ndarray, dtype: np.dtype, data: np.ndarray | None
    ) -> None:
        """One execution of a load or, with ``data``, of a store that is about to happen.

        Thread ``threads[i]`` accesses element ``elements[i]`` of the storage seen as ``dtype``.
        """
        if data is not None and self.before is None:
            self.before = self.memory.seen_as(np.dtype(f"u{self.cell}")).copy()
        parts = dtype.itemsize // self.cell
        cells = (elements[:, None] * parts + np.arange(parts)).ravel()
        values = np.zeros(len(cells), np.uint64)
        if data is not None:
            values[:] = np.ascontiguousarray(data).view(f"u{self.cell}")
        threads = np.repeat(threads, parts)
        columns = np.full(len(cells), site), values, threads, np.full(len(cells), next(_EXECUTIONS))
        self._parts.append(Accesses(cells, threads, *columns))

    def close(self, epoch: int) -> tuple[Accesses | None, np.ndarray | None]:
        """All accesses, with the storage's cells before them where one was a write; the next begin at ``epoch``."""
        accesses = Accesses.joined(self._parts) if self._parts else None
        before = self.before
        self._parts, self.before, self.epoch = [], None, epoch
        return accesses, before
