"""Gemma 4 text as a Relax module, written from the published equations.

``a = N(x)``, then attention and MLP each between two norms, a per-layer embedding (PLE) and a layer scalar:

- ``x += N_postattn(Wo softmax(q k^T + mask) v)``, scale 1.0, q and k normed before RoPE, v normed without a weight;
- ``x += N_postff(Wd(gelu(Wg h) Wu h))`` with ``h = N_preff(x)``;
- ``x += N_postple(Wpp(gelu(Wpg x) ple_l))``; ``x *= layer_scalar_l``.

Parameters bear the names that HuggingFace gives them, so that both sides are built from the same arrays.
"""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

from models.blocks import Embedding, Mlp, Norm, inverse_frequencies, pad_heads, part, rotate, rotation, unscaled_norm
from models.gemma4.config import FULL, SLIDING, Gemma4Config


class Attention(nn.Module):
    """Attention of one layer. Heads are padded to the full head_dim, the width of the one cache."""

    def __init__(self, config: Gemma4Config, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.dim = config.head_dim(layer)
        self.q_proj = nn.Linear(config.hidden, config.heads * self.dim, bias=False)
        self.q_norm = Norm(self.dim, config.eps)
        if not config.shares(layer):
            self.k_proj = nn.Linear(config.hidden, config.kv_heads * self.dim, bias=False)
            self.v_proj = nn.Linear(config.hidden, config.kv_heads * self.dim, bias=False)
            self.k_norm = Norm(self.dim, config.eps)
        self.o_proj = nn.Linear(config.heads * self.dim, config.hidden, bias=False)

    def forward(self, x: Tensor, cos_sin, cache: PagedKVCache, shared: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """``shared`` carries this chunk's K and V of owning layers, by layer, to the layers that share them."""
        config, count = self.config, x.shape[1]
        width = config.full_head_dim
        q = op.reshape(self.q_proj(x), (1, count, config.heads, self.dim))
        q = pad_heads(rotate(self.q_norm(q), cos_sin), width)
        source = config.source(self.layer)
        if config.shares(self.layer):
            k, v = shared[source]
            out = cache.attention_with_shared_kv(source, q, k, v, sm_scale=1.0)
        else:
            k = op.reshape(self.k_proj(x), (1, count, config.kv_heads, self.dim))
            k = pad_heads(rotate(self.k_norm(k), cos_sin), width)
            v = op.reshape(self.v_proj(x), (1, count, config.kv_heads, self.dim))
            v = pad_heads(unscaled_norm(v, config.eps), width)
            shared[source] = (k, v)
            out = cache.attention_with_fused_qkv(source, op.concat([q, k, v], dim=2), config.heads, sm_scale=1.0)
        if self.dim < width:
            out = part(out, -1, 0, self.dim)
        return self.o_proj(op.reshape(out, (1, count, config.heads * self.dim)))


class Layer(nn.Module):
    def __init__(self, config: Gemma4Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = Mlp(config.hidden, config.mlp_width(layer))
        self.input_layernorm = Norm(config.hidden, config.eps)
        self.post_attention_layernorm = Norm(config.hidden, config.eps)
        self.pre_feedforward_layernorm = Norm(config.hidden, config.eps)
        self.post_feedforward_layernorm = Norm(config.hidden, config.eps)
        self.per_layer_input_gate = nn.Linear(config.hidden, config.per_layer_width, bias=False)
        self.per_layer_projection = nn.Linear(config.per_layer_width, config.hidden, bias=False)
        self.post_per_layer_input_norm = Norm(config.hidden, config.eps)
        self.layer_scalar = nn.Parameter((1,))

    def forward(self, x: Tensor, per_layer: Tensor, cos_sin, cache: PagedKVCache, shared) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), cos_sin, cache, shared)
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        gated = op.gelu(self.per_layer_input_gate(x), approximate="tanh") * per_layer
        x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x * self.layer_scalar


class Gemma4Text(nn.Module):
    """Token embedding, per-layer embedding, layers and final norm: everything but the logits."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        self.config = config
        per_layer = config.layers * config.per_layer_width
        self.embed_tokens = Embedding(config.vocab, config.hidden)
        self.embed_tokens_per_layer = Embedding(config.vocab, per_layer)
        self.per_layer_model_projection = nn.Linear(config.hidden, per_layer, bias=False)
        self.per_layer_projection_norm = Norm(config.per_layer_width, config.eps)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.layers)])
        self.norm = Norm(config.hidden, config.eps)

    def embed(self, ids: Tensor) -> Tensor:
        """``(n,)`` int32 to ``(n, hidden + layers * P)``: the scaled token embedding, then the token's PLE.

        Both lie in one tensor because the library interface has one embedding between ``embed`` and ``prefill``,
        and the PLE needs the token's id, which ``prefill`` does not get.
        """
        tokens = self.embed_tokens(ids) * self.config.hidden**0.5
        per_layer = self.embed_tokens_per_layer(ids) * self.config.per_layer_width**0.5
        return op.concat([tokens, per_layer], dim=-1)

    def forward(self, embedded: Tensor, cache: PagedKVCache) -> Tensor:
        """``(1, n, hidden + layers * P)`` to the final hidden states ``(1, n, hidden)``."""
        config, count, dtype = self.config, embedded.shape[1], embedded.dtype
        x = part(embedded, -1, 0, config.hidden)
        token_part = part(embedded, -1, config.hidden, embedded.shape[-1])
        grouped = (1, count, config.layers, config.per_layer_width)
        context = op.reshape(self.per_layer_model_projection(x) * config.hidden**-0.5, grouped)
        per_layer = (self.per_layer_projection_norm(context) + op.reshape(token_part, grouped)) * 2.0**-0.5
        positions = cache.get_query_positions(count)
        turns = {
            SLIDING: rotation(positions, inverse_frequencies(config.sliding_head_dim, config.sliding_theta), dtype),
            FULL: rotation(
                positions,
                inverse_frequencies(config.full_head_dim, config.full_theta, config.full_rotated_pairs),
                dtype,
            ),
        }
        shared: dict[int, tuple[Tensor, Tensor]] = {}
        for i, layer in enumerate(self.layers):
            own = op.reshape(part(per_layer, 2, i, i + 1), (1, count, config.per_layer_width))
            x = layer(x, own, turns[config.layer_type(i)], cache, shared)
        return self.norm(x)
