"""What a race may do to the numbers: warps run one after another between barriers, in an order of the adversary's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from driftgate.outcome import UsageError
from driftgate.races import reference
from driftgate.races.evidence import Setup
from driftgate.races.kernel import Kernel

ASCENDING, DESCENDING = "ascending", "descending"
ORDERS = (ASCENDING, DESCENDING)


@dataclass(frozen=True)
class Difference:
    """One array after one order of the warps, where it is not what all threads in lockstep leave."""

    order: str
    array: str
    wrong: np.ndarray
    """int64, ascending: elements that differ. Two NaNs do not."""
    largest: float
    """Largest difference; infinite where one of two numbers alone is a NaN or infinite."""

    @property
    def count(self) -> int:
        return len(self.wrong)


@dataclass(frozen=True)
class Demonstration:
    """What orders of the warps made of a launch. That nothing differs is no proof: other orders may still."""

    warp: int
    orders: tuple[str, ...]
    """Those that were tried."""
    differences: tuple[Difference, ...]
    """By order and array; none where they agree."""

    def of(self, order: str, array: str) -> Difference | None:
        """The difference in ``array`` after ``order``, None if there is none. Raises KeyError for an untried order."""
        if order not in self.orders:
            raise KeyError(order)
        return next((d for d in self.differences if (d.order, d.array) == (order, array)), None)


def demonstrate(kernel: Kernel, setup: Setup, warp: int = 32, orders: tuple[str, ...] = ORDERS) -> Demonstration:
    """Run ``kernel`` with its warps of ``warp`` threads in each of ``orders``, against all threads in lockstep.

    Raises what `reference.run` raises, and UsageError for an order that is not in ``ORDERS`` or a warp below 1.
    """
    if warp < 1:
        raise UsageError(f"a warp has at least 1 thread, not {warp}")
    if unknown := [order for order in orders if order not in ORDERS]:
        raise UsageError(f"unknown order of warps {unknown[0]!r}: there are {', '.join(ORDERS)}")
    right = reference.run(kernel, setup).outputs
    warps = range(-(-kernel.threads // warp))
    found = []
    for order in orders:
        turns = tuple(warps if order == ASCENDING else reversed(warps))
        outputs = reference.run(kernel, setup, warp=warp, order=turns).outputs
        found += [d for name in right if (d := _difference(order, name, outputs[name], right[name])).count]
    return Demonstration(warp, orders, tuple(found))


def _difference(order: str, name: str, got: np.ndarray, expected: np.ndarray) -> Difference:
    both_nan = (got != got) & (expected != expected)
    wrong = np.flatnonzero((got != expected) & ~both_nan)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(got[wrong].astype(np.float64) - expected[wrong].astype(np.float64))
    largest = float(np.where(np.isnan(gaps), np.inf, gaps).max(initial=0))
    return Difference(order, name, wrong, largest)


def columns(
    wrong: Iterable[int] | np.ndarray, shape: tuple[int, int, int], gap: int = 0
) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Elements of an array ``(rows, heads, columns)`` as ranges of columns, first and last, by row and head.

    Up to ``gap`` columns that are not among them may lie within a range: wrong arithmetic rounds to the right number
    now and then.
    """
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for element in sorted(int(i) for i in wrong):
        row, head, column = (int(i) for i in np.unravel_index(element, shape))
        known = ranges.setdefault((row, head), [])
        if known and column - known[-1][1] <= gap + 1:
            known[-1] = known[-1][0], column
        else:
            known.append((column, column))
    return {place: tuple(found) for place, found in ranges.items()}
