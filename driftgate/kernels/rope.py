"""Rotary position embedding in float64: frequencies of every scaling TVM has, and the rotation itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driftgate.outcome import UsageError

INTERLEAVED = frozenset({"gptj", "llama4"})
"""Scalings whose pairs are neighbours ``(2i, 2i + 1)``; elsewhere a pair is ``(i, i + rotary_dim / 2)``."""


@dataclass(frozen=True)
class Rope:
    """What a rotary kernel is compiled for."""

    theta: float
    scale: float
    rotary_dim: int
    """Elements of a head that are turned; those after them are copied."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """TVM's ``rope_scaling``: ``rope_type`` and its figures; empty for none."""

    @property
    def interleaved(self) -> bool:
        """Whether pairs are neighbours."""
        return self.scaling.get("rope_type") in INTERLEAVED


def frequencies(rope: Rope, ext_factors: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """Radians a position for each pair, ``(rotary_dim / 2,)`` float64, and the factor of cosine and sine.

    Formulas: Su et al. 2021 (RoFormer) for the base ``theta^(-2i/dim)``; the model cards of Llama 3.1 and 4 for theirs;
    Peng et al. 2023 (YaRN); Ding et al. 2024 (LongRoPE), whose ``ext_factors`` divide. Raises UsageError for an
    unknown ``rope_type``.
    """
    scaling, half = rope.scaling, rope.rotary_dim // 2
    base = rope.theta ** (-2.0 * np.arange(half) / rope.rotary_dim)
    kind = scaling.get("rope_type")
    if kind in (None, "gptj"):
        return base, 1.0
    if kind in ("llama3", "llama4"):
        return _llama(base, scaling), 1.0
    if kind == "yarn":
        return _yarn(base, rope), 1.0
    if kind == "longrope":
        original = scaling["original_max_position_embeddings"]
        ratio = scaling["max_position_embeddings"] / original
        factor = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
        return base / (1.0 if ext_factors is None else ext_factors.astype(np.float64)), factor
    raise UsageError(f"rope_type {kind!r} has no reference; there are gptj, llama3, llama4, longrope, yarn")


def _llama(base: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    factor, low, high = (scaling[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    wavelengths = scaling["original_max_position_embeddings"] * base / (2 * math.pi)
    if high == low:
        return np.where(wavelengths < low, base / factor, base)
    smooth = np.clip((wavelengths - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * base / factor + smooth * base


def _yarn(base: np.ndarray, rope: Rope) -> np.ndarray:
    scaling, dim = rope.scaling, rope.rotary_dim

    def corrected(rotations: float) -> float:
        turns = scaling["original_max_position_embeddings"] / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(rope.theta))

    low = max(corrected(scaling["beta_fast"]), 0.0)
    high = min(corrected(scaling["beta_slow"]), dim - 1.0)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(len(base)) - low) / (high - low), 0.0, 1.0)
    return base / scaling["factor"] * ramp + base * (1 - ramp)


def rotated(x: np.ndarray, positions: np.ndarray, rope: Rope, ext_factors: np.ndarray | None = None) -> np.ndarray:
    """``x`` ``(n, heads, d)`` with the pairs of each head turned by position (``(n,)``) times frequency; float64."""
    x = x.astype(np.float64)
    turn, factor = frequencies(rope, ext_factors)
    angle = (positions.astype(np.float64) * rope.scale)[:, None, None] * turn
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    half = rope.rotary_dim // 2
    low, high = (
        (slice(0, rope.rotary_dim, 2), slice(1, rope.rotary_dim, 2))
        if rope.interleaved
        else (
            slice(0, half),
            slice(half, rope.rotary_dim),
        )
    )
    out = x.copy()
    out[..., low] = x[..., low] * cos - x[..., high] * sin
    out[..., high] = x[..., high] * cos + x[..., low] * sin
    return out
