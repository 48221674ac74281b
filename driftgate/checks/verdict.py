"""What a check says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftgate.outcome import Outcome


@dataclass(frozen=True)
class Verdict:
    """One check on one model."""

    check: str
    outcome: Outcome
    message: str
    """One line: what was found, with the figures that decided."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Where it first went wrong: run, chunk, position, vocabulary index, both values and both bit patterns."""
    rows: list[dict[str, Any]] | None = None
    """One entry a kernel, for checks that judge kernels."""
