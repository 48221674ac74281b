"""Memory that no kernel may read, filled with NaN or with large numbers before it could."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from driftgate.kernels.signatures import OUT, SIGNATURES
from driftgate.seam import KERNELS, Kernel, Seam
from driftgate.tensors import copied, restore, view

if TYPE_CHECKING:
    from driftgate.runtime import Session

NAN, LARGE, AFTER_NAN = "nan", "large", "after-nan"
POISONS = (NAN, LARGE, AFTER_NAN)
"""Dead slots and results not yet written filled with NaN; with large numbers; and nothing filled, but a sequence before
that was NaN throughout, which leaves NaN in every page, in the whole workspace and in what the VM frees."""

_LARGE = {"float32": 1e30, "float16": 6e4}


class Poison:
    """Between ``begin`` and ``end`` kernels meet poison. Attach it before the cache is made."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.filled = 0
        self._pools: set[int] = set()

    def attach(self, seam: Seam) -> None:
        seam.wrap(set(KERNELS.values()), self._wrapped)

    def begin(self, name: str, dtype: str, session: Session) -> None:
        """From here on with poison ``name``."""
        self.filled = 0
        self._pools.clear()
        if name == AFTER_NAN:
            self.filled = session.flood(float("nan"))
        else:
            self.value = float("nan") if name == NAN else _LARGE[dtype]

    def end(self) -> int:
        """No more; the number of values that were filled."""
        self.value = None
        return self.filled

    def _wrapped(self, name: str, kernel: Kernel) -> Kernel:
        signature = SIGNATURES[name]
        results = [i for i, argument in enumerate(signature) if argument.role == OUT]

        def run(*args: Any) -> Any:
            if self.value is not None:
                for i in results:
                    self._fill(args[i])
                if name == "append":
                    self._fill_pool(args[0], args[3])
            return kernel(*args)

        return run

    def _fill(self, tensor: Any) -> None:
        restore(tensor, np.full(tensor.shape, self.value, dtype=str(tensor.dtype)))
        self.filled += int(np.prod(tensor.shape))

    def _fill_pool(self, pages: Any, position_map: Any) -> None:
        """All of a pool at its first use; then, of each page that tokens are about to go to, the slots from there on.

        Tokens go to a page in order, so what lies behind the first new one is dead: never used, taken back, or left
        by a sequence that is gone.
        """
        key = pages.data_ptr()
        if key not in self._pools:
            self._pools.add(key)
            self._fill(pages)
            return
        slots = view(position_map)
        slots = slots[slots >= 0]
        size = int(pages.shape[3])
        held = copied(pages)
        for page in np.unique(slots // size):
            first = int(slots[slots // size == page].min()) % size
            held[page, :, :, first:] = self.value
            self.filled += held[page, :, :, first:].size
        restore(pages, held)
