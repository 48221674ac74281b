"""What is observed at edges, of histories and under poison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Compared:
    """The logits of one plan or history against a reference, at every position."""

    name: str
    positions: int
    max_abs: float | None
    """Largest distance in logits; None where they are unusable."""
    worst: dict[str, Any]
    """Where that is: position, vocabulary index, both values and bit patterns; or what makes them unusable."""
    merge_calls: int
    fault_hits: int = 0
    """Strikes of the planted fault."""
    differs: dict[str, Any] | None = None
    """Of a history that was run twice: where the second time differs in bytes from the first."""


@dataclass(frozen=True)
class Poisoned:
    """One plan or history with memory poisoned that nobody may read."""

    name: str
    """The poison."""
    where: str
    """The plan or history."""
    filled: int
    """Values that were overwritten."""
    differs: dict[str, Any] | None
    """Where it differs in bytes from a run without poison."""
    merge_calls: int
    fault_hits: int = 0
    """Strikes of the planted fault."""
