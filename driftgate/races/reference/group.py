"""Threads in lockstep and their memory: every access is bounded, noted, and checked for undefined content."""

from __future__ import annotations

import numpy as np

from driftgate.races.evidence import DIVERGENT, OUT_OF_BOUNDS_READ, OUT_OF_BOUNDS_WRITE, UNINITIALISED
from driftgate.races.kernel import LOCAL, Buffer, Expr, Storage, bytes_of, lanes_of
from driftgate.races.reference.arithmetic import numpy_dtype
from driftgate.races.reference.findings import Findings
from driftgate.races.reference.journal import Journal
from driftgate.races.reference.lanes import Mask, Value, active, narrow
from driftgate.races.reference.memory import Memory


class Group:
    """Some consecutive threads of one block, in lockstep."""

    def __init__(
        self,
        numbers: np.ndarray,
        block: int,
        memory: dict[Storage, Memory],
        journals: dict[Storage, Journal],
        findings: Findings,
    ) -> None:
        self.numbers, self.block, self.memory, self.journals = numbers, block, memory, journals
        self.findings = findings
        self.values: dict[Expr, Value] = {}

    # Accesses

    def load(self, buffer: Buffer, index: Value, lanes: int, site: int, mask: Mask) -> Value:
        """What ``buffer`` holds at ``index``; 0 out of bounds."""
        memory, dtype = self.memory[buffer.storage], numpy_dtype(buffer.dtype)
        elements, valid = self._elements(memory, buffer, index, site, mask, OUT_OF_BOUNDS_READ)
        places = self._places(memory, buffer, elements)
        data, defined = memory.read(dtype, places if valid is None else np.where(valid, places, 0))
        if valid is not None:
            data = np.where(valid, data, dtype.type(0))
            defined = None if defined is None else defined | ~valid
        if buffer.scope != LOCAL:
            if defined is not None:
                self._fault(UNINITIALISED, site, ~defined, elements, buffer)
                defined = None
            self._note(buffer, site, elements, valid, None)
        return narrow(data, lanes), None if defined is None else narrow(defined, lanes)

    def store(self, buffer: Buffer, index: Value, value: Value, site: int, mask: Mask) -> None:
        """Put ``value`` there; dropped out of bounds."""
        memory, dtype = self.memory[buffer.storage], numpy_dtype(buffer.dtype)
        elements, valid = self._elements(memory, buffer, index, site, mask, OUT_OF_BOUNDS_WRITE)
        data, defined = (None if part is None else part.reshape(elements.shape) for part in value)
        assert data is not None
        if buffer.scope != LOCAL:
            if defined is not None:
                self._fault(UNINITIALISED, site, ~defined if valid is None else ~defined & valid, elements, buffer)
                defined = None
            self._note(buffer, site, elements, valid, data)
        places = self._places(memory, buffer, elements)
        if valid is not None:
            places, data, defined = places[valid], data[valid], None if defined is None else defined[valid]
        memory.write(dtype, places, data, defined)

    def _elements(
        self, memory: Memory, buffer: Buffer, index: Value, site: int, mask: Mask, kind: str
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Elements of one lane ``(threads, lanes)``, and which of them are accessed; None for all."""
        self.findings.hits[site] += len(self.numbers) if mask is None else np.count_nonzero(mask)
        self.certain(index[1], site, mask, index[0])
        lanes = lanes_of(buffer.dtype)
        at = index[0].astype(np.int64).reshape(len(self.numbers), -1)
        wrong = active((at < 0) | (at >= memory.size // (lanes * bytes_of(buffer.dtype))), mask)
        valid = None if mask is None else np.repeat(mask[:, None], at.shape[1], axis=1)
        if wrong.any():
            self._fault(kind, site, wrong, at, None)
            valid = ~wrong if valid is None else valid & ~wrong
        if lanes > 1:
            at = (at[:, :, None] * lanes + np.arange(lanes)).reshape(len(at), -1)
            valid = None if valid is None else np.repeat(valid, lanes, axis=1)
        return at, valid

    def _places(self, memory: Memory, buffer: Buffer, elements: np.ndarray) -> np.ndarray:
        rows = np.arange(len(elements))[:, None] if buffer.scope == LOCAL else 0
        return memory.places(numpy_dtype(buffer.dtype), rows, elements)

    def _note(
        self, buffer: Buffer, site: int, elements: np.ndarray, valid: np.ndarray | None, data: np.ndarray | None
    ) -> None:
        journal = self.journals.get(buffer.storage)
        if journal is None:
            return
        where = slice(None) if valid is None else valid
        threads = np.broadcast_to(self.numbers[:, None], elements.shape)[where].ravel()
        written = None if data is None else data[where].ravel()
        journal.note(site, threads, elements[where].ravel(), numpy_dtype(buffer.dtype), written)

    # Faults

    def certain(self, defined: np.ndarray | None, site: int, mask: Mask, index: np.ndarray | None = None) -> None:
        """Note where an index or condition is undefined; execution goes on with the number that is there."""
        if defined is not None:
            wrong = active(~defined, mask).reshape(len(self.numbers), -1)
            shown = np.full(wrong.shape, -1) if index is None else index.reshape(wrong.shape)
            self._fault(UNINITIALISED, site, wrong, shown, None)

    def agreed(self, test: np.ndarray, site: int) -> int:
        """What all threads answer to the condition of a statement in which they meet; else thread 0, with a fault."""
        others = np.flatnonzero(test != test[0])
        if len(others):
            self.findings.fault(DIVERGENT, site, int(self.numbers[others[0]]), self.block, -1, 1)
        return test[0]

    def _fault(self, kind: str, site: int, wrong: np.ndarray, at: np.ndarray, buffer: Buffer | None) -> None:
        """``at`` counts elements of one lane of ``buffer``, or without one what the index counts."""
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            index = int(at[row, column]) // (1 if buffer is None else lanes_of(buffer.dtype))
            threads = int(wrong.any(axis=1).sum())
            self.findings.fault(kind, site, int(self.numbers[row]), self.block, index, threads)
