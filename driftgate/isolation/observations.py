"""What isolation observes: a symptom and its rate, and what a sweep of every kernel found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

UNSTABLE, OFF_REFERENCE, NONE = "unstable", "off-reference", "none"


@dataclass(frozen=True)
class Rate:
    """How often something failed."""

    failures: int
    runs: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Symptom:
    """What is wrong with the logits of the plan, over ``prefills`` prefills."""

    kind: str
    """``unstable``: identical prefills differ in bytes; ``off-reference``: they agree, and are off; ``none``."""
    differing: Rate
    """Of identical prefills, those that differ from the most common result; it may have stopped at the first."""
    max_abs: float | None
    """Distance to the reference of one prefill, in logits; None where the logits are not finite."""
    band: float
    prefills: int


@dataclass
class Row:
    """One kernel in a sweep."""

    kernel: str
    calls: int = 0
    replays: int = 0
    disagreed: int = 0
    """Executions of the same inputs that did not give the most common bytes."""
    compared: int = 0
    """Calls compared with a reference; 0 where there is none."""
    off: int = 0
    worst_error: float = 0.0
    worst_in_bands: float = 0.0
    nan_inputs: int = 0
    nan_outputs: int = 0
    first: Mapping[str, Any] | None = None
    """The first bad call: run, chunk, layer, and the value that shows it."""

    def add(self, found: Mapping[str, Any]) -> None:
        """What one more prefill found."""
        replayed, shadowed = found.get("replayed", {}), found.get("shadowed", {})
        self.calls += found["calls"]
        self.replays += replayed.get("replays", 0)
        self.disagreed += replayed.get("disagreed", 0)
        self.compared += shadowed.get("calls", 0)
        self.off += shadowed.get("off", 0)
        self.nan_inputs += shadowed.get("nan_inputs", 0)
        self.nan_outputs += shadowed.get("nan_outputs", 0)
        self.worst_error = max(self.worst_error, shadowed.get("worst_error", 0.0))
        self.worst_in_bands = max(self.worst_in_bands, shadowed.get("worst_in_bands", 0.0))
        self.first = self.first or replayed.get("first") or shadowed.get("first")

    @property
    def suspect(self) -> bool:
        """Whether the kernel itself did wrong, given what it was given."""
        return bool(self.disagreed or self.off)


@dataclass
class Swept:
    """Prefills in which every call was replayed and compared with its reference."""

    rows: dict[str, Row] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """Calls that no reference was found for."""
    kernels: tuple[str, ...] = ()
    """Kernels that the cache holds, called or not."""
    prefills: int = 0
    seconds: float = 0.0

    def add(self, message: Mapping[str, Any]) -> None:
        """One message of a sweep: one prefill."""
        for name, found in message["kernels"].items():
            self.rows.setdefault(name, Row(name)).add(found)
        self.without = tuple(message["without"])
        self.prefills += 1
        self.seconds += message["seconds"]

    @property
    def suspects(self) -> tuple[str, ...]:
        """Kernels that were caught, the one with most against it first."""
        caught = [row for row in self.rows.values() if row.suspect]
        return tuple(row.kernel for row in sorted(caught, key=lambda row: (-row.disagreed, -row.off)))

    @property
    def called(self) -> tuple[str, ...]:
        """Cache kernels and VM functions that computed something."""
        return tuple(row.kernel for row in self.rows.values() if row.replays or row.compared)

    @property
    def never_called(self) -> tuple[str, ...]:
        return tuple(name for name in self.kernels if name not in self.rows)


@dataclass(frozen=True)
class Swapped:
    """The symptom with some kernels replaced."""

    replaced: tuple[str, ...]
    how: str
    rate: Rate
    """Prefills that differ, or, for a stable symptom, that are off."""
    max_abs: float | None = None
    not_finite: Mapping[str, int] = field(default_factory=dict)
    """Calls of replacements that were given a NaN or an infinity, by kernel."""

    @property
    def gone(self) -> bool:
        return self.rate.failures == 0


@dataclass(frozen=True)
class Confirmation:
    """The swap experiment on the kernels that a sweep named."""

    baseline: Rate
    alone: Swapped
    """With the named kernels replaced."""
    others: Mapping[str, Swapped] = field(default_factory=dict)
    """For each named kernel: with every other one replaced."""
    by: str = "prefills"
    """``prefills``, or ``replays`` of the named kernel on inputs that were recorded."""
    p_value: float | None = None
    """One-sided, Fisher: of seeing this difference if the replacement made none; None where no chance is involved."""
    prefills: int = 0

    @property
    def confirmed(self) -> bool:
        """Gone with the named kernels replaced, more than chance would have it, and there with all others replaced."""
        significant = self.p_value is None or self.p_value < SIGNIFICANT
        stays = all(not other.gone for other in self.others.values())
        return bool(self.baseline.failures) and self.alone.gone and significant and stays


SIGNIFICANT = 0.01


@dataclass(frozen=True)
class Synced:
    """The symptom with the device waited for between calls."""

    level: str
    without: Rate
    rate: Rate
    p_value: float
    """One-sided, Fisher: of so few failures if the syncs made no difference."""


@dataclass(frozen=True)
class Findings:
    """All of one isolation."""

    symptom: Symptom
    swept: Swept
    culprits: tuple[str, ...] = ()
    confirmation: Confirmation | None = None
    divergence: Mapping[str, Any] | None = None
    synced: Synced | None = None
    is_gpu: bool = False
    notes: tuple[str, ...] = ()


def odd(digests: list[Any]) -> int:
    """How many are not the most common one."""
    return len(digests) - max(Counter(digests).values(), default=0)
