"""What a model is to the engine: its shape, and how to get its module, weights and reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftgate.outcome import UsageError

if TYPE_CHECKING:
    import numpy as np

Arrays = Mapping[str, "np.ndarray"]


@dataclass(frozen=True)
class Shape:
    """The figures of a model that plans, caches and checks depend on."""

    layers: int
    attention_layers: int
    """Layers that attend, KV-shared ones included: what a merge is counted against."""
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    """Width of a head in the cache, and so of a row of the merge kernel."""
    window: int | None
    """Keys that a query of a sliding layer sees, itself included; None without sliding layers."""
    vocab: int
    capacity: int
    """Tokens that the preset's cache holds."""
    windowed: tuple[bool, ...] = ()
    """For each layer that attends, whether it has the window."""
    softcap: float | None = None
    """Cap of the attention scores, if the model has one."""


@dataclass(frozen=True)
class PlanPreset:
    """A named prefill plan of a model."""

    tokens: int
    chunks: tuple[int, ...]
    corrections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Target name to the corrected kernels that are swapped in there (see ``driftgate.kernels.corrections``)."""
    ways: tuple[str, ...] = ()
    """How each chunk comes to the cache, see ``plan.Plan``; dropped where other chunks are asked for."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model under test. Its callables import what is heavy, so that a name is looked up at no cost.

    One object a preset: two models are the same if they are the same object.
    """

    name: str
    family: str
    about: str
    shape: Shape
    plans: Mapping[str, PlanPreset]
    module: Callable[[Any, str], Any]
    """``(tvm Target, dtype)`` to the IRModule of the model library."""
    arrays: Callable[[int], Arrays]
    """Seed to float32 parameters by name. Presets with real weights ignore the seed."""
    reference: Callable[[Arrays, tuple[int, ...], str], np.ndarray]
    """``(arrays, ids, dtype)`` to HuggingFace's logits ``(n, vocab)`` at every position."""
    prompt: Callable[[int, int], tuple[int, ...]]
    """``(tokens, seed)`` to token ids."""
    arrays_file: Callable[[], Path] | None = None
    """A safetensors file that holds ``arrays`` as they are, where there is one."""
    preset: Mapping[str, str] = field(default_factory=dict)
    """Option values that this model sets, as a flag would give them."""

    @property
    def slug(self) -> str:
        """The name as a part of a file's name."""
        return slug(self.name)

    def plan(self, name: str) -> PlanPreset:
        if name not in self.plans:
            raise UsageError(f"{self.name} has no plan {name!r}; it has {', '.join(self.plans)}")
        return self.plans[name]


def slug(name: str) -> str:
    """The name of a model as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name)[-60:].strip("-.")


def check_arrays(arrays: Arrays, name: str) -> None:
    """Raise UsageError for a weight that is not finite: the model, not the compiler, would be at fault."""
    import numpy as np

    for key, array in arrays.items():
        # A finite sum needs no second pass; an overflowing one of finite values does.
        if not np.isfinite(array.sum(dtype=np.float64)) and not (finite := np.isfinite(array)).all():
            raise UsageError(f"weights of {name}: {key} holds {int((~finite).sum())} values that are NaN or infinite")
