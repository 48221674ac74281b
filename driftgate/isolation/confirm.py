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
from driftgate.stats import fisher, lower_bound

if TYPE_CHECKING:
    from driftgate.gate import Gate
    from driftgate.subject import Subject

PLAIN = "plain"
FAILURES_WANTED = 12
"""Failures that a baseline should expect: 7 against none in as many runs are significant, and luck varies."""
SIGNS = 10
"""Disagreements of recorded replays that are enough: as it stops at them, 2^(1 - 10) is chance, below 1%."""
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
        return PLAIN if kernel.startswith(VM) else self.chosen.get(kernel, NUMPY)

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
        return _of_a_stable_result(gate, subject, symptom, swaps, culprits)
    rate = _rate_of_prefill(swept, culprits)
    runs = _runs_for(rate)
    if runs > gate.settings.runs and all(swept.rows[name].disagreed for name in culprits):
        seen = symptom.differing
        if rate >= lower_bound(seen.failures, max(seen.runs, 1), 0.95):
            # What they do alone is as much as was seen, so their own replays can speak for the prefills.
            return _by_replays(gate, subject, swaps, culprits)
    return _by_prefills(gate, subject, symptom, swaps, culprits, min(runs, gate.settings.runs))


def reduce(
    gate: Gate, subject: Subject, symptom: Symptom, swept: Swept
) -> tuple[tuple[str, ...], Confirmation | None, str]:
    """Kernels to blame where the sweep caught none, their confirmation, and what to say of them.

    The fewest whose replacement makes the symptom go. Nobody if even replacing all does not, if it shows too rarely for
    its absence to say anything, or if the swap experiment does not confirm the set.
    """
    swaps, runs = Swaps(gate, subject, swept), 1
    if symptom.kind != OFF_REFERENCE:
        # The symptom stopped at its first failure, which says little of its rate.
        rate = unstable_rate(gate, subject, gate.settings.runs, keep_going=True)
        runs = _runs_for(lower_bound(rate.failures, rate.runs, 0.95))
        if runs > gate.settings.runs:
            wanted = f"about --runs {runs}" if rate.failures else "more --runs"
            said = f"seen in {rate.failures} of {rate.runs} prefills: to tell kernels apart by swap takes {wanted}"
            return (), None, said

    def enough(names: tuple[str, ...]) -> bool:
        return with_swaps(gate, subject, swaps.of(names), symptom, runs, keep_going=False).gone

    everything = tuple(swaps.of(swept.called))
    if not everything or not enough(everything):
        return (), None, "it stays with every kernel replaced that has a replacement: it lies elsewhere"
    names = smallest(everything, enough)
    if symptom.kind == OFF_REFERENCE:
        confirmation = _of_a_stable_result(gate, subject, symptom, swaps, names)
    else:
        confirmation = _by_prefills(gate, subject, symptom, swaps, names, runs)
    if not confirmation.confirmed:
        return (), None, f"delta debugging came to {', '.join(names)}, which the swap experiment did not confirm"
    return names, confirmation, "no replay and no reference caught it: the fewest to replace for it to go"


def _of_a_stable_result(
    gate: Gate, subject: Subject, symptom: Symptom, swaps: Swaps, culprits: tuple[str, ...]
) -> Confirmation:
    off = symptom.max_abs is None or symptom.max_abs > symptom.band
    alone = with_swaps(gate, subject, swaps.of(culprits), symptom, 1)
    others = {name: with_swaps(gate, subject, swaps.others([name]), symptom, 1) for name in culprits}
    # A result that repeats is what it is: no chance is involved, and no p-value.
    return Confirmation(Rate(int(off), 1), alone, others, p_value=None, prefills=1 + len(others))


def _by_prefills(
    gate: Gate, subject: Subject, symptom: Symptom, swaps: Swaps, culprits: tuple[str, ...], runs: int
) -> Confirmation:
    baseline = unstable_rate(gate, subject, runs, keep_going=True)
    alone = with_swaps(gate, subject, swaps.of(culprits), symptom, runs)
    others = {
        name: with_swaps(gate, subject, swaps.others([name]), symptom, OTHERS_RUNS * runs, keep_going=False)
        for name in culprits
    }
    value = fisher(baseline.failures, baseline.runs, alone.rate.failures, alone.rate.runs)
    spent = baseline.runs + alone.rate.runs + sum(other.rate.runs for other in others.values()) + 1 + len(others)
    return Confirmation(baseline, alone, others, p_value=value, prefills=spent)


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
    """Each culprit and its replacement on recorded inputs; the weakest of them speaks for all."""
    tests = [_replayed(gate, subject, swaps, name) for name in culprits]
    baseline, after = max(tests, key=lambda test: fisher(*_table(*test)))
    how = ", ".join(dict.fromkeys(swaps.how(name) for name in culprits))
    alone = Swapped(culprits, how, Rate(sum(t[1].failures for t in tests), after.runs))
    value = fisher(*_table(baseline, after))
    return Confirmation(baseline, alone, {}, by="replays", p_value=value, prefills=len(culprits))


def _table(baseline: Rate, after: Rate) -> tuple[int, int, int, int]:
    return baseline.failures, baseline.runs, after.failures, after.runs


def _replayed(gate: Gate, subject: Subject, swaps: Swaps, name: str) -> tuple[Rate, Rate]:
    said: dict[str, Rate] = {}

    def on_event(_: int, message: dict[str, Any]) -> bool:
        if message["event"] == "replayed":
            said[message["who"]] = Rate(message["disagreed"], message["replays"])
        return True

    task = {
        "kind": "replays",
        "plan": plan_to_json(gate.plan),
        "kernel": name,
        "how": swaps.of([name])[name],
        "most": MOST_REPLAYS,
        "enough": SIGNS,
    }
    run_jobs([subject.job(task, observe.cores())], on_event, subject.timeout, 1)
    return said["library"], said["replacement"]
