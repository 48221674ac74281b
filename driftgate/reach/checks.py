"""B, P and X on one gate: observe, then judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from driftgate import observe
from driftgate.checks import boundary as boundary_check
from driftgate.checks import history as history_check
from driftgate.checks import poison as poison_check
from driftgate.checks.history import left_out
from driftgate.checks.verdict import Verdict
from driftgate.gate import Gate
from driftgate.modes.poison import POISONS
from driftgate.outcome import Outcome, UsageError
from driftgate.plan import Plan
from driftgate.reach.edges import edges
from driftgate.reach.observations import Compared
from driftgate.reach.script import Script, of_model
from driftgate.subject import Subject, corrected

Fixes = tuple[str, ...]


def boundary(gate: Gate) -> Verdict:
    """B: plans around every edge, against HuggingFace on the longest of them."""
    shape, chunk = gate.model.shape, max(gate.plan.chunks)
    found = edges(shape, gate.target, gate.dtype, chunk)
    ids = gate.model.prompt(boundary_check.longest(found, gate.most_positions), gate.settings.seed)
    met = {name: length for name, length in found.items() if length < len(ids)}
    plans = boundary_check.plans(met, ids, chunk, shape.window)
    exact, floor = gate.reference_of([ids])
    fixes = {plan.name: gate.fixes(_chunks(plan)) for plan in plans}
    observed: list[Compared] = []
    for subject, group in _by_fixes(gate, plans, fixes):
        observed += observe.at_edges(subject, group, exact[0], gate.progress)
    commands = {plan.name: plan_command(gate, plan, fixes[plan.name]) for plan in plans}
    fixed = [name for name in fixes if fixes[name]]
    beyond = {name: length for name, length in found.items() if name not in met}
    return boundary_check.judge(observed, floor, met, fixed, commands, beyond)


def history(gate: Gate) -> Verdict:
    """P: histories of every kind, against HuggingFace on every token list that they make."""
    given, shape = gate.settings.history, gate.model.shape
    texts = {"given": given} if given else history_check.texts(max(gate.plan.chunks), shape.window)
    scripts = [_script(gate, "given", given)] if given else _fitting(gate, texts)
    missed = [name for name in texts if name not in {script.name for script in scripts}]
    if not scripts:
        # Of a window of a token or two no chunk is short enough.
        return Verdict("history", Outcome.NOT_EXERCISED, "every history meets a known defect with this window", {})
    exact, floor = gate.reference_of([ids for script in scripts for ids in script.lists])
    remaining = iter(exact)
    references = {script.name: [next(remaining) for _ in script.lists] for script in scripts}
    fixes = {script.name: gate.fixes(script.chunks) for script in scripts}
    observed: list[Compared] = []
    for subject, group in _by_fixes(gate, scripts, fixes):
        right = [references[script.name] for script in group]
        observed += observe.of_histories(subject, group, right, gate.progress)
    commands = {script.name: script_command(gate, script, fixes[script.name]) for script in scripts}
    return history_check.judge(observed, scripts, floor, commands, missed)


def poison(gate: Gate) -> Verdict:
    """X: the plan, and a history that recycles pages, under each poison."""
    script = _script(gate, "recycled", poison_check.RECYCLED)
    found = observe.poisoned(gate.subject, [gate.plan], POISONS)
    recycled = corrected(gate.subject, gate.fixes(script.chunks))
    return poison_check.judge([*found, *observe.poisoned(recycled, [script], POISONS)])


def _script(gate: Gate, name: str, text: str) -> Script:
    return of_model(gate.model, name, text, gate.settings.seed)


def _fitting(gate: Gate, texts: dict[str, str]) -> list[Script]:
    """The scripts that fit the cache, whose logits can be held, and that meet no known defect."""
    found = []
    for name, text in texts.items():
        try:
            script = _script(gate, name, text)
        except UsageError:
            continue  # more tokens than the cache holds
        if max(map(len, script.lists)) <= gate.most_positions and not left_out(script, gate.model.shape.window):
            found.append(script)
    return found


def _chunks(plan: Plan) -> list[tuple[int, int]]:
    return list(zip(plan.starts, plan.chunks, strict=True))


def _by_fixes(
    gate: Gate, work: Sequence[Plan] | Sequence[Script], fixes: dict[str, Fixes]
) -> Iterator[tuple[Subject, list]]:
    """``work`` in groups that need the same corrections, each with its subject."""

    def key(one: Plan | Script) -> Fixes:
        return fixes[one.name]

    for names, group in groupby(sorted(work, key=key), key=key):
        yield corrected(gate.subject, names), list(group)


def script_command(gate: Gate, script: Script, names: Fixes) -> str:
    """The gate of this history alone."""
    return gate.reproduce("history", history=script.text, **_fix(names))


def _fix(names: Fixes) -> dict[str, str]:
    return {"fix": ",".join(names)} if names else {}


def plan_command(gate: Gate, plan: Plan, names: Fixes) -> str:
    """The gate of this plan alone: its prompt is the beginning of the model's own."""
    # One length is repeated over the prompt, so its end has to be said.
    tokens = {"tokens": str(len(plan.ids))} if len(plan.chunks) == 1 else {"tokens": ""}
    # The gate's own plan may have corrections of its own.
    return gate.reproduce("reference", plan="", chunk=plan.name, prompt_ids="", **tokens, **_fix(names))
