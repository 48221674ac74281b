"""K: do one-shot, odd, tailed and one-token chunkings of the same prompt agree within the band?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftgate.checks.band import BAND_FACTOR, band
from driftgate.checks.verdict import Verdict
from driftgate.metrics import bits, max_abs, unusable
from driftgate.model import Shape
from driftgate.observe import Positions
from driftgate.outcome import Outcome
from driftgate.plan import Plan, split

NAME = "chunking"


def chunkings(plan: Plan, window: int | None) -> list[Plan]:
    """The plan itself, then the prompt in one chunk, in odd chunks, with a tail of one token, and token by token.

    "One" chunk is at most window - 1 tokens long: what is longer meets a known defect and is a probe of its own.
    Chunkings that come out equal are listed once.
    """
    tokens = len(plan.ids)
    longest = tokens if window is None else min(tokens, max(window - 1, 1))
    usual = max(plan.chunks)
    odd = max(usual * 5 // 6 | 1, 1)
    candidates = {
        "one-shot": split(tokens, longest),
        "odd": split(tokens, odd),
        "tail": (*split(tokens - 1, longest), 1) if tokens > 1 else (1,),
        "one-token": (1,) * tokens,
    }
    plans, seen = [plan], {plan.chunks}
    for name, chunks in candidates.items():
        if chunks not in seen:
            seen.add(chunks)
            plans.append(Plan(name, plan.ids, chunks))
    return plans


def judge(observed: Sequence[Positions], noise_floor: float, shape: Shape) -> Verdict:
    """Pass if every chunking agrees with the first within the band, at every position.

    ``noise_floor``: in logits, see ``reference.noise_floor``. Negative controls: ``merge-wrong``, ``rope-restart``.
    """
    limit = band(noise_floor)
    base = observed[0]
    expected = logits = base.logits()
    figures: dict[str, Any] = {
        "chunkings": {o.plan.name: {"chunks": len(o.plan.chunks), "merge_calls": o.merge_calls} for o in observed},
        "positions": len(logits),
        "noise_floor": noise_floor,
        "band_factor": BAND_FACTOR,
        "band": limit,
        "fault_hits": base.fault_hits,
    }
    worst: tuple[float, str, tuple[int, int]] = (-1.0, "", (0, 0))
    for other in observed:
        logits = other.logits()
        if reason := unusable(logits, f"logits of chunking {other.plan.name}"):
            return Verdict(NAME, Outcome.DRIFT, reason.what, figures, {"chunking": other.plan.name, **reason.as_dict()})
        if logits.shape != expected.shape:
            message = (
                f"chunking {other.plan.name} gives {list(logits.shape)}, {base.plan.name} gives {list(expected.shape)}"
            )
            return Verdict(NAME, Outcome.DRIFT, message, figures)
        if other is not base:
            off, place = max_abs(logits, expected)
            figures["chunkings"][other.plan.name]["max_abs"] = off
            worst = max(worst, (off, other.plan.name, place))
    figures["max_abs"] = worst[0] if len(observed) > 1 else None
    if len(observed) < 2:
        return Verdict(NAME, Outcome.NOT_EXERCISED, "the prompt has one chunking only", figures)
    width = f"band {limit:.2e} ({BAND_FACTOR:g} x noise floor {noise_floor:.2e})"
    text = f"{len(observed)} chunkings, max abs {worst[0]:.2e}, {width}"
    if not worst[0] <= limit:
        return Verdict(
            NAME, Outcome.DRIFT, f"{text}; {worst[1]} against {base.plan.name}", figures, _evidence(observed, worst)
        )
    wrong = [o for o in observed if o.merge_calls != o.plan.merge_calls(shape.attention_layers)]
    if wrong or not any(o.merge_calls for o in observed):
        names = ", ".join(o.plan.name for o in wrong) or "all"
        return Verdict(NAME, Outcome.NOT_EXERCISED, f"merges did not run as the plans have it: {names}", figures)
    return Verdict(NAME, Outcome.PASS, text, figures)


def _evidence(observed: Sequence[Positions], worst: tuple[float, str, tuple[int, int]]) -> dict[str, Any]:
    _, name, (position, word) = worst
    base = observed[0]
    other = next(o for o in observed if o.plan.name == name)
    values = other.logits()[position, word], base.logits()[position, word]
    return {
        "chunking": name,
        "against": base.plan.name,
        "chunks": list(other.plan.chunks),
        "position": position,
        "vocabulary_index": word,
        "values": [float(v) for v in values],
        "bits": [bits(v) for v in values],
    }
