"""What the configs of all families have in common. Their fields bear the names that config.json gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from driftgate.outcome import UsageError

SLIDING = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True)
class Rope:
    """RoPE of one layer type."""

    theta: float
    factor: float = 1.0
    """Linear scaling: positions are divided by it."""
    share: float = 1.0
    """Part of the pairs that are turned, from the first on ("proportional" RoPE)."""


class Config(Protocol):
    """What a library, a cache and the reports ask of any config."""

    @property
    def family(self) -> str: ...

    @property
    def num_hidden_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_attention_heads(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def final_logit_softcapping(self) -> float | None: ...

    @property
    def layer_types(self) -> tuple[str, ...]: ...

    @property
    def cache_kinds(self) -> tuple[str, ...]:
        """``mha`` or ``mha_sliding``, one a layer that owns K and V."""

    @property
    def cache_head_dim(self) -> int:
        """Width of a head in the cache."""

    @property
    def cache_kv_heads(self) -> int:
        """KV heads in the cache."""

    @property
    def window(self) -> int | None:
        """Keys that a query of a sliding layer sees, itself included; None without sliding layers."""

    @property
    def attention_softcap(self) -> float | None:
        """Cap of the attention scores, if there is one."""

    @property
    def embed_width(self) -> int:
        """Width of what ``embed`` returns for a token."""


class Fields:
    """The fields of a config.json, read with errors that name the field."""

    def __init__(self, family: str, fields: Mapping[str, Any]) -> None:
        self.family = family
        self.fields = fields

    def refuse(self, name: str, why: str) -> UsageError:
        return UsageError(f"{self.family} config: {name} {why}")

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.fields.get(name, default)
        if type(value) is not int:
            raise self.refuse(name, f"is {_shown(value)}, but must be a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, f"is {_shown(value)}, but must be a number")
        try:
            return float(value)
        except OverflowError:
            raise self.refuse(name, "is too large for a number") from None

    def optional(self, name: str) -> float | None:
        """A number, or None where config.json has null or nothing."""
        return None if self.fields.get(name) is None else self.number(name)

    def truth(self, name: str) -> bool:
        value = self.fields.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.refuse(name, f"is {_shown(value)}, but must be true or false")
        return value

    def must_be(self, name: str, *allowed: Any) -> None:
        """Refuse a field whose other values are features that are not built."""
        value = self.fields.get(name, allowed[0])
        # Not "in": 0 equals False.
        if not any(type(value) is type(one) and value == one for one in allowed):
            only = " or ".join(_shown(one) for one in allowed)
            raise self.refuse(name, f"is {_shown(value)}, but only {only} is built")

    def layer_types(self, layers: int) -> tuple[str, ...]:
        """One a layer."""
        value = self.fields.get("layer_types")
        if not isinstance(value, list | tuple) or not all(kind in (SLIDING, FULL) for kind in value):
            raise self.refuse("layer_types", f"must be a list of {SLIDING} and {FULL}")
        if len(value) != layers:
            raise self.refuse("layer_types", f"has {len(value)} entries, but num_hidden_layers is {layers}")
        return tuple(value)

    def rope(self, layer_type: str | None, kinds: tuple[str, ...] = ("default", "linear")) -> Rope:
        """RoPE of ``layer_type``, or of all layers: type (one of ``kinds``), theta, and what the type has besides."""
        name = "rope_parameters" + (f".{layer_type}" if layer_type else "")
        value: Any = self.fields.get("rope_parameters")
        if layer_type is not None and isinstance(value, Mapping):
            value = value.get(layer_type)
        if not isinstance(value, Mapping):
            raise self.refuse(name, "is missing: its rope_type and rope_theta are needed")
        kind = value.get("rope_type", "default")
        if kind not in kinds:
            raise self.refuse(f"{name}.rope_type", f"is {_shown(kind)}, but only {', '.join(kinds)} are built")
        inner = Fields(self.family, {f"{name}.{key}": item for key, item in value.items()})
        return Rope(
            theta=inner.number(f"{name}.rope_theta"),
            factor=inner.number(f"{name}.factor") if kind == "linear" else 1.0,
            share=inner.number(f"{name}.partial_rotary_factor", 1.0) if kind == "proportional" else 1.0,
        )


MOST_HEADS = 65_535
"""Blocks in the grid dimension that TVM's GPU kernels give to heads."""


def check_counts(config: Config, names: Iterable[str], least: int = 1) -> None:
    """Raise UsageError for a field of ``config`` below ``least``."""
    for name in names:
        if (value := getattr(config, name)) < least:
            raise UsageError(f"{config.family} config: {name} is {value}, but must be at least {least}")


def check_positive(config: Config, names: Iterable[str]) -> None:
    """Raise UsageError for a field of ``config`` that is no positive finite number; None is left alone."""
    for name in names:
        value = getattr(config, name)
        # Not "<= 0": NaN is no better.
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{config.family} config: {name} is {value}, but must be above 0")


def check_rope(config: Config, ropes: Mapping[str, Rope]) -> None:
    """Raise UsageError for a theta, factor or share that cannot be."""
    for layer_type, rope in ropes.items():
        for name in ("theta", "factor", "share"):
            if not 0 < getattr(rope, name) < float("inf"):
                raise UsageError(
                    f"{config.family} config: RoPE {name} of {layer_type} is {getattr(rope, name)}, but must be above 0"
                )
        if rope.share > 1:
            raise UsageError(
                f"{config.family} config: partial_rotary_factor of {layer_type} is {rope.share}, but at most 1 can be"
            )


def check_groups(config: Config, heads: str, kv_heads: str) -> None:
    """Raise UsageError unless ``heads`` is a multiple of ``kv_heads``."""
    many, few = getattr(config, heads), getattr(config, kv_heads)
    if many > MOST_HEADS:
        raise UsageError(f"{config.family} config: {heads} is {many}, but the kernels take at most {MOST_HEADS:,}")
    if many % few:
        raise UsageError(f"{config.family} config: {heads} ({many}) must be a multiple of {kv_heads} ({few})")


def check_even(config: Config, name: str) -> None:
    """Raise UsageError for a head_dim that RoPE cannot halve."""
    if (value := getattr(config, name)) < 2 or value % 2:
        raise UsageError(f"{config.family} config: {name} is {value}, but RoPE needs an even number")


def pattern(layers: int, sliding_per_full: int) -> tuple[str, ...]:
    """``sliding_per_full`` sliding layers before each full one, ``layers`` in all."""
    return tuple(FULL if (i + 1) % (sliding_per_full + 1) == 0 else SLIDING for i in range(layers))


def _shown(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else repr(value)
