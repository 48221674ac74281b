"""Names and shapes of the parameters of a Gemma 4 config, as HuggingFace has them."""

from __future__ import annotations

from collections.abc import Iterator

from models.gemma4.config import Gemma4Config


def shapes(config: Gemma4Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter, in a fixed order."""
    hidden, per_layer = config.hidden_size, config.hidden_size_per_layer_input
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    if per_layer:
        yield "model.embed_tokens_per_layer.weight", (config.vocab_size, config.num_hidden_layers * per_layer)
        yield "model.per_layer_model_projection.weight", (config.num_hidden_layers * per_layer, hidden)
        yield "model.per_layer_projection_norm.weight", (per_layer,)
    for i in range(config.num_hidden_layers):
        yield from _layer(config, i, f"model.layers.{i}")
    yield "model.norm.weight", (hidden,)


def _layer(config: Gemma4Config, i: int, layer: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, per_layer = config.hidden_size, config.hidden_size_per_layer_input
    dim, width = config.width(i), config.mlp_width(i)
    q_width, kv_width = config.num_attention_heads * dim, config.kv_heads(i) * dim
    yield f"{layer}.self_attn.q_proj.weight", (q_width, hidden)
    yield f"{layer}.self_attn.q_norm.weight", (dim,)
    if not config.shares(i):
        yield f"{layer}.self_attn.k_proj.weight", (kv_width, hidden)
        if not config.values_are_keys(i):
            yield f"{layer}.self_attn.v_proj.weight", (kv_width, hidden)
        yield f"{layer}.self_attn.k_norm.weight", (dim,)
    yield f"{layer}.self_attn.o_proj.weight", (hidden, q_width)
    yield f"{layer}.mlp.gate_proj.weight", (width, hidden)
    yield f"{layer}.mlp.up_proj.weight", (width, hidden)
    yield f"{layer}.mlp.down_proj.weight", (hidden, width)
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        yield f"{layer}.{norm}_layernorm.weight", (hidden,)
    if config.enable_moe_block:
        experts, inner = config.num_experts, config.moe_intermediate_size
        yield f"{layer}.router.proj.weight", (experts, hidden)
        yield f"{layer}.router.scale", (hidden,)
        yield f"{layer}.router.per_expert_scale", (experts,)
        yield f"{layer}.experts.gate_up_proj", (experts, 2 * inner, hidden)
        yield f"{layer}.experts.down_proj", (experts, hidden, inner)
        for norm in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
            yield f"{layer}.{norm}.weight", (hidden,)
    if per_layer:
        yield f"{layer}.per_layer_input_gate.weight", (per_layer, hidden)
        yield f"{layer}.per_layer_projection.weight", (hidden, per_layer)
        yield f"{layer}.post_per_layer_input_norm.weight", (hidden,)
    yield f"{layer}.layer_scalar", (1,)
