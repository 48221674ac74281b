"""The presets of Gemma 2."""

from __future__ import annotations

from typing import Any

from driftgate.model import PlanPreset
from models.config import pattern
from models.dense.config import GEMMA2
from models.family import plans_of, random_model


def _fields(layers: int, **fields: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "layer_types": list(pattern(layers, 1)),
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        **fields,
    }


GEMMA2_TINY = random_model(
    "gemma2-tiny",
    GEMMA2,
    "attention softcap 50, a window on every other layer, scale other than head_dim; random weights",
    _fields(
        4,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        # Published: 144 for a head_dim of 128. Scores as large as these let the cap show.
        query_pre_attn_scalar=16,
        sliding_window=32,
        vocab_size=256,
    ),
    plans_of(32, 10),
    capacity=256,
)

GEMMA2_2B = random_model(
    "gemma2-2b",
    GEMMA2,
    "the shape of Gemma 2 2B; random weights",
    _fields(
        26,
        hidden_size=2304,
        intermediate_size=9216,
        num_attention_heads=8,
        num_key_value_heads=4,
        query_pre_attn_scalar=256,
        sliding_window=4096,
        vocab_size=256_000,
    ),
    {"default": PlanPreset(512, (128,) * 4)},
    capacity=2048,
    preset={"runs": "100"},
)
