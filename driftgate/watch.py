"""Watch every kernel of the cache and every VM call for NaN, Inf, and log-sum-exps of minus infinity."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from driftgate.seam import ATTENTION, KERNELS, Kernel, Seam

PAGES_ARGUMENT = {
    "append": 0,
    "copy_page": 0,
    "compact_copy": 0,
    "prefill_paged": 2,
    "prefill_sliding": 2,
    "decode": 1,
    "decode_sliding": 1,
}
"""The argument that is the page pool: slots that nobody wrote hold what memory held, and no kernel may read them."""

MERGE_LSE_ARGUMENTS = (1, 3)


class Watch:
    """Counts what it saw and keeps the first bad value: run, chunk, call, tensor, index, value."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.values = 0
        self.bad: Counter[str] = Counter()
        self.first: dict[str, Any] | None = None
        self._run = 0
        self._chunk = 0

    def attach(self, seam: Seam) -> None:
        seam.wrap(set(KERNELS.values()), self._wrapped)

    def begin_run(self, run: int) -> None:
        self._run, self._chunk = run, 0

    def end_chunk(self, number: int, logits: np.ndarray) -> None:
        """Check the chunk's logits, and name the next chunk."""
        self._check("logits", "logits", logits)
        self._chunk = number + 1

    def instrument(self, func: Any, name: str, before: bool, ret: Any, *args: Any) -> None:
        """The VM's instrument: after each call, look at every floating-point argument, outputs included."""
        if before or name.startswith("vm.builtin."):
            return
        self.calls[f"vm:{name}"] += 1
        for i, arg in enumerate(args):
            self._check_tensor(f"vm:{name}", f"argument {i}", arg)

    def report(self) -> dict[str, Any]:
        kernels = {name: count for name, count in self.calls.items() if not name.startswith("vm:")}
        return {
            "kernel_calls": kernels,
            "vm_calls": sum(self.calls.values()) - sum(kernels.values()),
            "values": self.values,
            "bad": dict(self.bad),
            "first": self.first,
        }

    def _wrapped(self, name: str, kernel: Kernel) -> Kernel:
        pages = PAGES_ARGUMENT.get(name)

        def watched(*args: Any) -> Any:
            result = kernel(*args)
            self.calls[name] += 1
            tensors = [i for i, arg in enumerate(args) if hasattr(arg, "shape") and i != pages]
            # Attention kernels end their tensors with the LSE; merge takes two.
            lse = tensors[-1:] if name in ATTENTION else MERGE_LSE_ARGUMENTS if name == "merge" else ()
            for i in tensors:
                self._check_tensor(name, "LSE" if i in lse else f"argument {i}", args[i])
            return result

        return watched

    def _check_tensor(self, call: str, tensor: str, value: Any) -> None:
        if hasattr(value, "numpy") and str(getattr(value, "dtype", "")).startswith("float"):
            self._check(call, tensor, value.numpy())

    def _check(self, call: str, tensor: str, array: np.ndarray) -> None:
        self.values += array.size
        finite = np.isfinite(array)
        if finite.all():
            return
        kinds = {
            "nan": int(np.isnan(array).sum()),
            "lse_minus_inf": int(np.isneginf(array).sum()) if tensor == "LSE" else 0,
        }
        kinds["inf"] = int((~finite).sum()) - kinds["nan"] - kinds["lse_minus_inf"]
        self.bad.update({kind: count for kind, count in kinds.items() if count})
        if self.first is None:
            index = tuple(int(i) for i in np.argwhere(~finite)[0])
            self.first = {
                "run": self._run,
                "chunk": self._chunk,
                "call": call,
                "tensor": tensor,
                "index": list(index),
                "value": str(array[index]),
            }
