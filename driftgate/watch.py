"""Watch every kernel of the cache and every VM call for NaN, Inf, and log-sum-exps of minus infinity."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from driftgate.kernels.signatures import PAGES, SIGNATURES
from driftgate.seam import KERNELS, Kernel, Seam


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
        signature = SIGNATURES[name]
        # In the page pool slots that nobody wrote hold what memory held, and no kernel may read them.
        pool = {i for i, argument in enumerate(signature) if argument.name == PAGES}
        lse = {i for i, argument in enumerate(signature) if argument.kind == "lse"}

        def watched(*args: Any) -> Any:
            result = kernel(*args)
            self.calls[name] += 1
            for i, arg in enumerate(args):
                if i not in pool:
                    self._check_tensor(name, "LSE" if i in lse else f"argument {i}", arg)
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
