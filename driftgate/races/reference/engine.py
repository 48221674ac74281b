"""The reference engine: a kernel on NumPy, all threads of a block in lockstep, every access kept and judged.

It is slow and meant to be evidently right: other engines are tested against it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driftgate.outcome import UsageError
from driftgate.races.evidence import Evidence, Setup
from driftgate.races.kernel import GLOBAL, LOCAL, SHARED, Barrier, Kernel, Storage, Var
from driftgate.races.reference.accesses import Accesses, conflicts
from driftgate.races.reference.arithmetic import numpy_dtype
from driftgate.races.reference.findings import Findings
from driftgate.races.reference.group import Group
from driftgate.races.reference.journal import Journal, cell_bytes, writing_sites, written_storages
from driftgate.races.reference.lanes import compiled
from driftgate.races.reference.lockstep import step
from driftgate.races.reference.memory import Memory


def run(kernel: Kernel, setup: Setup, *, warp: int | None = None, order: tuple[int, ...] | None = None) -> Evidence:
    """One launch of ``kernel``, block after block in the order of their numbers.

    With ``warp``, threads are in lockstep by warps of that many: between two barriers one warp runs after another, in
    the ``order`` in which its numbers are given, ascending by default. That shows in the outputs what a race may do.

    Conflicts: two accesses by different threads of a block to one byte, one a write, with no barrier between them that
    orders them; with ``setup.formal`` a barrier of shared scope orders none to device memory. Then those by different
    blocks, at any time: ``changing`` compares with what was there before the launch, and the epoch is 0. ``count`` is
    bytes, added up over epochs; a formal conflict in device memory has the epoch since when nothing ordered it.

    Undefined content is followed as it spreads. It is a fault where it is loaded from shared or device memory, and
    where it reaches an index, a condition of a statement, or a store to shared or device memory. There is one fault for
    a kind and site; ``count`` is executions by a thread.

    Threads that disagree on the way to a barrier or shuffle are a fault, and all go where thread 0 goes (with ``warp``,
    the first of the warp). ``hits``: for accesses and branches the threads that executed them, for loops the iterations
    of all threads, for barriers the blocks that passed.

    Raises UsageError for a launch that does not fit the kernel, and for a kernel with a node that is not supported;
    InfraError for a loop that does not end.
    """
    _check(kernel, setup)
    with np.errstate(all="ignore"):
        return _Launch(kernel, setup, _warps(kernel, warp, order)).evidence()


def _warps(kernel: Kernel, warp: int | None, order: tuple[int, ...] | None) -> list[np.ndarray]:
    """The threads of each group that runs in lockstep."""
    threads = np.arange(kernel.threads)
    if warp is None:
        if order is not None:
            raise UsageError(f"kernel {kernel.name}: an order of warps without their width")
        return [threads]
    if warp < 1:
        raise UsageError(f"a warp has at least 1 thread, not {warp}")
    warps = [threads[at : at + warp] for at in range(0, len(threads), warp)]
    order = tuple(range(len(warps))) if order is None else order
    if sorted(order) != list(range(len(warps))):
        raise UsageError(f"kernel {kernel.name}: the order {order} does not name each of its {len(warps)} warps once")
    return [warps[i] for i in order]


def _check(kernel: Kernel, setup: Setup) -> None:
    """Raise UsageError unless ``setup`` has what ``kernel`` takes. It may have more."""
    for buffer in kernel.pointers:
        array, dtype = setup.arrays.get(buffer.name), numpy_dtype(buffer.dtype)
        if array is None:
            raise UsageError(f"kernel {kernel.name}: no array for {buffer.name}")
        if array.ndim != 1 or array.dtype != dtype:
            raise UsageError(
                f"kernel {kernel.name}: {buffer.name} has {array.ndim} dimensions of {array.dtype}, not 1 of {dtype}"
            )
    if missing := [v.name for v in kernel.scalars if v.name not in setup.scalars]:
        raise UsageError(f"kernel {kernel.name}: no number for {', '.join(missing)}")


class _Launch:
    def __init__(self, kernel: Kernel, setup: Setup, warps: list[np.ndarray]) -> None:
        self.kernel, self.setup, self.warps = kernel, setup, warps
        self.body = step(kernel.body, kernel)
        self.findings = Findings(writing_sites(kernel))
        self.arguments = {
            b.storage: Memory(
                setup.arrays[b.name].nbytes,
                content=np.ascontiguousarray(setup.arrays[b.name]).view(np.uint8),
                poisoned=b.name in setup.poisoned,
            )
            for b in kernel.pointers
        }
        self.own = {b.storage for b in kernel.buffers if b.scope != GLOBAL}
        self.watched = {storage: cell_bytes(kernel, storage) for storage in written_storages(kernel)}
        self.at_start = {
            storage: self.arguments[storage].seen_as(np.dtype(f"u{self.watched[storage]}")).copy()
            for storage in self.watched
            if storage.scope == GLOBAL
        }
        self.by_block: dict[Storage, list[Accesses]] = {storage: [] for storage in self.at_start}
        self.epochs, self.blocks = 0, 0

    def evidence(self) -> Evidence:
        extents = self._grid()
        self.blocks = int(np.prod(extents))
        for block in range(self.blocks):
            self._block(block, self._indices(block, extents))
        self._between_blocks()
        outputs = {b.name: self.arguments[b.storage].seen_as(numpy_dtype(b.dtype)).copy() for b in self.kernel.pointers}
        findings = self.findings
        return Evidence(findings.conflicts, findings.faults, findings.hits, self.epochs, self.blocks, outputs)

    def _grid(self) -> list[int]:
        """Extents of the grid, x first."""
        host = self._group(np.zeros(1, np.int64), 0, {}, {}, {})
        return [max(int(compiled(extent, self.kernel)(host, None)[0][0]), 0) for _, extent in self.kernel.grid]

    def _indices(self, block: int, extents: list[int]) -> dict[Var, int]:
        """Block indices of the block of that number."""
        indices = {}
        for (var, _), extent in zip(self.kernel.grid, extents, strict=True):
            block, indices[var] = divmod(block, extent)
        return indices

    def _group(
        self,
        threads: np.ndarray,
        block: int,
        indices: dict[Var, int],
        shared: dict[Storage, Memory],
        journals: dict[Storage, Journal],
    ) -> Group:
        local = {s: Memory(s.bytes or 0, len(threads)) for s in self.own if s.scope == LOCAL}
        group = Group(threads, block, {**self.arguments, **shared, **local}, journals, self.findings)
        numbers = {**{var: self.setup.scalars[var.name] for var in self.kernel.scalars}, **indices}
        for var, number in numbers.items():
            group.values[var] = np.full(len(threads), number, numpy_dtype(var.dtype)), None
        rest = threads
        for var, extent in self.kernel.block:
            group.values[var] = (rest % extent).astype(numpy_dtype(var.dtype)), None
            rest = rest // extent
        return group

    def _block(self, block: int, indices: dict[Var, int]) -> None:
        shared = {s: Memory(s.bytes or 0) for s in self.own if s.scope == SHARED}
        memory = {**self.arguments, **shared}
        journals = {s: Journal(s, memory[s], cell) for s, cell in self.watched.items()}
        groups = [self._group(threads, block, indices, shared, journals) for threads in self.warps]
        running: list[Iterator[Barrier]] = [iter(self.body(group, None)) for group in groups]
        passed = 0
        while running:
            met = [(steps, barrier) for steps in running if (barrier := next(steps, None)) is not None]
            running = [steps for steps, _ in met]
            barriers = {barrier for _, barrier in met}
            for barrier in barriers:
                self.findings.hits[barrier.site] += 1
            passed += bool(barriers)
            orders_all = not self.setup.formal or not barriers or any(b.scope == GLOBAL for b in barriers)
            for journal in journals.values():
                if orders_all or journal.storage.scope == SHARED:
                    self._judge(journal, block, passed)
        self.epochs = max(self.epochs, passed + 1)

    def _judge(self, journal: Journal, block: int, passed: int) -> None:
        epoch = journal.epoch
        accesses, before = journal.close(passed)
        if accesses is None:
            return
        if before is not None:
            for pair in conflicts(accesses, self.findings.writes, before):
                self.findings.conflict(pair, journal.storage, journal.cell, (block, block), epoch, False)
        if journal.storage in self.by_block and self.blocks > 1:
            self.by_block[journal.storage].append(accesses.by_block(block))

    def _between_blocks(self) -> None:
        for storage, parts in self.by_block.items():
            if parts:
                before = self.at_start[storage]
                for pair in conflicts(Accesses.joined(parts), self.findings.writes, before):
                    self.findings.conflict(pair, storage, self.watched[storage], pair.actors, 0, True)
