"""Gemma 1, 2 and 3 text as a Relax module, written from the published equations.

Gemma 1 norms before attention and MLP; Gemma 2 and 3 after them as well; Gemma 3 norms q and k before RoPE, and has one
RoPE for its sliding layers and another for the full ones. All norm weights are ``1 + w``. Parameters bear HuggingFace's
names.
"""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

from models.blocks import Embedding, Mlp, Norm, rotate, rotations
from models.dense.config import DenseConfig


class Attention(nn.Module):
    def __init__(self, config: DenseConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        hidden, dim = config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(hidden, heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(heads * dim, hidden, bias=False)
        if config.norms_heads:
            self.q_norm = Norm(dim, config.rms_norm_eps, offset=1.0)
            self.k_norm = Norm(dim, config.rms_norm_eps, offset=1.0)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], cache: PagedKVCache) -> Tensor:
        config, count = self.config, x.shape[1]
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q = op.reshape(self.q_proj(x), (1, count, heads, dim))
        k = op.reshape(self.k_proj(x), (1, count, kv_heads, dim))
        v = op.reshape(self.v_proj(x), (1, count, kv_heads, dim))
        if config.norms_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        qkv = op.concat([rotate(q, cos_sin), rotate(k, cos_sin), v], dim=2)
        scale = config.query_pre_attn_scalar**-0.5
        out = cache.attention_with_fused_qkv(self.layer, qkv, heads, sm_scale=scale)
        return self.o_proj(op.reshape(out, (1, count, heads * dim)))


class Layer(nn.Module):
    def __init__(self, config: DenseConfig, layer: int) -> None:
        super().__init__()
        self.four_norms = config.four_norms
        self.self_attn = Attention(config, layer)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)

        def norm() -> Norm:
            return Norm(config.hidden_size, config.rms_norm_eps, offset=1.0)

        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        if self.four_norms:
            self.pre_feedforward_layernorm = norm()
            self.post_feedforward_layernorm = norm()

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], cache: PagedKVCache) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), cos_sin, cache)
        if not self.four_norms:
            x = x + attended
            # Of two norms the one with this name comes before the MLP.
            return x + self.mlp(self.post_attention_layernorm(x))
        x = x + self.post_attention_layernorm(attended)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class DenseText(nn.Module):
    """Token embedding, layers and final norm: everything but the logits."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = Norm(config.hidden_size, config.rms_norm_eps, offset=1.0)

    def embed(self, ids: Tensor) -> Tensor:
        """``(n,)`` int32 to the scaled embeddings ``(n, hidden)``."""
        return self.embed_tokens(ids) * self.config.hidden_size**0.5

    def forward(self, embedded: Tensor, cache: PagedKVCache) -> Tensor:
        """``(1, n, hidden)`` to the final hidden states ``(1, n, hidden)``."""
        config, x = self.config, embedded
        dims = dict.fromkeys(config.layer_types, config.head_dim)
        turns = rotations(cache.get_query_positions(x.shape[1]), dims, config.ropes, x.dtype)
        for kind, layer in zip(config.layer_types, self.layers, strict=True):
            x = layer(x, turns[kind], cache)
        return self.norm(x)
