"""The shape of a Gemma 4 text model."""

from __future__ import annotations

from dataclasses import dataclass

from driftgate.outcome import UsageError

SLIDING = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True)
class Gemma4Config:
    """Gemma 4 text, without mixture of experts and without ``k_eq_v``. Lengths in tokens, widths in elements."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    sliding_head_dim: int
    full_head_dim: int
    window: int
    """Keys a query of a sliding layer sees, itself included."""
    sliding_per_full: int
    """Sliding layers before each full one: 4 for E2B, 5 for the others."""
    shared_layers: int
    """Last layers that own no K and V and read those of the last owning layer of their type."""
    double_wide: bool
    """Whether the MLP of a sharing layer is twice as wide."""
    per_layer_width: int
    """Width P of the per-layer embedding."""
    vocab: int
    softcap: float = 30.0
    eps: float = 1e-6
    sliding_theta: float = 1e4
    full_theta: float = 1e6
    full_rotary_factor: float = 0.25
    """Share of the full head_dim that RoPE turns ("proportional" RoPE)."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "window", "vocab", "per_layer_width"):
            if getattr(self, name) < 1:
                raise UsageError(f"gemma4 config: {name} is {getattr(self, name)}, but must be at least 1")
        if self.heads % self.kv_heads:
            raise UsageError(f"gemma4 config: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        for name in ("sliding_head_dim", "full_head_dim"):
            if getattr(self, name) < 2 or getattr(self, name) % 2:
                raise UsageError(f"gemma4 config: {name} is {getattr(self, name)}, but RoPE needs an even number")
        if self.sliding_head_dim > self.full_head_dim:
            raise UsageError(
                f"gemma4 config: sliding_head_dim ({self.sliding_head_dim}) exceeds full_head_dim "
                f"({self.full_head_dim}), to which the one cache pads"
            )
        if self.sliding_per_full < 0:
            raise UsageError(f"gemma4 config: sliding_per_full is {self.sliding_per_full}, but must be at least 0")
        for name in ("softcap", "eps", "sliding_theta", "full_theta", "full_rotary_factor"):
            # Not "<= 0": NaN is no better.
            if not getattr(self, name) > 0:
                raise UsageError(f"gemma4 config: {name} is {getattr(self, name)}, but must be above 0")
        if self.full_rotary_factor > 1:
            raise UsageError(f"gemma4 config: full_rotary_factor is {self.full_rotary_factor}, but must be at most 1")
        if not 0 <= self.shared_layers < self.layers:
            raise UsageError(
                f"gemma4 config: shared_layers ({self.shared_layers}) must be below layers ({self.layers})"
            )
        if self.layer_type(self.layers - 1) != FULL:
            raise UsageError(
                f"gemma4 config: the last of {self.layers} layers must be a full one, "
                f"but with {self.sliding_per_full} sliding per full (sliding_per_full) it is a sliding one"
            )
        missing = {self.layer_type(i) for i in range(self.layers)} - {self.layer_type(i) for i in range(self.owners)}
        if missing:
            raise UsageError(
                f"gemma4 config: with shared_layers {self.shared_layers} no layer owns the K and V "
                f"that the sharing layers of type {', '.join(sorted(missing))} read"
            )

    @property
    def owners(self) -> int:
        """Layers that own K and V: the layers of the cache."""
        return self.layers - self.shared_layers

    def layer_type(self, layer: int) -> str:
        return FULL if (layer + 1) % (self.sliding_per_full + 1) == 0 else SLIDING

    def head_dim(self, layer: int) -> int:
        return self.full_head_dim if self.layer_type(layer) == FULL else self.sliding_head_dim

    def shares(self, layer: int) -> bool:
        return layer >= self.owners

    def source(self, layer: int) -> int:
        """The layer whose K and V ``layer`` reads: itself, or the last owner of its type."""
        if not self.shares(layer):
            return layer
        return max(i for i in range(self.owners) if self.layer_type(i) == self.layer_type(layer))

    def mlp_width(self, layer: int) -> int:
        return self.intermediate * (2 if self.double_wide and self.shares(layer) else 1)

    @property
    def full_rotated_pairs(self) -> int:
        return int(self.full_rotary_factor * self.full_head_dim // 2)
