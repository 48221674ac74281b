"""The families: how a config.json becomes a library module, its parameters, and HuggingFace's model of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from driftgate.model import Arrays, Model, PlanPreset, Shape
from driftgate.outcome import UsageError
from models.config import SLIDING, Config
from models.dense.config import GEMMA1, GEMMA2, GEMMA3, DenseConfig
from models.gemma4.config import Gemma4Config

Shapes = Callable[[Any], Iterator[tuple[str, tuple[int, ...]]]]


@dataclass(frozen=True)
class Family:
    """One family. What is heavy is imported by the callables."""

    name: str
    model_type: str
    """As in config.json."""
    model_class: str
    """HuggingFace's class, in ``transformers``."""
    read: Callable[[str, Mapping[str, Any]], Config]
    """``(family, fields of config.json)`` to the config; raises UsageError that names the field."""
    body: Callable[[Any], Any]
    """Config to the Relax module of everything but the logits."""
    shapes: Callable[[], Shapes]
    norm_offset: float
    """What the model adds to a norm weight."""

    def config(self, fields: Mapping[str, Any]) -> Config:
        return self.read(self.name, fields)

    def library(self, config: Config, target: Any) -> Any:
        """The library module of ``config`` (``models.library.TextLibrary``), float32 until ``to`` says otherwise."""
        from models.library import TextLibrary, cache_shape

        return TextLibrary(
            self.body(config),
            hidden=config.hidden_size,
            embed_width=config.embed_width,
            cap=config.final_logit_softcapping,
            cache=cache_shape(config),
            target=target,
        )

    def huggingface(self, fields: Mapping[str, Any]) -> Any:
        """An empty HuggingFace model of ``fields``, its parameters not initialised."""
        import transformers

        from models.huggingface import empty

        return empty(getattr(transformers, self.model_class), transformers.AutoConfig.for_model(**fields))

    def module(self, config: Config, target: Any, dtype: str) -> Any:
        """The IRModule of the library."""
        from models.library import export

        library = self.library(config, target)
        library.to(dtype)
        return export(library, {"model_type": self.model_type, "sliding_window_size": config.window or -1})


def _dense(config: DenseConfig) -> Any:
    from models.dense.module import DenseText

    return DenseText(config)


def _dense_shapes() -> Shapes:
    from models.dense.weights import shapes

    return shapes


def _gemma4(config: Gemma4Config) -> Any:
    from models.gemma4.module import Gemma4Text

    return Gemma4Text(config)


def _gemma4_shapes() -> Shapes:
    from models.gemma4.weights import shapes

    return shapes


FAMILIES = {
    family.name: family
    for family in (
        Family(GEMMA1, "gemma", "GemmaForCausalLM", DenseConfig.of, _dense, _dense_shapes, 1.0),
        Family(GEMMA2, "gemma2", "Gemma2ForCausalLM", DenseConfig.of, _dense, _dense_shapes, 1.0),
        Family(GEMMA3, "gemma3_text", "Gemma3ForCausalLM", DenseConfig.of, _dense, _dense_shapes, 1.0),
        Family("gemma4", "gemma4_text", "Gemma4ForCausalLM", Gemma4Config.of, _gemma4, _gemma4_shapes, 0.0),
    )
}


def family_of(model_type: Any) -> Family:
    """The family of a config.json's ``model_type``. Raises UsageError with those that are built."""
    for family in FAMILIES.values():
        if family.model_type == model_type:
            return family
    there = ", ".join(family.model_type for family in FAMILIES.values())
    if str(model_type).startswith("gemma3n"):
        raise UsageError(
            f"refused: model_type {model_type!r}: Gemma 3n is not built (AltUp keeps several predictions of the "
            f"residual stream, Laurel adds a low-rank residual); the model types are {there}"
        )
    raise UsageError(f"model_type {model_type!r} is not a Gemma that is built; the model types are {there}")


def shape_of(config: Config, capacity: int) -> Shape:
    """The figures that plans, caches and checks depend on."""
    return Shape(
        layers=config.num_hidden_layers,
        attention_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.cache_kv_heads,
        head_dim=config.cache_head_dim,
        window=config.window,
        windowed=tuple(kind == SLIDING for kind in config.layer_types),
        vocab=config.vocab_size,
        capacity=capacity,
        softcap=config.attention_softcap,
    )


def random_model(
    name: str,
    family: str,
    about: str,
    fields: Mapping[str, Any],
    plans: Mapping[str, PlanPreset],
    capacity: int = 512,
    preset: Mapping[str, str] | None = None,
) -> Model:
    """The model of a config.json's ``fields`` (its model_type left out) with seeded random weights."""
    kind = FAMILIES[family]
    fields = {"model_type": kind.model_type, **fields}
    config = kind.config(fields)

    def arrays(seed: int) -> Arrays:
        from models import weights

        return weights.random(kind.shapes()(config), seed, kind.norm_offset)

    def reference(arrays: Arrays, ids: tuple[int, ...], dtype: str) -> Any:
        from models import huggingface

        return huggingface.logits(lambda: kind.huggingface(fields), arrays, ids, dtype)

    return Model(
        name=name,
        family=family,
        about=about,
        shape=shape_of(config, capacity),
        plans=plans,
        module=lambda target, dtype: kind.module(config, target, dtype),
        arrays=arrays,
        reference=reference,
        prompt=lambda tokens, seed: random_prompt(config.vocab_size, tokens, seed),
        preset=preset or {},
    )


def random_prompt(vocab: int, tokens: int, seed: int) -> tuple[int, ...]:
    """``tokens`` ids below ``vocab``."""
    import numpy as np

    return tuple(int(i) for i in np.random.default_rng(seed).integers(vocab, size=tokens))


def plans_of(config_window: int | None, chunk: int) -> dict[str, PlanPreset]:
    """The plans of a small preset.

    ``default`` stays inside all but the smallest windows, where no known defect of the CPU kernels can touch the
    verdict. ``hard`` goes
    past it, with a last chunk as long as the window, whose last row sees no past key at all: TVM's own CPU kernel
    answers that with NaN every time, so a right answer shows that the corrected one ran.
    """
    past = config_window is not None and 3 * chunk > config_window
    default = PlanPreset(3 * chunk, (chunk,) * 3, {"llvm": ("cpu-sliding-prefill",)} if past else {})
    if config_window is None:
        return {"default": default, "hard": PlanPreset(6 * chunk, (chunk, 1, chunk, 4 * chunk - 1))}
    hard = (chunk, chunk, config_window)
    return {"default": default, "hard": PlanPreset(sum(hard), hard, {"llvm": ("cpu-sliding-prefill",)})}
