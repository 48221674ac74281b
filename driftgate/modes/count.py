"""Count calls by kernel."""

from __future__ import annotations

from collections import Counter

from driftgate.calls import Call


class Count:
    """Calls of each kernel and VM function."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def before(self, call: Call) -> None:
        self.calls[call.name] += 1

    def after(self, call: Call) -> None:
        """Nothing to do."""
