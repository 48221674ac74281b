"""X: does memory that no kernel may read change anything? It is filled with NaN and with large numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftgate.checks.verdict import Verdict
from driftgate.outcome import Outcome
from driftgate.reach.observations import Poisoned

NAME = "poison"
RECYCLED = "a+20 b+18 a-9 -b c=a@9 c+20 a+14 c+1"
"""A history that takes tokens back, frees pages and uses them again; short enough for every window of 32 or more."""


def judge(observed: Sequence[Poisoned]) -> Verdict:
    """Pass if every run under poison has the bytes of the run without.

    Negative controls: ``stale-page``, ``stale-workspace`` (NaN shows them), ``stale-large`` (large numbers alone do).
    """
    names = list(dict.fromkeys(found.name for found in observed))
    figures: dict[str, Any] = {
        "runs": len(observed),
        "poisons": names,
        "filled": sum(found.filled for found in observed),
        "merge_calls": sum(found.merge_calls for found in observed),
        "fault_hits": sum(found.fault_hits for found in observed),
    }
    bad = [found for found in observed if found.differs]
    if bad:
        first = bad[0]
        what = first.differs or {}
        place = f" at position {what['position']}" if "position" in what else ""
        message = (
            f"{len(bad)} of {len(observed)} runs are not as without poison; first {first.where} under {first.name}: "
            f"{what['what']}{place}"
        )
        evidence = {"poison": first.name, "where": first.where, **what}
        return Verdict(NAME, Outcome.DRIFT, message, figures, evidence)
    if not figures["merge_calls"] or not all(found.filled for found in observed):
        return Verdict(NAME, Outcome.NOT_EXERCISED, "nothing was filled, or no plan merged", figures)
    message = (
        f"{len(observed)} runs under {', '.join(names)} ({figures['filled']:,} values) have the bytes of a clean one"
    )
    return Verdict(NAME, Outcome.PASS, message, figures)
