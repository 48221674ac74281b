"""Run a reference on what each call was given, and compare what the call wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from driftgate.calls import Call
from driftgate.kernels.attention import NO_KEY
from driftgate.kernels.signatures import OUT, PAGES, SIGNATURES, check
from driftgate.metrics import bits
from driftgate.seam import ATTENTION
from driftgate.tensors import copied, is_float, is_tensor, same_bytes, view

BAND_UNITS = {"float64": 1024.0, "float32": 128.0, "float16": 4.0}
"""Width of a kernel's band, in units in the last place of its largest value: several times the worst of sound kernels
(`python -m benchmarks.seam` prints it), and far below what any planted fault does."""

Reference = Callable[..., None]
"""Takes a call's arguments, tensors as arrays, and writes its results into them."""


@dataclass
class Shadowed:
    """What the comparison of one kernel with its reference came to."""

    calls: int = 0
    off: int = 0
    """Calls outside the band."""
    worst_error: float = 0.0
    """Largest absolute difference."""
    worst_in_bands: float = 0.0
    """Largest difference in units of its band; infinite where one side alone is not finite."""
    nan_inputs: int = 0
    """Calls that were given a NaN or an infinity: the reference gets it too, and repairs nothing."""
    nan_outputs: int = 0
    """Calls that wrote one."""
    first: dict[str, Any] | None = None
    """The first call outside the band, and the value."""


class Shadow:
    """Compares every call that has a reference: ``reference_for(name)`` finds it, or None.

    References of cache kernels take arrays (`driftgate.kernels.references`), those of VM functions tensors.
    """

    def __init__(self, reference_for: Callable[[str], Reference | None]) -> None:
        self.reference_for = cache(reference_for)
        self.kernels: dict[str, Shadowed] = {}
        self.without: set[str] = set()
        """Calls that wrote values and have no reference."""
        self._given: list[Any] = []

    def before(self, call: Call) -> None:
        if not call.computes:
            return
        if self.reference_for(call.name) is None:
            self.without.add(call.name)
            return
        written = call.written
        signature = check(call.name, call.args) if call.name in SIGNATURES else None
        found = self.kernels.setdefault(call.name, Shadowed())
        found.nan_inputs += any(
            not np.isfinite(view(arg)).all()
            for i, arg in enumerate(call.args)
            # What is only written holds nothing yet, and of the pool nobody knows which slots were written.
            if is_float(arg)
            and not (signature[i].role == OUT or signature[i].name == PAGES if signature else i in written)
        )
        if signature is None:
            self._given = list(call.args)
        else:
            self._given = [
                (copied(arg) if i in written else view(arg)) if is_tensor(arg) else arg
                for i, arg in enumerate(call.args)
            ]

    def after(self, call: Call) -> None:
        reference = self.reference_for(call.name) if call.computes else None
        if reference is None:
            return
        found = self.kernels[call.name]
        if call.name in SIGNATURES:
            reference(*self._given)
            right = {i: self._given[i] for i in call.written}
        else:
            right = _by_function(reference, self._given, call.written)
        self._given = []
        ours = {i: view(call.args[i]) for i in call.written}
        self._judge(call, found, ours, right)

    def take(self) -> dict[str, Shadowed]:
        """What was found since the last take, by kernel."""
        taken, self.kernels = self.kernels, {}
        return taken

    def _judge(self, call: Call, found: Shadowed, ours: dict[int, np.ndarray], right: dict[int, np.ndarray]) -> None:
        found.calls += 1
        bad, nan = False, False
        for i, found_values in ours.items():
            values, expected = found_values, right[i]
            if call.name in ATTENTION:
                values, expected = _where_keys_were_seen(values, expected, ours, right)
            worst = compared(values, expected, str(call.args[i].dtype))
            nan |= is_float(call.args[i]) and _not_finite(call, i, values)
            found.worst_error = max(found.worst_error, worst.error)
            found.worst_in_bands = max(found.worst_in_bands, worst.in_bands)
            if worst.in_bands > 1 and not bad:
                bad = True
                found.first = found.first or {**call.place, "argument": i, **worst.where(values, expected)}
        found.off += bad
        found.nan_outputs += nan


@dataclass(frozen=True)
class Comparison:
    """How far one tensor is from its reference."""

    error: float
    in_bands: float
    index: tuple[int, ...] | None

    def where(self, values: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
        """The worst place, both values and both bit patterns."""
        if self.index is None:
            return {}
        pair = values[self.index], expected[self.index].astype(values.dtype)
        return {"index": list(self.index), "values": [float(x) for x in pair], "bits": [bits(x) for x in pair]}


def compared(values: np.ndarray, expected: np.ndarray, dtype: str) -> Comparison:
    """``values`` against ``expected``, in bands of ``BAND_UNITS`` units in the last place of the largest value.

    What is not finite has to be so on both sides, in the same places. Integers have to be equal.
    """
    if values.dtype == expected.dtype and same_bytes(values, expected):
        return Comparison(0.0, 0.0, None)
    if not np.issubdtype(values.dtype, np.floating):
        off = np.abs(values.astype(np.int64) - expected.astype(np.int64))
        return Comparison(float(off.max()), float("inf"), _index(off)) if off.any() else Comparison(0.0, 0.0, None)
    finite, finite_too = np.isfinite(values), np.isfinite(expected)
    one_side = finite != finite_too
    if one_side.any():
        return Comparison(float("inf"), float("inf"), _index(one_side))
    a, b = (np.where(finite, x.astype(np.float64), 0.0) for x in (values, expected))
    off = np.abs(a - b)
    scale = max(float(np.abs(b).max(initial=0.0)), float(np.finfo(dtype).tiny))
    band = BAND_UNITS[dtype] * float(np.finfo(dtype).eps) * scale
    return Comparison(
        float(off.max(initial=0.0)), float(off.max(initial=0.0)) / band, _index(off) if off.size else None
    )


def _index(array: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(array)), array.shape))


def _not_finite(call: Call, i: int, values: np.ndarray) -> bool:
    signature = SIGNATURES.get(call.name)
    return not (signature and signature[i].name == PAGES) and not np.isfinite(values).all()


def _where_keys_were_seen(
    values: np.ndarray, expected: np.ndarray, ours: dict[int, np.ndarray], right: dict[int, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Output or LSE without the rows that saw no key: an LSE that low weighs them with zero, whatever they hold. (TVM's
    GPU kernels leave there the mean of the masked keys, and their number in the LSE.)"""
    lse = max(ours)
    empty = (ours[lse] <= NO_KEY / 2) & (right[lse] <= NO_KEY / 2)
    if not empty.any():
        return values, expected
    empty = empty[..., None] if values.ndim == 3 else empty
    return np.where(empty, 0, values), np.where(empty, 0, expected)


def _by_function(function: Reference, args: list[Any], written: tuple[int, ...]) -> dict[int, np.ndarray]:
    """Results of a compiled reference, which gets the call's own inputs and fresh tensors to write to."""
    import tvm

    fresh = {i: tvm.runtime.empty(tuple(args[i].shape), str(args[i].dtype), tvm.cpu()) for i in written}
    function(*[fresh.get(i, arg) for i, arg in enumerate(args)])
    return {i: tensor.numpy() for i, tensor in fresh.items()}
