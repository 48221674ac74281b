"""``result.json``: written anew after every check, so that an interrupted run keeps what it finished."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftgate.checks.verdict import Verdict
from driftgate.outcome import Outcome, UsageError, worst

SCHEMA = "driftgate-result/1"


@dataclass(frozen=True)
class Known:
    """The probe of one known upstream defect."""

    name: str
    status: str
    """``fails``: the defect is there. ``stale``: the entry applies here, but the defect did not show."""
    figures: Mapping[str, Any]


@dataclass
class ResultFile:
    """The result of one run of the gate on one model."""

    folder: Path
    header: dict[str, Any]
    """``model``, ``target``, ``versions``, ``plan`` and whatever else describes the run."""
    expected: tuple[str, ...]
    """The checks that were asked for: until each has a verdict the run is not complete, and never a pass."""
    strict: bool = False
    verdicts: list[Verdict] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    """Recorded cases that were run: case, check, status, message, figures, known."""
    error: tuple[Outcome, str] | None = None
    """What ended the run before its checks could be judged."""
    seconds: float = 0.0
    finished: bool = True
    """False while a run goes on: until it comes to its end, whatever its checks say, it is not a pass."""

    @property
    def path(self) -> Path:
        return self.folder / "result.json"

    def open(self) -> None:
        """Make the folder and write the first, empty result. Raises UsageError where that cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            raise UsageError(f"--out {self.folder} cannot be written: {error.strerror}") from None

    def add(self, verdict: Verdict) -> None:
        if verdict.check in (v.check for v in self.verdicts):
            raise ValueError(f"check {verdict.check} has a verdict already")
        self.verdicts.append(verdict)
        self.write()

    def add_known(self, known: Known) -> None:
        """Write ``known`` down, in the place of an entry of the same name."""
        names = [k.name for k in self.known]
        at = names.index(known.name) if known.name in names else len(names)
        self.known[at : at + 1] = [known]
        self.write()

    def add_case(self, row: dict[str, Any]) -> None:
        """Write down what came of a recorded case."""
        self.cases.append(row)
        self.write()

    def fail(self, outcome: Outcome, message: str) -> None:
        """Note what ended the run. The first such note stands."""
        self.error = self.error or (outcome, message)
        self.write()

    @property
    def missing(self) -> tuple[str, ...]:
        found = {v.check for v in self.verdicts}
        return tuple(name for name in self.expected if name not in found)

    @property
    def outcome(self) -> Outcome:
        """The worst of what was found; ``infra`` rather than a pass while the run is not at its end."""
        return worst([self.outcome_so_far] if self.finished else [self.outcome_so_far, Outcome.INFRA])

    @property
    def outcome_so_far(self) -> Outcome:
        """The worst of what was found, whether or not more was to come."""
        found = [v.outcome for v in self.verdicts]
        if self.error is not None:
            found.append(self.error[0])
        if self.missing:
            found.append(Outcome.INFRA)
        if self.strict and self.known:
            found.append(Outcome.DRIFT)
        statuses = {row["status"] for row in self.cases}
        if "fails" in statuses or (self.strict and statuses - {"pass"}):
            found.append(Outcome.DRIFT)
        return worst(found)

    def write(self) -> None:
        """Replace ``result.json`` by what is known now. A folder that can no longer be written ends in ``usage``."""
        try:
            self._write()
        except OSError as error:
            self.error = self.error or (
                Outcome.USAGE,
                f"--out {self.folder} can no longer be written: {error.strerror}",
            )

    def _write(self) -> None:
        # A name of its own: two gates may have been given one folder.
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(clean(self.as_dict()), indent=2, allow_nan=False) + "\n")
        temporary.replace(self.path)

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verdict": self.outcome.value,
            "complete": self.finished and not self.missing and self.error is None,
            "error": self.error[1] if self.error else None,
            **self.header,
            "seconds": round(self.seconds, 3),
            "checks": [
                {
                    "check": v.check,
                    "model": self.header["model"]["name"],
                    "verdict": v.outcome.value,
                    "message": v.message,
                    "figures": v.figures,
                    "evidence": v.evidence,
                    **({"rows": v.rows} if v.rows is not None else {}),
                }
                for v in self.verdicts
            ],
            **({"cases": self.cases} if self.cases else {}),
            "known": [{"name": k.name, "status": k.status, "figures": k.figures} for k in self.known],
        }


def discard(folder: Path) -> None:
    """Remove an older result, so that a run that was refused does not leave another run's verdict in its place."""
    with contextlib.suppress(OSError):
        (folder / "result.json").unlink()


def clean(value: Any) -> Any:
    """``value`` with what JSON cannot say put into words: NaN and infinities as strings, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, str):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return clean(value.item())  # a NumPy number
    if isinstance(value, Iterable):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
