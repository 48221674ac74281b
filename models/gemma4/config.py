"""The shape of a Gemma 4 text model."""

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


@dataclass(frozen=True)
class Gemma4Config:
    """Lengths in tokens, widths in elements; fields as in config.json."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """Of the sliding layers."""
    global_head_dim: int
    """Of the full ones, and so the width of the one cache, to which the others are padded."""
    vocab_size: int
    layer_types: tuple[str, ...]
    sliding_window: int
    """Keys a query of a sliding layer sees, itself included."""
    num_global_key_value_heads: int | None = None
    """KV heads of the full layers, where they are not those of the sliding ones."""
    num_kv_shared_layers: int = 0
    """Last layers that own no K and V and read those of the last owning layer of their type."""
    use_double_wide_mlp: bool = False
    """Whether the MLP of a sharing layer is twice as wide."""
    hidden_size_per_layer_input: int = 0
    """Width P of the per-layer embedding (PLE); 0 for none."""
    attention_k_eq_v: bool = False
    """Whether the values of a full layer are its keys before their norm."""
    enable_moe_block: bool = False
    """Whether a mixture of experts stands beside the MLP."""
    num_experts: int = 0
    top_k_experts: int = 0
    moe_intermediate_size: int = 0
    final_logit_softcapping: float | None = 30.0
    rms_norm_eps: float = 1e-6
    ropes: Mapping[str, Rope] = field(default_factory=lambda: {SLIDING: Rope(1e4), FULL: Rope(1e6, share=0.25)})
    """By layer type. Full layers turn a share of their pairs ("proportional" RoPE)."""

    family = "gemma4"

    def __post_init__(self) -> None:
        check_counts(
            self,
            (
                *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
                *("num_key_value_heads", "sliding_window", "vocab_size"),
            ),
        )
        check_counts(self, ("hidden_size_per_layer_input", "num_kv_shared_layers"), least=0)
        check_groups(self, "num_attention_heads", "num_key_value_heads")
        if self.num_global_key_value_heads is not None:
            check_counts(self, ("num_global_key_value_heads",))
            if self.num_key_value_heads % self.num_global_key_value_heads:
                raise UsageError(
                    f"gemma4 config: num_key_value_heads ({self.num_key_value_heads}) must be a multiple of "
                    f"num_global_key_value_heads ({self.num_global_key_value_heads}), which the one cache repeats"
                )
        check_even(self, "head_dim")
        check_even(self, "global_head_dim")
        if self.head_dim > self.global_head_dim:
            raise UsageError(
                f"gemma4 config: head_dim ({self.head_dim}) exceeds global_head_dim ({self.global_head_dim}), "
                "to which the one cache pads"
            )
        if self.enable_moe_block:
            check_counts(self, ("num_experts", "top_k_experts", "moe_intermediate_size"))
            if self.top_k_experts > self.num_experts:
                raise UsageError(
                    f"gemma4 config: top_k_experts ({self.top_k_experts}) exceeds num_experts ({self.num_experts})"
                )
        check_positive(self, ("final_logit_softcapping", "rms_norm_eps"))
        check_rope(self, self.ropes)
        self._check_layers()

    def _check_layers(self) -> None:
        layers = self.num_hidden_layers
        if len(self.layer_types) != layers:
            raise UsageError(
                f"gemma4 config: layer_types has {len(self.layer_types)} entries, but num_hidden_layers is {layers}"
            )
        if self.layer_types[-1] != FULL:
            last = self.layer_types[-1]
            raise UsageError(f"gemma4 config: layer_types ends with {last}, but the last must be {FULL}")
        if self.num_kv_shared_layers >= layers:
            raise UsageError(
                f"gemma4 config: num_kv_shared_layers ({self.num_kv_shared_layers}) must be below "
                f"num_hidden_layers ({layers})"
            )
        missing = set(self.layer_types) - set(self.layer_types[: self.owners])
        if missing:
            raise UsageError(
                f"gemma4 config: with num_kv_shared_layers {self.num_kv_shared_layers} no layer owns the K and V "
                f"that the sharing layers of type {', '.join(sorted(missing))} read"
            )

    @classmethod
    def of(cls, family: str, fields: Mapping[str, Any]) -> Gemma4Config:
        """The config that the ``fields`` of a config.json describe. Raises UsageError that names the field."""
        read = Fields(family, fields)
        read.must_be("hidden_activation", "gelu_pytorch_tanh")
        read.must_be("attention_bias", False)
        read.must_be("tie_word_embeddings", True)
        # "vision" concerns image tokens alone.
        read.must_be("use_bidirectional_attention", None, "vision")
        layers, vocab = read.whole("num_hidden_layers"), read.whole("vocab_size")
        per_layer, k_eq_v = read.whole("hidden_size_per_layer_input", 0), read.truth("attention_k_eq_v")
        if per_layer:
            read.must_be("vocab_size_per_layer_input", vocab)
        types = read.layer_types(layers)
        head_dim, kv_heads = read.whole("head_dim"), read.whole("num_key_value_heads")
        full = _full_layers(read, types, k_eq_v, head_dim, kv_heads)
        moe = read.truth("enable_moe_block")
        return cls(
            num_hidden_layers=layers,
            hidden_size=read.whole("hidden_size"),
            intermediate_size=read.whole("intermediate_size"),
            num_attention_heads=read.whole("num_attention_heads"),
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            global_head_dim=full[0],
            vocab_size=vocab,
            layer_types=types,
            sliding_window=read.whole("sliding_window"),
            num_global_key_value_heads=full[1] if full[1] != kv_heads else None,
            num_kv_shared_layers=read.whole("num_kv_shared_layers", 0),
            use_double_wide_mlp=read.truth("use_double_wide_mlp"),
            hidden_size_per_layer_input=per_layer,
            attention_k_eq_v=k_eq_v,
            enable_moe_block=moe,
            num_experts=read.whole("num_experts") if moe else 0,
            top_k_experts=read.whole("top_k_experts") if moe else 0,
            moe_intermediate_size=read.whole("moe_intermediate_size") if moe else 0,
            final_logit_softcapping=read.optional("final_logit_softcapping"),
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            ropes={kind: read.rope(kind, ("default", "linear", "proportional")) for kind in (SLIDING, FULL)},
        )

    @property
    def owners(self) -> int:
        """Layers that own K and V: the layers of the cache."""
        return self.num_hidden_layers - self.num_kv_shared_layers

    def width(self, layer: int) -> int:
        """head_dim of ``layer``."""
        return self.global_head_dim if self.layer_types[layer] == FULL else self.head_dim

    def kv_heads(self, layer: int) -> int:
        """KV heads that ``layer`` computes, before any are repeated."""
        fewer = self.num_global_key_value_heads if self.layer_types[layer] == FULL else None
        return fewer or self.num_key_value_heads

    def values_are_keys(self, layer: int) -> bool:
        return self.attention_k_eq_v and self.layer_types[layer] == FULL

    def shares(self, layer: int) -> bool:
        return layer >= self.owners

    def source(self, layer: int) -> int:
        """The layer whose K and V ``layer`` reads: itself, or the last owner of its type."""
        if not self.shares(layer):
            return layer
        return max(i for i in range(self.owners) if self.layer_types[i] == self.layer_types[layer])

    def mlp_width(self, layer: int) -> int:
        return self.intermediate_size * (2 if self.use_double_wide_mlp and self.shares(layer) else 1)

    @property
    def cache_kinds(self) -> tuple[str, ...]:
        return tuple("mha" if kind == FULL else "mha_sliding" for kind in self.layer_types[: self.owners])

    @property
    def cache_head_dim(self) -> int:
        return self.global_head_dim

    @property
    def cache_kv_heads(self) -> int:
        """Those of the sliding layers; the fewer of a full layer are repeated.

        One cache has one KV-head count. Two caches would each need their own begin and end of a forward, which the
        library interface does not have; repeated heads give the same values, at the price of memory.
        """
        return self.num_key_value_heads

    @property
    def window(self) -> int | None:
        return self.sliding_window if SLIDING in self.layer_types else None

    @property
    def attention_softcap(self) -> float | None:
        return None

    @property
    def embed_width(self) -> int:
        return self.hidden_size + self.num_hidden_layers * self.hidden_size_per_layer_input


def _full_layers(read: Fields, types: tuple[str, ...], k_eq_v: bool, head_dim: int, kv_heads: int) -> tuple[int, int]:
    """head_dim and KV heads of the full layers: from ``global_...``, or from the layers' own entries."""
    own = read.fields.get("per_layer_config")
    if own is None:
        global_heads = read.fields.get("num_global_key_value_heads") if k_eq_v else None
        many = kv_heads if global_heads is None else read.whole("num_global_key_value_heads")
        return read.whole("global_head_dim", 512), many
    try:
        # HuggingFace writes the layers' numbers as text, with leading zeros.
        by_layer = {int(layer): dict(entry) for layer, entry in own.items()}
    except (AttributeError, TypeError, ValueError):
        raise read.refuse("per_layer_config", "must be an object from the number of a layer to its fields") from None
    usual = {"head_dim": head_dim, "num_key_value_heads": kv_heads}
    found: dict[str, dict[str, Any]] = {}
    for i, kind in enumerate(types):
        entry = {**usual, **by_layer.get(i, {})}
        if unknown := set(entry) - set(usual):
            raise read.refuse(f"per_layer_config.{i}", f"sets {sorted(unknown)[0]}, which no layer here can")
        if found.setdefault(kind, entry) != entry or (kind == SLIDING and entry != usual):
            raise read.refuse(f"per_layer_config.{i}", f"differs from those of the other {kind} layers")
    full = Fields(read.family, found.get(FULL, usual))
    return full.whole("head_dim"), full.whole("num_key_value_heads")
