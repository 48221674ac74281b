"""H: do the logits agree with HuggingFace at every position, within a band derived from a measured noise floor?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from driftgate.checks.band import BAND_FACTOR, band
from driftgate.checks.verdict import Verdict
from driftgate.metrics import agreement, bits, max_abs, unusable
from driftgate.observe import Positions
from driftgate.outcome import InfraError, Outcome

NAME = "reference"


def noise_floor(exact: np.ndarray, rounded: np.ndarray) -> float:
    """Largest error that the dtype alone makes: the reference in the dtype under test against itself in float64.

    Both ``(n, vocab)``, of the same arrays and ids. Raises InfraError where the reference proves nothing.
    """
    for array, name in ((exact, "the float64 reference"), (rounded, "the reference in the dtype under test")):
        if reason := unusable(array, name):
            raise InfraError(f"HuggingFace: {reason.what}")
    floor, _ = max_abs(rounded, exact)
    if floor == 0.0:
        raise InfraError(
            "HuggingFace in float64 and in the dtype under test agree exactly: the noise floor was not measured"
        )
    return floor


def judge(observed: Positions, exact: np.ndarray, rounded: np.ndarray, expected_merges: int) -> Verdict:
    """Pass if ``observed`` is within the band of ``exact`` at every position.

    ``exact``: HuggingFace in float64; ``rounded``: the same in the dtype under test; both ``(n, vocab)``.
    Negative controls: ``merge-wrong``, ``lse-base``, ``rope-restart``, ``append-drop``.
    """
    floor = noise_floor(exact, rounded)
    limit = band(floor)
    logits = observed.logits()
    figures: dict[str, Any] = {
        "positions": len(logits),
        "noise_floor": floor,
        "band_factor": BAND_FACTOR,
        "band": limit,
        "merge_calls": observed.merge_calls,
        "fault_hits": observed.fault_hits,
    }
    if reason := unusable(logits, "logits"):
        return Verdict(NAME, Outcome.DRIFT, reason.what, figures, reason.as_dict())
    if logits.shape != exact.shape:
        message = f"logits are {list(logits.shape)}, but the reference has {list(exact.shape)}"
        return Verdict(NAME, Outcome.DRIFT, message, figures)
    found = agreement(logits, exact)
    same_dtype, _ = max_abs(logits, rounded)
    figures |= {
        "max_abs": found.max_abs,
        "max_abs_same_dtype": same_dtype,
        **{key: value for key, value in asdict(found).items() if key not in ("max_abs", "worst")},
    }
    position, word = found.worst
    evidence = {
        "position": position,
        "vocabulary_index": word,
        "values": [float(logits[position, word]), float(exact[position, word])],
        "bits": [bits(logits[position, word]), bits(exact[position, word])],
    }
    width = f"band {limit:.2e} ({BAND_FACTOR:g} x noise floor {floor:.2e})"
    text = f"max abs {found.max_abs:.2e} over {len(logits)} positions, {width}"
    if not found.max_abs <= limit:
        return Verdict(
            NAME, Outcome.DRIFT, f"{text}; worst at position {position}, vocabulary index {word}", figures, evidence
        )
    if observed.merge_calls != expected_merges or not expected_merges:
        message = f"{observed.merge_calls} merges ran where the plan has {expected_merges}, and it takes at least one"
        return Verdict(NAME, Outcome.NOT_EXERCISED, message, figures)
    return Verdict(NAME, Outcome.PASS, text, figures)
