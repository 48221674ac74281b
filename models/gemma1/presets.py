"""The presets of Gemma 1."""

from __future__ import annotations

from typing import Any

from driftgate.model import PlanPreset
from models.dense.config import GEMMA1
from models.family import plans_of, random_model


def _fields(layers: int, **fields: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        **fields,
    }


GEMMA1_TINY = random_model(
    "gemma1-tiny",
    GEMMA1,
    "two norms a layer, no window; random weights",
    _fields(4, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=1, vocab_size=256),
    plans_of(None, 10),
    capacity=256,
)

GEMMA1_2B = random_model(
    "gemma1-2b",
    GEMMA1,
    "the shape of Gemma 1 2B; random weights, for a GPU",
    _fields(
        18,
        hidden_size=2048,
        intermediate_size=16384,
        num_attention_heads=8,
        num_key_value_heads=1,
        vocab_size=256_000,
    ),
    {"default": PlanPreset(512, (128,) * 4)},
    capacity=2048,
    preset={"runs": "100"},
)
