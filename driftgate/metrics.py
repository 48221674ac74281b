"""Comparisons of logits and hidden states, in an order that lets nothing pass vacuously.

Finite, then not degenerate, then shape and dtype, then bytes, then tolerance: NaN against NaN, zero against zero and
a broadcast shape would each pass a comparison of differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The first place in which two arrays differ, or in which one of them is unusable."""

    what: str
    index: tuple[int, ...] | None = None
    values: tuple[float, float] | None = None
    bits: tuple[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"what": self.what}
        if self.index is not None:
            found["index"] = list(self.index)
        if self.values is not None:
            found["values"] = [_json_number(v) for v in self.values]
        if self.bits is not None:
            found["bits"] = list(self.bits)
        return found


def unusable(array: np.ndarray, name: str) -> Difference | None:
    """Why ``array`` proves nothing: empty, not finite, all zero or all equal; None if it is fit to compare."""
    if array.size == 0:
        return Difference(f"{name} is empty")
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        value = array[index]
        return Difference(f"{name} holds {_named(value)}", index, (float(value), float(value)), (bits(value),) * 2)
    if array.size > 1 and (array == array.flat[0]).all():
        return Difference(f"{name} is {'all zero' if array.flat[0] == 0 else 'all equal'}: degenerate output")
    return None


def first_difference(left: np.ndarray, right: np.ndarray) -> Difference | None:
    """The first place in which the bytes differ, shape and dtype first; None if they are the same."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return Difference(f"{left.dtype}{list(left.shape)} against {right.dtype}{list(right.shape)}")
    unequal = np.argwhere(as_bits(left) != as_bits(right))
    if not len(unequal):
        return None
    index = tuple(int(i) for i in unequal[0])
    a, b = left[index], right[index]
    return Difference("bytes differ", index, (float(a), float(b)), (bits(a), bits(b)))


def as_bits(array: np.ndarray) -> np.ndarray:
    """``array`` as unsigned integers of its width, so that -0.0 differs from 0.0 and NaN equals itself."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def bits(value: np.floating) -> str:
    """The bit pattern in hexadecimal, as wide as the dtype."""
    return f"0x{int(as_bits(np.asarray(value)).item()):0{value.dtype.itemsize * 2}x}"


def ulps(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Distance in units in the last place, element by element, of two finite float32 or float16 arrays."""
    if left.dtype != right.dtype or left.dtype.itemsize > 4:
        raise ValueError(f"ulps compares float32 or float16, not {left.dtype} with {right.dtype}")

    def ordered(array: np.ndarray) -> np.ndarray:
        raw = as_bits(array).astype(np.int64)
        top = np.int64(1) << (array.dtype.itemsize * 8 - 1)
        return np.where(raw >= top, top - raw, raw)

    return np.abs(ordered(left) - ordered(right))


@dataclass(frozen=True)
class Agreement:
    """How far logits are from a reference, over all positions."""

    max_abs: float
    worst: tuple[int, int]
    """Position and vocabulary index of the largest difference."""
    max_abs_in_spread: float
    """The same in units of the reference's standard deviation."""
    kl_mean: float
    """Kullback-Leibler divergence from the reference, in nats, mean over positions."""
    kl_p999: float
    top1_agreement: float
    """Share of positions whose largest logit has the same vocabulary index."""
    top5_overlap: float
    ulp_histogram: dict[str, int]
    """Float32 units in the last place to the number of logits at most so far off (and more than the class before)."""


_ULP_CLASSES = (0, 1, 2, 4, 16, 256, 65536)


def agreement(logits: np.ndarray, reference: np.ndarray) -> Agreement:
    """Compare ``logits`` with ``reference``, both ``(n, vocab)`` and finite, position by position: flat in memory."""
    largest, worst, kls, top1, top5 = -1.0, (0, 0), [], 0, 0.0
    total, squares = 0.0, 0.0
    classes = np.zeros(len(_ULP_CLASSES) + 1, dtype=np.int64)
    for position, (ours, theirs) in enumerate(zip(logits, reference, strict=True)):
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        off = _distance(a, b, position)
        index = int(off.argmax())
        if off[index] > largest:
            largest, worst = float(off[index]), (position, index)
        kls.append(_kl(b, a))
        top1 += int(a.argmax() == b.argmax())
        top5 += len(set(_top(a, 5)) & set(_top(b, 5))) / min(5, len(a))
        total, squares = total + b.sum(), squares + (b * b).sum()
        distance = ulps(a.astype(np.float32), b.astype(np.float32))
        classes += np.bincount(np.searchsorted(_ULP_CLASSES, distance), minlength=len(classes))
    count = len(reference)
    spread = np.sqrt(max(squares / reference.size - (total / reference.size) ** 2, 0.0))
    names = [f"<={limit}" for limit in _ULP_CLASSES] + [f">{_ULP_CLASSES[-1]}"]
    return Agreement(
        max_abs=largest,
        worst=worst,
        max_abs_in_spread=float(largest / spread) if spread else float("inf"),
        kl_mean=float(np.mean(kls)),
        kl_p999=float(np.quantile(kls, 0.999)),
        top1_agreement=top1 / count,
        top5_overlap=top5 / count,
        ulp_histogram={name: int(n) for name, n in zip(names, classes, strict=True)},
    )


def max_abs(left: np.ndarray, right: np.ndarray) -> tuple[float, tuple[int, int]]:
    """Largest absolute difference of two finite ``(n, vocab)`` arrays, with its position and vocabulary index."""
    largest, worst = -1.0, (0, 0)
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        off = _distance(a.astype(np.float64), b.astype(np.float64), position)
        index = int(off.argmax())
        if off[index] > largest:
            largest, worst = float(off[index]), (position, index)
    return largest, worst


def _distance(a: np.ndarray, b: np.ndarray, position: int) -> np.ndarray:
    off = np.abs(a - b)
    if not np.isfinite(off).all():
        # NaN is larger than nothing: it would slip through every comparison with a band.
        raise ValueError(f"position {position} is not finite; look for that first")
    return off


def _top(row: np.ndarray, count: int) -> list[int]:
    return list(np.argpartition(row, -count)[-count:]) if len(row) > count else list(range(len(row)))


def _kl(p: np.ndarray, q: np.ndarray) -> float:
    """KL(softmax(p) || softmax(q)) in nats, float64."""
    log_p, log_q = _log_softmax(p), _log_softmax(q)
    # Never negative in exact arithmetic; rounding may leave -1e-17.
    return max(float((np.exp(log_p) * (log_p - log_q)).sum()), 0.0)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max()
    return shifted - np.log(np.exp(shifted).sum())


def _named(value: Any) -> str:
    return "NaN" if np.isnan(value) else "infinity"


def _json_number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
