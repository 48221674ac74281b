"""Run a kernel again and again on what it was given: a deterministic one writes the same bytes every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from driftgate.calls import Call
from driftgate.metrics import first_difference
from driftgate.tensors import copied, is_float, restore, same_bytes, view

MOST_KNOWN = 8
"""Different results of one call that are kept to compare with."""


@dataclass
class Replayed:
    """What replays of one kernel came to."""

    replays: int = 0
    disagreed: int = 0
    """Executions whose bytes were not the most common ones of their call."""
    first: dict[str, Any] | None = None


class Results:
    """The different results of one call, and how often each came."""

    def __init__(self) -> None:
        self._known: list[dict[int, np.ndarray]] = []
        self._counts: list[int] = []

    def add(self, made: dict[int, np.ndarray]) -> bool:
        """Count one; whether it is a new one."""
        for which, known in enumerate(self._known):
            if all(same_bytes(values, made[i]) for i, values in known.items()):
                self._counts[which] += 1
                return False
        self._counts.append(1)
        # A result that never comes twice need not be known: memory is bounded.
        if len(self._known) < MOST_KNOWN:
            self._known.append({i: values.copy() for i, values in made.items()})
        return True

    @property
    def odd(self) -> int:
        """How many were not the most common one."""
        return sum(self._counts) - max(self._counts, default=0)


class Replay:
    """Replays each call ``times`` times, what it writes put back before each; then the call stands as made."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.kernels: dict[str, Replayed] = {}
        self._before: dict[int, np.ndarray] = {}

    def before(self, call: Call) -> None:
        if self._takes(call):
            self._before = {i: copied(call.args[i]) for i in call.written}

    def after(self, call: Call) -> None:
        if not self._takes(call):
            return
        made = {i: copied(call.args[i]) for i in call.written}
        found = self.kernels.setdefault(call.name, Replayed())
        results, first = Results(), None
        results.add(made)
        for _ in range(self.times):
            for i, values in self._before.items():
                restore(call.args[i], values)
            call.kernel(*call.args)
            again = {i: view(call.args[i]) for i in call.written}
            if results.add(again) and first is None:
                argument = next(i for i in again if not same_bytes(made[i], again[i]))
                difference = first_difference(made[argument], again[argument])
                first = {**call.place, "argument": argument, **(difference.as_dict() if difference else {})}
        for i, values in made.items():
            restore(call.args[i], values)
        found.replays += self.times
        found.disagreed += results.odd
        found.first = found.first or first

    def take(self) -> dict[str, Replayed]:
        """What was found since the last take, by kernel."""
        taken, self.kernels = self.kernels, {}
        return taken

    def _takes(self, call: Call) -> bool:
        # The positions of a chunk are the host's own arithmetic: there is no kernel to run again.
        return call.computes and is_float(call.args[call.written[0]])
