"""How far apart may right results be? A few times the error that rounding alone is seen to make."""

from __future__ import annotations

from driftgate.outcome import InfraError

BAND_FACTOR = 8.0
"""Bands are this many noise floors wide, on every model and check. TVM and HuggingFace sum in different orders, so
their errors are of one size but not equal; every stable planted fault exceeds its band tenfold (a test holds that)."""


def band(noise_floor: float) -> float:
    """Largest difference that passes, in logits, given the measured ``noise_floor`` in logits.

    Raises InfraError for a floor that is no positive number: the band would let everything pass, or nothing.
    """
    if not 0 < noise_floor < float("inf"):
        raise InfraError(f"the noise floor is {noise_floor}: it was not measured")
    return BAND_FACTOR * noise_floor
