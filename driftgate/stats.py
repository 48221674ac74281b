"""Bounds on a failure rate."""

from __future__ import annotations

import math
from fractions import Fraction


def upper_bound(failures: int, runs: int, confidence: float) -> float:
    """One-sided Clopper-Pearson upper bound on the failure rate after ``failures`` in ``runs``.

    The ``confidence`` quantile of Beta(failures + 1, runs - failures). Without failures that is
    ``1 - (1 - confidence)^(1 / runs)``: 300 clean runs bound the rate by 0.99% at 95%.
    """
    if failures >= runs:
        return 1.0
    if failures == 0:
        # The closed form of the quantile, so that the common case needs no SciPy.
        return 1.0 - (1.0 - confidence) ** (1.0 / runs)
    from scipy.stats import beta

    return float(beta.ppf(confidence, failures + 1, runs - failures))


def lower_bound(failures: int, runs: int, confidence: float) -> float:
    """One-sided Clopper-Pearson lower bound: the ``1 - confidence`` quantile of Beta(failures, runs - failures + 1)."""
    if failures == 0:
        return 0.0
    from scipy.stats import beta

    return float(beta.ppf(1.0 - confidence, failures, runs - failures + 1))


def fisher(failures: int, runs: int, failures_after: int, runs_after: int) -> float:
    """One-sided p-value of Fisher's exact test: of a drop at least this large if both had one failure rate.

    The tail of the hypergeometric distribution, in exact integers: a GPU machine has no SciPy.
    """
    total = failures + failures_after
    ways = math.comb(runs + runs_after, total)
    tail = sum(math.comb(runs, k) * math.comb(runs_after, total - k) for k in range(failures, min(runs, total) + 1))
    return float(Fraction(tail, ways))
