"""Memory as bytes, with a record of which of them were ever written."""

from __future__ import annotations

import numpy as np

_ALIGNMENT = 16


class Memory:
    """One storage: ``rows`` copies of it for memory that each thread has its own of, else one.

    ``content`` gives the bytes of device memory. Without it, or if ``poisoned``, all bytes are undefined; they then
    read as they are, undefined ones of fresh memory as zero.
    """

    def __init__(self, size: int, rows: int = 1, content: np.ndarray | None = None, poisoned: bool = False) -> None:
        self.size = size
        # Rows are padded so that any dtype can look at them; nothing beyond `size` is ever reached.
        self.pitch = max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT
        self.bytes = np.zeros(rows * self.pitch, np.uint8)
        if content is not None:
            self.bytes[:size] = content
        self.written = np.zeros_like(self.bytes) if content is None or poisoned else None
        """1 for bytes that hold something; None for all."""

    def places(self, dtype: np.dtype, rows: np.ndarray | int, elements: np.ndarray) -> np.ndarray:
        """Positions of ``elements`` of ``rows`` in the memory seen as ``dtype``."""
        return elements + rows * (self.pitch // dtype.itemsize)

    def read(self, dtype: np.dtype, places: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """What is there, and whether all of its bytes were written; None if so everywhere."""
        data = self.bytes.view(dtype)[places]
        if self.written is None:
            return data, None
        # As many ones as an element has bytes, seen as one number.
        whole = int.from_bytes(b"\1" * dtype.itemsize, "little")
        defined = self.written.view(f"u{dtype.itemsize}")[places] == whole
        return data, None if defined.all() else defined

    def write(self, dtype: np.dtype, places: np.ndarray, data: np.ndarray, defined: np.ndarray | None) -> None:
        """Put ``data`` there; of two writers to one place the last stays. What is not ``defined`` becomes undefined."""
        self.bytes.view(dtype)[places] = data
        if self.written is not None:
            ones = int.from_bytes(b"\1" * dtype.itemsize, "little")
            marks = self.written.view(f"u{dtype.itemsize}")
            marks[places] = ones if defined is None else np.where(defined, ones, 0)

    def seen_as(self, dtype: np.dtype) -> np.ndarray:
        """The first row, as whole elements of ``dtype``."""
        return self.bytes[: self.size // dtype.itemsize * dtype.itemsize].view(dtype)
