"""Seeded random weights of a Gemma 4 config, under HuggingFace's parameter names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from models.gemma4.config import Gemma4Config

Q_NORM_DAMPING = 0.06
"""Gemma 4 multiplies normed q and k with scale 1.0, so q_norm near 1 gives logits of std sqrt(head_dim): at 512 a
softmax that is all but one-hot, and a random model so chaotic that float32 and float64 part by 1e-3. Damped, the
attention is soft, rounding stays rounding, and a band of a few noise floors is tight enough to catch a real fault."""


def shapes(config: Gemma4Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter, in a fixed order."""
    per_layer = config.layers * config.per_layer_width
    yield "model.embed_tokens.weight", (config.vocab, config.hidden)
    yield "model.embed_tokens_per_layer.weight", (config.vocab, per_layer)
    yield "model.per_layer_model_projection.weight", (per_layer, config.hidden)
    yield "model.per_layer_projection_norm.weight", (config.per_layer_width,)
    for i in range(config.layers):
        layer, dim, width = f"model.layers.{i}", config.head_dim(i), config.mlp_width(i)
        yield f"{layer}.self_attn.q_proj.weight", (config.heads * dim, config.hidden)
        yield f"{layer}.self_attn.q_norm.weight", (dim,)
        if not config.shares(i):
            yield f"{layer}.self_attn.k_proj.weight", (config.kv_heads * dim, config.hidden)
            yield f"{layer}.self_attn.v_proj.weight", (config.kv_heads * dim, config.hidden)
            yield f"{layer}.self_attn.k_norm.weight", (dim,)
        yield f"{layer}.self_attn.o_proj.weight", (config.hidden, config.heads * dim)
        yield f"{layer}.mlp.gate_proj.weight", (width, config.hidden)
        yield f"{layer}.mlp.up_proj.weight", (width, config.hidden)
        yield f"{layer}.mlp.down_proj.weight", (config.hidden, width)
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{layer}.{norm}_layernorm.weight", (config.hidden,)
        yield f"{layer}.per_layer_input_gate.weight", (config.per_layer_width, config.hidden)
        yield f"{layer}.per_layer_projection.weight", (config.hidden, config.per_layer_width)
        yield f"{layer}.post_per_layer_input_norm.weight", (config.hidden,)
        yield f"{layer}.layer_scalar", (1,)
    yield "model.norm.weight", (config.hidden,)


def random(config: Gemma4Config, seed: int) -> dict[str, np.ndarray]:
    """float32 arrays: matrices of std ``fan_in^(-1/2)``, norm weights and layer scalars uniform in 0.8 to 1.2."""
    rng = np.random.default_rng(seed)
    return {name: _draw(rng, name, shape) for name, shape in shapes(config)}


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        scale = Q_NORM_DAMPING if name.endswith("q_norm.weight") else 1.0
        return (scale * rng.uniform(0.8, 1.2, shape)).astype(np.float32)
    return (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
