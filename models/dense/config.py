"""The shape of a Gemma 1, 2 or 3 text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftgate.outcome import UsageError
from models.config import (
    FULL,
    SLIDING,
    Fields,
    Rope,
    check_counts,
    check_even,
    check_groups,
    check_positive,
    check_rope,
)

GEMMA1, GEMMA2, GEMMA3 = "gemma1", "gemma2", "gemma3"


@dataclass(frozen=True)
class DenseConfig:
    """Lengths in tokens, widths in elements; fields as in config.json."""

    family: str
    """``gemma1`` (two norms a layer), ``gemma2`` (four), ``gemma3`` (four, and norms of q and k)."""
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    layer_types: tuple[str, ...]
    query_pre_attn_scalar: float
    """The attention scale is this to the power -1/2; it need not be head_dim."""
    sliding_window: int | None = None
    """Keys a query of a sliding layer sees, itself included."""
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    rms_norm_eps: float = 1e-6
    ropes: Mapping[str, Rope] = field(default_factory=lambda: {SLIDING: Rope(1e4), FULL: Rope(1e4)})
    """By layer type."""

    def __post_init__(self) -> None:
        check_counts(
            self,
            (
                *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
                *("num_key_value_heads", "head_dim", "vocab_size"),
            ),
        )
        check_groups(self, "num_attention_heads", "num_key_value_heads")
        check_even(self, "head_dim")
        if len(self.layer_types) != self.num_hidden_layers:
            raise UsageError(
                f"{self.family} config: layer_types has {len(self.layer_types)} entries, "
                f"but num_hidden_layers is {self.num_hidden_layers}"
            )
        if SLIDING in self.layer_types:
            if self.sliding_window is None:
                raise UsageError(f"{self.family} config: sliding_window is null, but layer_types has {SLIDING} layers")
            check_counts(self, ("sliding_window",))
        check_positive(
            self, ("query_pre_attn_scalar", "rms_norm_eps", "attn_logit_softcapping", "final_logit_softcapping")
        )
        check_rope(self, self.ropes)

    @classmethod
    def of(cls, family: str, fields: Mapping[str, Any]) -> DenseConfig:
        """The config that the ``fields`` of a config.json describe. Raises UsageError that names the field."""
        read = Fields(family, fields)
        activation = "hidden_act" if family == GEMMA1 else "hidden_activation"
        read.must_be(activation, "gelu_pytorch_tanh", *(("gelu",) if family == GEMMA1 else ()))
        read.must_be("attention_bias", False)
        read.must_be("tie_word_embeddings", True)
        read.must_be("use_bidirectional_attention", None, False)
        layers, head_dim = read.whole("num_hidden_layers"), read.whole("head_dim")
        if family == GEMMA3:
            ropes = {layer_type: read.rope(layer_type) for layer_type in (SLIDING, FULL)}
        else:
            ropes = dict.fromkeys((SLIDING, FULL), read.rope(None))
        has_windows = family != GEMMA1
        types = read.layer_types(layers) if has_windows else (FULL,) * layers
        return cls(
            family=family,
            num_hidden_layers=layers,
            hidden_size=read.whole("hidden_size"),
            intermediate_size=read.whole("intermediate_size"),
            num_attention_heads=read.whole("num_attention_heads"),
            num_key_value_heads=read.whole("num_key_value_heads"),
            head_dim=head_dim,
            vocab_size=read.whole("vocab_size"),
            layer_types=types,
            query_pre_attn_scalar=read.number("query_pre_attn_scalar") if has_windows else head_dim,
            sliding_window=read.whole("sliding_window") if SLIDING in types else None,
            attn_logit_softcapping=read.optional("attn_logit_softcapping") if has_windows else None,
            final_logit_softcapping=read.optional("final_logit_softcapping") if has_windows else None,
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            ropes=ropes,
        )

    @property
    def four_norms(self) -> bool:
        """Whether attention and MLP are normed after as well as before."""
        return self.family != GEMMA1

    @property
    def norms_heads(self) -> bool:
        """Whether q and k are normed before RoPE."""
        return self.family == GEMMA3

    @property
    def cache_kinds(self) -> tuple[str, ...]:
        return tuple("mha" if kind == FULL else "mha_sliding" for kind in self.layer_types)

    @property
    def cache_head_dim(self) -> int:
        return self.head_dim

    @property
    def cache_kv_heads(self) -> int:
        return self.num_key_value_heads

    @property
    def window(self) -> int | None:
        return self.sliding_window if SLIDING in self.layer_types else None

    @property
    def attention_softcap(self) -> float | None:
        return self.attn_logit_softcapping

    @property
    def embed_width(self) -> int:
        return self.hidden_size
