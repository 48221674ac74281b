"""R: are N identical chunked prefills bitwise equal, in one process and in fresh ones?"""

from __future__ import annotations

from collections import Counter
from typing import Any

from driftgate.checks.verdict import Verdict
from driftgate.metrics import first_difference, unusable
from driftgate.model import Shape
from driftgate.observe import Repeats, Run
from driftgate.outcome import Outcome
from driftgate.plan import Plan
from driftgate.stats import lower_bound, upper_bound

NAME = "repeat"


def judge(observed: Repeats, plan: Plan, shape: Shape) -> Verdict:
    """Pass if every run has the same digests, is finite, and merged exactly as often as the plan has it.

    Negative controls: ``merge-race``, ``bit-flip``.
    """
    runs = observed.runs
    if not runs:
        return Verdict(
            NAME,
            Outcome.INFRA,
            f"none of {observed.asked} runs was heard of",
            {"runs": 0, "runs_asked": observed.asked},
        )
    counts = Counter(run.digests for run in runs)
    # The most common result stands for the right one, so that a bad first run does not condemn all others.
    usual = counts.most_common(1)[0][0]
    differing = [run for run in runs if run.digests != usual]
    expected = plan.merge_calls(shape.attention_layers), plan.rows_merged(shape.attention_layers, shape.heads)
    miscounted = [run for run in runs if (run.merge_calls, run.rows_merged) != expected]
    figures = _figures(observed, len(differing), len(counts), expected)
    bound = f"failure rate below {figures['bound95']:.2%} at 95%, {figures['bound99']:.2%} at 99%"
    if differing:
        pair = _evidence(observed, plan)
        if len(differing) < len(runs) / 2:
            pair["odd_runs"] = [run.run for run in differing[:10]]
        message = f"{len(differing)} of {len(runs)} runs differ in bytes from the others; {_place(pair)}"
        return Verdict(NAME, Outcome.DRIFT, message, figures, pair)
    if len(runs) != observed.asked:
        message = f"{len(runs)} of {observed.asked} runs were heard of, and nothing says why"
        return Verdict(NAME, Outcome.INFRA, message, figures)
    if broken := _unusable(observed, plan):
        return Verdict(NAME, Outcome.DRIFT, f"all {len(runs)} runs alike, but {broken['what']}", figures, broken)
    if miscounted:
        return Verdict(NAME, Outcome.NOT_EXERCISED, _miscounted(miscounted[0], expected), figures)
    if len(runs) == 1:
        return Verdict(NAME, Outcome.NOT_EXERCISED, "one run is compared with nothing: take two or more", figures)
    if expected[0] == 0:
        reason = "no chunk after the first has more than one token, so merge never runs"
        return Verdict(NAME, Outcome.NOT_EXERCISED, f"{reason}: take more tokens or shorter chunks", figures)
    message = f"{len(runs)} runs in {observed.blocks} processes equal in every byte; {bound}"
    return Verdict(NAME, Outcome.PASS, message, figures)


def _figures(observed: Repeats, differing: int, distinct: int, expected: tuple[int, int]) -> dict[str, Any]:
    runs = observed.runs
    first = runs[0]
    return {
        "runs": len(runs),
        "runs_asked": observed.asked,
        "blocks": len({run.block for run in runs}),
        "disagreeing": differing,
        "distinct_results": distinct,
        "merge_calls": first.merge_calls,
        "merge_calls_expected": expected[0],
        "rows_merged": first.rows_merged,
        "merge_calls_total": sum(run.merge_calls for run in runs),
        "rows_merged_total": sum(run.rows_merged for run in runs),
        "rate_low95": lower_bound(differing, len(runs), 0.95),
        "bound95": upper_bound(differing, len(runs), 0.95),
        "bound99": upper_bound(differing, len(runs), 0.99),
        "fault_hits": observed.fault_hits,
    }


def _evidence(observed: Repeats, plan: Plan) -> dict[str, Any]:
    """The first two runs whose tensors were kept and that differ: where, both values and both bit patterns."""
    kept = [run for run in observed.runs if observed.tensors(run.run) is not None]
    for i, left in enumerate(kept):
        for right in kept[i + 1 :]:
            if left.digests != right.digests:
                return _between(observed, plan, left, right)
    return {}


def _between(observed: Repeats, plan: Plan, left: Run, right: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"runs": [left.run, right.run], "blocks": [left.block, right.block]}
    a, b = observed.tensors(left.run), observed.tensors(right.run)
    assert a is not None and b is not None
    for kind in ("hidden", "logits"):
        for chunk, start in enumerate(plan.starts):
            name = f"{kind}{chunk}"
            difference = first_difference(a[name], b[name])
            if difference is None:
                continue
            entry = {**difference.as_dict(), "chunk": chunk}
            index = difference.index or ()
            if kind == "hidden" and len(index) == 3:
                entry |= {"position": start + index[1], "dimension": index[2]}
            elif kind == "logits" and index:
                entry |= {"position": start + plan.chunks[chunk] - 1, "vocabulary_index": index[0]}
            found[kind] = entry
            break
    return found


def _place(evidence: dict[str, Any]) -> str:
    entry = evidence.get("hidden") or evidence.get("logits")
    if not entry:
        return "no tensors of two differing runs were kept"
    first, second = evidence["runs"]
    values = entry.get("values", ["?", "?"])
    at = f"chunk {entry['chunk']}, position {entry.get('position', '?')}"
    return f"first between runs {first} and {second} at {at}: {values[0]} against {values[1]}"


def _unusable(observed: Repeats, plan: Plan) -> dict[str, Any]:
    tensors = observed.tensors(observed.runs[0].run)
    if tensors is None:
        return {"what": "the values of none were kept"}
    for chunk in range(len(plan.chunks)):
        for kind in ("hidden", "logits"):
            array = tensors[f"{kind}{chunk}"]
            # A library that has no function for hidden states leaves them empty.
            absent = kind == "hidden" and not array.size
            if not absent and (reason := unusable(array, f"{kind} of chunk {chunk}")):
                return {**reason.as_dict(), "chunk": chunk}
    return {}


def _miscounted(run: Run, expected: tuple[int, int]) -> str:
    return (
        f"run {run.run} merged {run.merge_calls} times ({run.rows_merged} rows) where this plan has to merge "
        f"{expected[0]} times ({expected[1]} rows): the path under test is not the one that ran"
    )
