"""Gemma 3 text as a Relax module, written from the published equations.

Attention and MLP each between two norms (weights ``1 + w``), q and k normed before RoPE, one RoPE theta for the
sliding layers and another for the full ones. Parameters bear HuggingFace's names.
"""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

from models.blocks import Embedding, Mlp, Norm, inverse_frequencies, rotate, rotation
from models.gemma3.config import Gemma3Config


class Attention(nn.Module):
    def __init__(self, config: Gemma3Config, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden, config.heads * dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.heads * dim, config.hidden, bias=False)
        self.q_norm = Norm(dim, config.eps, offset=1.0)
        self.k_norm = Norm(dim, config.eps, offset=1.0)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], cache: PagedKVCache) -> Tensor:
        config, count = self.config, x.shape[1]
        q = op.reshape(self.q_proj(x), (1, count, config.heads, config.head_dim))
        k = op.reshape(self.k_proj(x), (1, count, config.kv_heads, config.head_dim))
        v = op.reshape(self.v_proj(x), (1, count, config.kv_heads, config.head_dim))
        qkv = op.concat([rotate(self.q_norm(q), cos_sin), rotate(self.k_norm(k), cos_sin), v], dim=2)
        scale = config.query_pre_attn_scalar**-0.5
        out = cache.attention_with_fused_qkv(self.layer, qkv, config.heads, sm_scale=scale)
        return self.o_proj(op.reshape(out, (1, count, config.heads * config.head_dim)))


class Layer(nn.Module):
    def __init__(self, config: Gemma3Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = Mlp(config.hidden, config.intermediate)
        self.input_layernorm = Norm(config.hidden, config.eps, offset=1.0)
        self.post_attention_layernorm = Norm(config.hidden, config.eps, offset=1.0)
        self.pre_feedforward_layernorm = Norm(config.hidden, config.eps, offset=1.0)
        self.post_feedforward_layernorm = Norm(config.hidden, config.eps, offset=1.0)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], cache: PagedKVCache) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), cos_sin, cache)
        x = x + self.post_attention_layernorm(attended)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Gemma3Text(nn.Module):
    """Token embedding, layers and final norm: everything but the logits."""

    def __init__(self, config: Gemma3Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.layers)])
        self.norm = Norm(config.hidden, config.eps, offset=1.0)

    def embed(self, ids: Tensor) -> Tensor:
        """``(n,)`` int32 to the scaled embeddings ``(n, hidden)``."""
        return self.embed_tokens(ids) * self.config.hidden**0.5

    def forward(self, embedded: Tensor, cache: PagedKVCache) -> Tensor:
        """``(1, n, hidden)`` to the final hidden states ``(1, n, hidden)``."""
        config, x = self.config, embedded
        positions = cache.get_query_positions(x.shape[1])
        sliding = rotation(positions, inverse_frequencies(config.head_dim, config.local_theta), x.dtype)
        full = rotation(positions, inverse_frequencies(config.head_dim, config.global_theta), x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, full if config.full(i) else sliding, cache)
        return self.norm(x)
