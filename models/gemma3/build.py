"""Gemma 3: from a config to a library module, and to the empty HuggingFace model of the same shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models.gemma3.config import Gemma3Config

if TYPE_CHECKING:
    from models.library import TextLibrary


def library(config: Gemma3Config, target: Any) -> TextLibrary:
    """The library module of ``config``, its parameters float32 until ``to`` says otherwise."""
    from models.gemma3.module import Gemma3Text
    from models.library import CacheShape, TextLibrary

    kinds = tuple("mha" if config.full(i) else "mha_sliding" for i in range(config.layers))
    return TextLibrary(
        Gemma3Text(config),
        hidden=config.hidden,
        embed_width=config.hidden,
        cap=None,
        cache=CacheShape(kinds, config.heads, config.kv_heads, config.head_dim, config.window),
        target=target,
    )


def huggingface(config: Gemma3Config) -> Any:
    """An empty ``Gemma3ForCausalLM``, its parameters not initialised."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    from models.huggingface import empty

    text = Gemma3TextConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        sliding_window=config.window,
        layer_types=["full_attention" if config.full(i) else "sliding_attention" for i in range(config.layers)],
        query_pre_attn_scalar=config.query_pre_attn_scalar,
        rms_norm_eps=config.eps,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_theta},
            "full_attention": {"rope_type": "default", "rope_theta": config.global_theta},
        },
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        tie_word_embeddings=True,
        attention_dropout=0.0,
    )
    return empty(Gemma3ForCausalLM, text)
