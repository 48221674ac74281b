"""Gemma 4: from a config to a library module, and to the empty HuggingFace model of the same shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models.gemma4.config import FULL, SLIDING, Gemma4Config

if TYPE_CHECKING:
    from models.library import TextLibrary


def library(config: Gemma4Config, target: Any) -> TextLibrary:
    """The library module of ``config``, its parameters float32 until ``to`` says otherwise."""
    from models.gemma4.module import Gemma4Text
    from models.library import CacheShape, TextLibrary

    kinds = tuple("mha" if config.layer_type(i) == FULL else "mha_sliding" for i in range(config.owners))
    return TextLibrary(
        Gemma4Text(config),
        hidden=config.hidden,
        embed_width=config.hidden + config.layers * config.per_layer_width,
        cap=config.softcap,
        cache=CacheShape(kinds, config.heads, config.kv_heads, config.full_head_dim, config.window),
        target=target,
    )


def huggingface(config: Gemma4Config) -> Any:
    """An empty ``Gemma4ForCausalLM``, its parameters not initialised."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    from models.huggingface import empty

    text = Gemma4TextConfig(
        vocab_size=config.vocab,
        vocab_size_per_layer_input=config.vocab,
        hidden_size=config.hidden,
        hidden_size_per_layer_input=config.per_layer_width,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.sliding_head_dim,
        global_head_dim=config.full_head_dim,
        sliding_window=config.window,
        layer_types=[config.layer_type(i) for i in range(config.layers)],
        num_kv_shared_layers=config.shared_layers,
        use_double_wide_mlp=config.double_wide,
        final_logit_softcapping=config.softcap,
        rms_norm_eps=config.eps,
        rope_parameters={
            SLIDING: {"rope_type": "default", "rope_theta": config.sliding_theta},
            FULL: {
                "rope_type": "proportional",
                "rope_theta": config.full_theta,
                "partial_rotary_factor": config.full_rotary_factor,
            },
        },
        tie_word_embeddings=True,
        attention_dropout=0.0,
    )
    return empty(Gemma4ForCausalLM, text)
