"""Names and shapes of the parameters of a Gemma 1, 2 or 3 config, as HuggingFace has them."""

from __future__ import annotations

from collections.abc import Iterator

from models.dense.config import DenseConfig


def shapes(config: DenseConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter, in a fixed order."""
    hidden, width, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_attention_heads * dim, config.num_key_value_heads * dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        yield f"{layer}.self_attn.q_proj.weight", (q_width, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (kv_width, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (kv_width, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, q_width)
        if config.norms_heads:
            yield f"{layer}.self_attn.q_norm.weight", (dim,)
            yield f"{layer}.self_attn.k_norm.weight", (dim,)
        yield f"{layer}.mlp.gate_proj.weight", (width, hidden)
        yield f"{layer}.mlp.up_proj.weight", (width, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, width)
        norms = ("input", "post_attention", *(("pre_feedforward", "post_feedforward") if config.four_norms else ()))
        for norm in norms:
            yield f"{layer}.{norm}_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
