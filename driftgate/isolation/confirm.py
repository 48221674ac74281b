"""Confirm by swap: gone with the named kernels replaced, there with every other one replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from driftgate import observe
from driftgate.calls import POSITIONS, VM, vm_name
from driftgate.isolation.delta import smallest
from driftgate.isolation.observations import OFF_REFERENCE, Confirmation, Rate, Swapped, Swept, Symptom
from driftgate.isolation.symptom import unstable_rate, with_swaps
from driftgate.job import plan_to_json
from driftgate.kernels.replacements import NUMPY, description
from driftgate.processes import run_jobs
from driftgate.stats import fisher

if TYPE_CHECKING:
    from driftgate.gate import Gate
    from driftgate.subject import Subject

PLAIN = "plain"
FAILURES_WANTED = 12
"""Failures that a baseline should expect: 7 against none in as many runs are significant, and luck varies."""
SIGNS = 8
"""Disagreements of recorded replays that are enough."""
MOST_REPLAYS = 400_000
OTHERS_RUNS = 3
"""A symptom that has to stay is looked for in this many times the runs that it should take to show."""


class Swaps:
    """The replacements that isolation can make for one subject."""

    def __init__(self, gate: Gate, subject: Subject, swept: Swept) -> None:
        self.gate = gate
        self.subject = subject
        self.swept = swept
        self.chosen = dict(gate.settings.swap)

    def of(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Descriptions of the replacements of ``names``, those that have one."""
        return {name: how for name in names if (how := self._one(name)) is not None}

    def others(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Those of every called kernel that is not in ``names``."""
        return self.of([name for name in self.swept.called if name not in names])

    def how(self, kernel: str) -> str:
        """How ``kernel`` is replaced: as ``--swap`` has it, by default by its NumPy reference."""
        return self.chosen.get(kernel, NUMPY)

    def _one(self, name: str) -> dict[str, Any] | None:
        if name == vm_name(POSITIONS):
            return {"how": PLAIN}
        if name.startswith(VM):
            return {"how": PLAIN} if self.subject.plain is not None and name not in self.swept.without else None
        return description(name, self.how(name), self.gate.model.shape, self.subject.target, self.subject.dtype)


def confirm(
    gate: Gate, subject: Subject, symptom: Symptom, swept: Swept, culprits: tuple[str, ...]
) -> Confirmation | None:
    """The swap experiment, by whole prefills where the symptom is frequent enough, else by recorded replays.

    None where a culprit has nothing to be replaced with: VM functions of a GPU have no plain twins.
    """
    swaps = Swaps(gate, subject, swept)
    if len(swaps.of(culprits)) < len(culprits):
        return None
    if symptom.kind == OFF_REFERENCE:
        alone = with_swaps(gate, subject, swaps.of(culprits), symptom, 1)
        others = {name: with_swaps(gate, subject, swaps.others([name]), symptom, 1) for name in culprits}
        # A stable result is what it is: no chance is involved.
        return Confirmation(Rate(1, 1), alone, others, p_value=0.0, prefills=1 + len(others))
    rate = max(_rate_of_prefill(swept, culprits), symptom.differing.failures / max(symptom.differing.runs, 1) / 2)
    runs = _runs_for(rate)
    if runs > gate.settings.runs and any(swept.rows[name].disagreed for name in culprits):
        return _by_replays(gate, subject, swaps, culprits)
    runs = min(runs, gate.settings.runs)
    baseline = unstable_rate(gate, subject, runs, keep_going=True)
    alone = with_swaps(gate, subject, swaps.of(culprits), symptom, runs)
    others = {
        name: with_swaps(gate, subject, swaps.others([name]), symptom, OTHERS_RUNS * runs, keep_going=False)
        for name in culprits
    }
    value = fisher(baseline.failures, baseline.runs, alone.rate.failures, alone.rate.runs)
    spent = baseline.runs + alone.rate.runs + sum(other.rate.runs for other in others.values()) + 1 + len(others)
    return Confirmation(baseline, alone, others, p_value=value, prefills=spent)


def reduce(gate: Gate, subject: Subject, symptom: Symptom, swept: Swept) -> tuple[tuple[str, ...], str]:
    """Kernels to blame where the sweep caught none, and what to say of them: the fewest whose replacement makes the
    symptom go; none if even replacing all of them does not, or if it shows too rarely for its absence to say anything.
    """
    swaps = Swaps(gate, subject, swept)
    rate = symptom.differing
    runs = 1 if symptom.kind == OFF_REFERENCE else _runs_for(rate.failures / max(rate.runs, 1))
    if runs > gate.settings.runs:
        return (), (
            f"seen in {rate.failures} of {rate.runs} prefills: to tell kernels apart by swap takes about --runs {runs}"
        )

    def enough(names: tuple[str, ...]) -> bool:
        return with_swaps(gate, subject, swaps.of(names), symptom, runs, keep_going=False).gone

    everything = tuple(swaps.of(swept.called))
    if not everything or not enough(everything):
        return (), "it stays with every kernel replaced that has a replacement: it lies elsewhere"
    return smallest(everything, enough), "no replay and no reference caught it: the fewest to replace for it to go"


def _rate_of_prefill(swept: Swept, culprits: tuple[str, ...]) -> float:
    """The share of prefills in which one of ``culprits`` goes wrong, as its replays have it."""
    right = 1.0
    for name in culprits:
        row = swept.rows[name]
        if row.replays:
            right *= (1 - row.disagreed / row.replays) ** (row.calls / swept.prefills)
    return 1 - right


def _runs_for(rate: float) -> int:
    """Prefills in which ``FAILURES_WANTED`` failures are expected; enough to tell from none, however often it fails."""
    return max(round(FAILURES_WANTED / rate), FAILURES_WANTED) if rate else 10**9


def _by_replays(gate: Gate, subject: Subject, swaps: Swaps, culprits: tuple[str, ...]) -> Confirmation:
    library, replacement = [0, 0], [0, 0]
    for name in culprits:
        said: dict[str, dict[str, Any]] = {}

        def on_event(_: int, message: dict[str, Any], said: dict[str, dict[str, Any]] = said) -> bool:
            if message["event"] == "replayed":
                said[message["who"]] = message
            return True

        task = {
            "kind": "replays",
            "plan": plan_to_json(gate.plan),
            "kernel": name,
            "how": swaps.of([name]).get(name, {}),
            "most": MOST_REPLAYS,
            "enough": SIGNS,
        }
        # Nothing is said while it replays, for minutes perhaps.
        run_jobs([subject.job(task, observe.cores())], on_event, max(subject.timeout, 600.0), 1)
        for total, who in ((library, "library"), (replacement, "replacement")):
            total[0] += said[who]["disagreed"]
            total[1] += said[who]["replays"]
    baseline, after = Rate(*library), Rate(*replacement)
    how = ", ".join(swaps.how(name) for name in culprits if not name.startswith(VM)) or PLAIN
    value = fisher(baseline.failures, baseline.runs, after.failures, after.runs)
    alone = Swapped(culprits, how, after)
    return Confirmation(baseline, alone, {}, by="replays", p_value=value, prefills=len(culprits))
