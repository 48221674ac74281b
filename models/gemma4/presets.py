"""The presets of Gemma 4: tiny ones shaped like each published size, and the published sizes with random weights."""

from __future__ import annotations

from typing import Any

from driftgate.model import Model, PlanPreset
from models.config import FULL, SLIDING, pattern
from models.family import plans_of, random_model

ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}


def _fields(layers: int, sliding_per_full: int, vocab: int, **fields: Any) -> dict[str, Any]:
    """A config.json of Gemma 4; ``fields`` are what the sizes differ in."""
    return {
        "num_hidden_layers": layers,
        "layer_types": list(pattern(layers, sliding_per_full)),
        "vocab_size": vocab,
        "vocab_size_per_layer_input": vocab,
        "hidden_size_per_layer_input": 0,
        "head_dim": 256,
        "global_head_dim": 512,
        "final_logit_softcapping": 30.0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": ROPES,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        **fields,
    }


TINY = _fields(
    layers=10,
    sliding_per_full=4,
    vocab=512,
    hidden_size=128,
    intermediate_size=256,
    num_attention_heads=8,
    num_key_value_heads=1,
    sliding_window=64,
    num_kv_shared_layers=5,
    use_double_wide_mlp=True,
    hidden_size_per_layer_input=32,
)

# A fork inside a page, a chunk of one token, a token tree: every kernel that a model with a window can run.
KERNELS = PlanPreset(48, (20, 1, 11, 16), {"llvm": ("cpu-tree-order",)}, ("prefill", "fork", "tree", "prefill"))

GEMMA4_TINY = random_model(
    "gemma4-tiny",
    "gemma4",
    "shaped like E2B: 5 of 10 layers share K and V, per-layer embeddings; random weights",
    TINY,
    {**plans_of(64, 16), "kernels": KERNELS},
)


def _tiny(name: str, about: str, heads: int, kv_heads: int, **fields: Any) -> Model:
    window = 32
    small = _fields(
        layers=6,
        # Published: 5. With 2 there are two full layers, of which one can share.
        sliding_per_full=2,
        vocab=256,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        sliding_window=window,
        **fields,
    )
    return random_model(name, "gemma4", f"{about}; random weights", small, plans_of(window, 10), capacity=256)


TINY_SIZES = (
    _tiny(
        "gemma4-e4b-tiny",
        "shaped like E4B: 2 KV heads, 3 of 6 layers share K and V, per-layer embeddings",
        4,
        2,
        num_kv_shared_layers=3,
        hidden_size_per_layer_input=16,
    ),
    _tiny(
        "gemma4-12b-tiny",
        "shaped like 12B: values are keys on full layers, 1 KV head there and 4 on sliding ones",
        8,
        4,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
    ),
    _tiny(
        "gemma4-31b-tiny",
        "shaped like 31B: values are keys on full layers, 2 KV heads there and 8 on sliding ones",
        16,
        8,
        attention_k_eq_v=True,
        num_global_key_value_heads=2,
    ),
    _tiny(
        "gemma4-26b-tiny",
        "shaped like 26B-A4B: 8 experts of which 2 are picked, 1 KV head on full layers and 4 on sliding ones",
        8,
        4,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=2,
        moe_intermediate_size=32,
    ),
)

VOCAB = 262_144


def _real(name: str, size: str, layers: int, per_full: int, window: int, **fields: Any) -> Model:
    return random_model(
        name,
        "gemma4",
        f"the shape of {size}; random weights, for a GPU",
        _fields(layers, per_full, VOCAB, sliding_window=window, **fields),
        {"default": PlanPreset(512, (128,) * 4)},
        capacity=2048,
        preset={"runs": "100"},
    )


SIZES = (
    _real(
        *("gemma4-e2b", "Gemma 4 E2B", 35, 4, 512),
        hidden_size=1536,
        intermediate_size=6144,
        num_attention_heads=8,
        num_key_value_heads=1,
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=256,
    ),
    _real(
        *("gemma4-e4b", "Gemma 4 E4B", 42, 5, 512),
        hidden_size=2560,
        intermediate_size=10240,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_kv_shared_layers=18,
        hidden_size_per_layer_input=256,
    ),
    _real(
        *("gemma4-12b", "Gemma 4 12B", 48, 5, 1024),
        hidden_size=3840,
        intermediate_size=15360,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
    ),
    _real(
        *("gemma4-26b-a4b", "Gemma 4 26B-A4B", 30, 5, 1024),
        hidden_size=2816,
        intermediate_size=2112,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
        attention_k_eq_v=True,
    ),
    _real(
        *("gemma4-31b", "Gemma 4 31B", 60, 5, 1024),
        hidden_size=5376,
        intermediate_size=21504,
        num_attention_heads=32,
        num_key_value_heads=16,
        num_global_key_value_heads=4,
        attention_k_eq_v=True,
    ),
)
