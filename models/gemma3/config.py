"""The shape of a Gemma 3 text model."""

from __future__ import annotations

from dataclasses import dataclass

from driftgate.outcome import UsageError


@dataclass(frozen=True)
class Gemma3Config:
    """Gemma 3 text without RoPE scaling. Lengths in tokens, widths in elements."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    """Keys a query of a sliding layer sees, itself included."""
    sliding_per_full: int
    vocab: int
    query_pre_attn_scalar: int
    """The attention scale is this to the power -1/2; it need not be head_dim."""
    eps: float = 1e-6
    local_theta: float = 1e4
    global_theta: float = 1e6

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "window", "vocab"):
            if getattr(self, name) < 1:
                raise UsageError(f"gemma3 config: {name} is {getattr(self, name)}, but must be at least 1")
        if self.heads % self.kv_heads:
            raise UsageError(f"gemma3 config: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise UsageError(f"gemma3 config: head_dim is {self.head_dim}, but RoPE needs an even number")
        if self.sliding_per_full < 0:
            raise UsageError(f"gemma3 config: sliding_per_full is {self.sliding_per_full}, but must be at least 0")
        for name in ("query_pre_attn_scalar", "eps", "local_theta", "global_theta"):
            # Not "<= 0": NaN is no better.
            if not getattr(self, name) > 0:
                raise UsageError(f"gemma3 config: {name} is {getattr(self, name)}, but must be above 0")

    def full(self, layer: int) -> bool:
        """Whether ``layer`` attends to everything before it, with the global theta."""
        return (layer + 1) % (self.sliding_per_full + 1) == 0
