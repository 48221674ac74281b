"""S: which kernel? What an isolation found, as a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from driftgate.checks.verdict import Verdict
from driftgate.isolation.observations import (
    NONE,
    OFF_REFERENCE,
    SIGNIFICANT,
    UNSTABLE,
    Confirmation,
    Findings,
    Swapped,
    Synced,
)
from driftgate.outcome import Outcome
from driftgate.stats import upper_bound

NAME = "isolate"


def judge(found: Findings) -> Verdict:
    """Drift where a symptom was reproduced, with the kernels that make it; not exercised where none was.

    Negative controls: every planted fault of a kernel, among them those compiled into the library.
    """
    symptom, swept = found.symptom, found.swept
    figures = {
        "symptom": symptom.kind,
        "culprits": list(found.culprits),
        "confirmed_by_swap": found.confirmation is not None and found.confirmation.confirmed,
        "prefills": symptom.prefills + swept.prefills,
        "confirm_prefills": found.confirmation.prefills if found.confirmation else 0,
        "runs": symptom.differing.runs,
        "differing": symptom.differing.failures,
        "max_abs": symptom.max_abs,
        "band": symptom.band,
        "swept_prefills": swept.prefills,
        "kernels_swept": len(swept.called),
        "calls": sum(row.calls for row in swept.rows.values() if row.replays or row.compared),
        "replays": sum(row.replays for row in swept.rows.values()),
        "bound95": upper_bound(symptom.differing.failures, max(symptom.differing.runs, 1), 0.95),
    }
    if found.confirmation:
        figures["confirmed_by"] = found.confirmation.by
        if found.confirmation.p_value is not None:
            figures["p_value"] = found.confirmation.p_value
    evidence: dict[str, Any] = {"not_told_apart": not_told_apart(found)}
    if found.confirmation:
        evidence["swaps"] = _swaps(found.confirmation)
    if found.divergence:
        evidence["first_divergence"] = dict(found.divergence)
    if found.synced:
        evidence["sync"] = _sync(found.synced)
    if found.culprits:
        evidence["first"] = dict(swept.rows[found.culprits[0]].first or {})
    if found.notes:
        evidence["notes"] = list(found.notes)
    outcome = Outcome.NOT_EXERCISED if symptom.kind == NONE else Outcome.DRIFT
    return Verdict(NAME, outcome, _message(found), figures, evidence, rows(found))


def rows(found: Findings) -> list[dict[str, Any]]:
    """One row a kernel, culprits first, then those with most against them."""
    listed = [row for row in found.swept.rows.values() if row.replays or row.compared]
    ordered = sorted(
        listed, key=lambda row: (row.kernel not in found.culprits, -row.disagreed, -row.worst_in_bands, row.kernel)
    )
    return [{**dataclasses.asdict(row), "culprit": row.kernel in found.culprits} for row in ordered]


def _message(found: Findings) -> str:
    symptom, swept = found.symptom, found.swept
    runs, replays = symptom.differing.runs, sum(row.replays for row in swept.rows.values())
    if symptom.kind == NONE:
        bound = upper_bound(0, max(runs, 1), 0.95)
        return (
            f"nothing to isolate: {runs} prefills equal in every byte (failure rate below {bound:.2%} at 95%) and "
            f"within the band; {replays} replays of {len(swept.called)} kernels agreed, and every reference"
        )
    spent = f"{symptom.prefills + swept.prefills} prefills"
    if not found.culprits:
        return (
            f"{_what(found)}, but no kernel is to blame: {replays} replays agreed and every reference did ({spent}); "
            f"{'; '.join(found.notes)}"
        )
    named = " and ".join(found.culprits)
    unconfirmed = "; ".join(found.notes) or "nothing to replace it with"
    swap = _confirmed(found.confirmation) if found.confirmation else f"not confirmed: {unconfirmed}"
    return f"{named}: {_what(found)}; {_caught(found)}; named after {spent}; {swap}"


def _what(found: Findings) -> str:
    symptom = found.symptom
    rate = symptom.differing
    off = "not finite" if symptom.max_abs is None else f"off by {symptom.max_abs:.2e} (band {symptom.band:.2e})"
    if symptom.kind == OFF_REFERENCE:
        inside = symptom.max_abs is not None and symptom.max_abs <= symptom.band
        return f"its results are off, though the logits are within the band ({off})" if inside else f"logits {off}"
    if rate.failures:
        return f"{rate.failures} of {rate.runs} identical prefills differ (it stopped at the first)"
    return f"a kernel contradicts itself, though {rate.runs} identical prefills did not differ"


def _caught(found: Findings) -> str:
    parts = []
    for name in found.culprits:
        row = found.swept.rows[name]
        if row.disagreed:
            parts.append(f"{row.disagreed} of {row.replays} replays of {name} disagreed")
        elif row.off:
            parts.append(
                f"{row.off} of {row.compared} calls of {name} are off its reference by up to {row.worst_error:.2e}"
            )
    return ", ".join(parts) or "no replay or reference caught it"


def _confirmed(confirmation: Confirmation) -> str:
    alone, what = confirmation.alone, "prefills" if confirmation.by == "prefills" else "replays on recorded inputs"
    rates, p_value = _rates(confirmation.baseline, alone), confirmation.p_value
    chance = f" (p {p_value:.1e})" if p_value is not None else ""
    if confirmation.confirmed:
        others = "; with every other kernel replaced that has a replacement it stays" if confirmation.others else ""
        return f"confirmed by swap: {rates} {what}{chance}{others}"
    if not confirmation.baseline.failures:
        return f"not confirmed: {rates} {what}: the logits do not show it"
    if not alone.gone:
        return f"NOT confirmed: with {alone.how} in place it is still there, {rates} {what}"
    if p_value is not None and p_value >= SIGNIFICANT:
        return f"not confirmed: {rates} {what}, which may be chance (p {p_value:.2f})"
    return "not confirmed: gone with it replaced, but also with every other kernel replaced"


def _rates(baseline: Any, alone: Swapped) -> str:
    after = alone.rate
    return f"{baseline.failures} of {baseline.runs} without, {after.failures} of {after.runs} with {alone.how}, of"


def _swaps(confirmation: Confirmation) -> list[dict[str, Any]]:
    def entry(swapped: Swapped, role: str) -> dict[str, Any]:
        rate = swapped.rate
        return {
            "role": role,
            "how": swapped.how,
            "replaced": list(swapped.replaced),
            **rate.as_dict(),
            "bound95": upper_bound(rate.failures, rate.runs, 0.95),
            "max_abs": swapped.max_abs,
            "given_not_finite": dict(swapped.not_finite),
        }

    listed = [entry(confirmation.alone, "named kernels replaced")]
    listed += [entry(other, f"all but {name} replaced") for name, other in confirmation.others.items()]
    return [{"role": "nothing replaced", **confirmation.baseline.as_dict()}, *listed]


def _sync(synced: Synced) -> Mapping[str, Any]:
    if synced.rate.failures:
        inside = {
            "call": "survives a sync after every VM call: it lies inside one VM call",
            "kernel": "survives: it lies inside a kernel",
        }
        says = inside[synced.level]
    elif synced.p_value < SIGNIFICANT:
        says = "vanishes: it lies between kernels (ordering, lifetime, aliasing)"
    else:
        says = "too rare to say"
    return {
        "level": synced.level,
        "without": synced.without.as_dict(),
        "with": synced.rate.as_dict(),
        "p_value": synced.p_value,
        "says": says,
    }


def not_told_apart(found: Findings) -> list[str]:
    """What this isolation could not judge."""
    swept, said = found.swept, []
    if swept.without:
        shown = ", ".join(swept.without[:3]) + (", ..." if len(swept.without) > 3 else "")
        said.append(f"replayed but without a reference: {len(swept.without)} functions ({shown})")
    if swept.never_called:
        said.append(f"never called under this plan: {', '.join(swept.never_called)}")
    only_off = [row.kernel for row in swept.rows.values() if row.suspect and row.kernel not in found.culprits]
    if only_off:
        said.append(f"off its reference as well, but the same every time: {', '.join(only_off)}")
    if found.symptom.kind == UNSTABLE and not found.is_gpu:
        said.append("on a CPU calls run one after another: ordering between kernels cannot show here")
    said.append(
        "the host side of the cache (page tables, positions it hands to kernels) is not a kernel and has no reference"
    )
    if sum(swept.rows[name].suspect for name in found.culprits) > 1:
        said.append("each named kernel is wrong on its own inputs; how much of the drift is whose is not told apart")
    return said
