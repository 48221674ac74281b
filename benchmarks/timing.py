"""Medians of interleaved runs: both sides see the same machine, minute by minute."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def interleaved(actions: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Seconds of each action, round by round, after one round that does not count."""
    seconds: list[list[float]] = [[] for _ in actions]
    for number in range(rounds + 1):
        for times, action in zip(seconds, actions, strict=True):
            start = time.perf_counter()
            action()
            if number:
                times.append(time.perf_counter() - start)
    return seconds


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Quartiles of ours / theirs, round by round: lower, median, upper."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return low, middle, high
