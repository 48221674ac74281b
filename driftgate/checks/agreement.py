"""What B and P have in common: many prefills, each against the reference at every position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftgate.checks.band import BAND_FACTOR, band
from driftgate.reach.observations import Compared


def figures(observed: Sequence[Compared], noise_floor: float) -> dict[str, Any]:
    """Counts and the largest distance. ``noise_floor`` in logits, see ``reference.noise_floor``."""
    distances = [found.max_abs for found in observed if found.max_abs is not None]
    return {
        "positions": sum(found.positions for found in observed),
        "merge_calls": sum(found.merge_calls for found in observed),
        "max_abs": max(distances, default=None),
        "noise_floor": noise_floor,
        "band_factor": BAND_FACTOR,
        "band": band(noise_floor),
        "fault_hits": sum(found.fault_hits for found in observed),
    }


def wrong(observed: Sequence[Compared], limit: float) -> list[Compared]:
    """Those that are outside the band or unusable."""
    return [found for found in observed if found.max_abs is None or not found.max_abs <= limit]


def said(found: Compared) -> str:
    """One clause on what is wrong with ``found``."""
    if found.max_abs is None:
        return f"{found.name}: {found.worst['what']}"
    return f"{found.name}: off by {found.max_abs:.2e} at position {found.worst['position']}"


def width(noise_floor: float) -> str:
    """The band in words."""
    return f"band {band(noise_floor):.2e} ({BAND_FACTOR:g} x noise floor {noise_floor:.2e})"
