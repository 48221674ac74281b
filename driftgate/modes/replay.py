"""Run a kernel again and again on what it was given: a deterministic one writes the same bytes every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from driftgate.calls import Call
from driftgate.metrics import first_difference
from driftgate.tensors import copied, is_float, restore, same_bytes, view


@dataclass
class Replayed:
    """What replays of one kernel came to."""

    replays: int = 0
    disagreed: int = 0
    """Executions whose bytes were not the most common ones of their call."""
    first: dict[str, Any] | None = None


class Replay:
    """Replays each call ``times`` times, what it writes put back before each; then the call stands as made."""

    def __init__(self, times: int, only: frozenset[str] | None = None) -> None:
        self.times = times
        self.only = only
        self.kernels: dict[str, Replayed] = {}
        self._before: dict[int, np.ndarray] = {}

    def before(self, call: Call) -> None:
        if self._takes(call):
            self._before = {i: copied(call.args[i]) for i in call.written}

    def after(self, call: Call) -> None:
        if not self._takes(call) or not self.times:
            return
        made = {i: copied(call.args[i]) for i in call.written}
        found = self.kernels.setdefault(call.name, Replayed())
        different, first = 0, None
        for _ in range(self.times):
            for i, values in self._before.items():
                restore(call.args[i], values)
            call.kernel(*call.args)
            odd = [i for i, values in made.items() if not same_bytes(values, view(call.args[i]))]
            different += bool(odd)
            if odd and first is None:
                difference = first_difference(made[odd[0]], view(call.args[odd[0]]))
                first = {**call.place, "argument": odd[0], **(difference.as_dict() if difference else {})}
        for i, values in made.items():
            restore(call.args[i], values)
        found.replays += self.times
        # If most differ from the call itself, the call is the odd one.
        found.disagreed += min(different, self.times + 1 - different)
        found.first = found.first or first

    def take(self) -> dict[str, Replayed]:
        """What was found since the last take, by kernel."""
        taken, self.kernels = self.kernels, {}
        return taken

    def _takes(self, call: Call) -> bool:
        # The positions of a chunk are the host's own arithmetic: there is no kernel to run again.
        return bool(
            call.computes and is_float(call.args[call.written[0]]) and (self.only is None or call.name in self.only)
        )
