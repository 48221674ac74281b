"""Gemma 4 text as a Relax module, written from the published equations.

``a = N(x)``, then attention and MLP each between two norms, a per-layer embedding (PLE) and a layer scalar:

- ``x += N_postattn(Wo softmax(q k^T + mask) v)``, scale 1.0, q and k normed before RoPE, v normed without a weight;
- ``x += N_postff(Wd(gelu(Wg h) Wu h))`` with ``h = N_preff(x)``, with experts ``N_postff(N_pf1(..) + N_pf2(..))``;
- ``x += N_postple(Wpp(gelu(Wpg x) ple_l))``; ``x *= layer_scalar_l``.

Parameters bear the names that HuggingFace gives them, so that both sides are built from the same arrays.
"""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache

from models.blocks import Embedding, Mlp, Norm, pad_heads, part, rotate, rotations, unscaled_norm
from models.gemma4.config import Gemma4Config
from models.gemma4.experts import Experts, Router


class Attention(nn.Module):
    """Attention of one layer. Heads are padded to the full head_dim, and KV heads repeated, to those of the cache."""

    def __init__(self, config: Gemma4Config, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.dim = config.width(layer)
        self.kv_heads = config.kv_heads(layer)
        hidden, heads, eps = config.hidden_size, config.num_attention_heads, config.rms_norm_eps
        self.q_proj = nn.Linear(hidden, heads * self.dim, bias=False)
        self.q_norm = Norm(self.dim, eps)
        if not config.shares(layer):
            self.k_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
            if not config.values_are_keys(layer):
                self.v_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
            self.k_norm = Norm(self.dim, eps)
        self.o_proj = nn.Linear(heads * self.dim, hidden, bias=False)

    def forward(self, x: Tensor, cos_sin, cache: PagedKVCache, shared: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """``shared`` carries this chunk's K and V of owning layers, by layer, to the layers that share them."""
        config, count = self.config, x.shape[1]
        heads, width = config.num_attention_heads, config.cache_head_dim
        q = op.reshape(self.q_proj(x), (1, count, heads, self.dim))
        q = pad_heads(rotate(self.q_norm(q), cos_sin), width)
        source = config.source(self.layer)
        if config.shares(self.layer):
            k, v = shared[source]
            out = cache.attention_with_shared_kv(source, q, k, v, sm_scale=1.0)
        else:
            k, v = self._keys_and_values(x, cos_sin)
            shared[source] = (k, v)
            out = cache.attention_with_fused_qkv(source, op.concat([q, k, v], dim=2), heads, sm_scale=1.0)
        if self.dim < width:
            out = part(out, -1, 0, self.dim)
        return self.o_proj(op.reshape(out, (1, count, heads * self.dim)))

    def _keys_and_values(self, x: Tensor, cos_sin) -> tuple[Tensor, Tensor]:
        config, shape = self.config, (1, x.shape[1], self.kv_heads, self.dim)
        raw = op.reshape(self.k_proj(x), shape)
        values = raw if config.values_are_keys(self.layer) else op.reshape(self.v_proj(x), shape)
        k = rotate(self.k_norm(raw), cos_sin)
        v = unscaled_norm(values, config.rms_norm_eps)
        times = config.cache_kv_heads // self.kv_heads
        if times > 1:
            k, v = op.repeat(k, times, axis=2), op.repeat(v, times, axis=2)
        return pad_heads(k, config.cache_head_dim), pad_heads(v, config.cache_head_dim)


class Layer(nn.Module):
    def __init__(self, config: Gemma4Config, layer: int) -> None:
        super().__init__()
        hidden, per_layer = config.hidden_size, config.hidden_size_per_layer_input
        self.has_experts, self.has_per_layer = config.enable_moe_block, per_layer > 0

        def norm() -> Norm:
            return Norm(hidden, config.rms_norm_eps)

        self.self_attn = Attention(config, layer)
        self.mlp = Mlp(hidden, config.mlp_width(layer))
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.post_feedforward_layernorm = norm()
        if self.has_experts:
            self.router = Router(config)
            self.experts = Experts(config)
            self.post_feedforward_layernorm_1 = norm()
            self.post_feedforward_layernorm_2 = norm()
            self.pre_feedforward_layernorm_2 = norm()
        if self.has_per_layer:
            self.per_layer_input_gate = nn.Linear(hidden, per_layer, bias=False)
            self.per_layer_projection = nn.Linear(per_layer, hidden, bias=False)
            self.post_per_layer_input_norm = norm()
        self.layer_scalar = nn.Parameter((1,))

    def forward(self, x: Tensor, per_layer: Tensor | None, cos_sin, cache: PagedKVCache, shared) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), cos_sin, cache, shared)
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self._feedforward(x))
        if per_layer is not None:
            gated = op.gelu(self.per_layer_input_gate(x), approximate="tanh") * per_layer
            x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x * self.layer_scalar

    def _feedforward(self, x: Tensor) -> Tensor:
        m = self.mlp(self.pre_feedforward_layernorm(x))
        if not self.has_experts:
            return m
        # Router and experts read what the MLP reads, not what it gives.
        chosen = self.experts(self.pre_feedforward_layernorm_2(x), self.router(x))
        return self.post_feedforward_layernorm_1(m) + self.post_feedforward_layernorm_2(chosen)


class Gemma4Text(nn.Module):
    """Token embedding, per-layer embedding, layers and final norm: everything but the logits."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size_per_layer_input
        per_layer = config.num_hidden_layers * width
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        if width:
            self.embed_tokens_per_layer = Embedding(config.vocab_size, per_layer)
            self.per_layer_model_projection = nn.Linear(config.hidden_size, per_layer, bias=False)
            self.per_layer_projection_norm = Norm(width, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)

    def embed(self, ids: Tensor) -> Tensor:
        """``(n,)`` int32 to ``(n, hidden + layers * P)``: the scaled token embedding, then the token's PLE.

        Both lie in one tensor because the library interface has one embedding between ``embed`` and ``prefill``,
        and the PLE needs the token's id, which ``prefill`` does not get.
        """
        config = self.config
        tokens = self.embed_tokens(ids) * config.hidden_size**0.5
        if not config.hidden_size_per_layer_input:
            return tokens
        per_layer = self.embed_tokens_per_layer(ids) * config.hidden_size_per_layer_input**0.5
        return op.concat([tokens, per_layer], dim=-1)

    def forward(self, embedded: Tensor, cache: PagedKVCache) -> Tensor:
        """``(1, n, hidden + layers * P)`` to the final hidden states ``(1, n, hidden)``."""
        config = self.config
        x, per_layer = self._split(embedded)
        dims = {kind: config.width(i) for i, kind in enumerate(config.layer_types)}
        turns = rotations(cache.get_query_positions(embedded.shape[1]), dims, config.ropes, embedded.dtype)
        shared: dict[int, tuple[Tensor, Tensor]] = {}
        for i, layer in enumerate(self.layers):
            x = layer(x, self._own(per_layer, i), turns[config.layer_types[i]], cache, shared)
        return self.norm(x)

    def _split(self, embedded: Tensor) -> tuple[Tensor, Tensor | None]:
        """The token embedding, and the PLE of all layers ``(1, n, layers, P)``: the token's and the context's."""
        config, count = self.config, embedded.shape[1]
        width = config.hidden_size_per_layer_input
        if not width:
            return embedded, None
        x = part(embedded, -1, 0, config.hidden_size)
        token_part = part(embedded, -1, config.hidden_size, embedded.shape[-1])
        grouped = (1, count, config.num_hidden_layers, width)
        context = op.reshape(self.per_layer_model_projection(x) * config.hidden_size**-0.5, grouped)
        return x, (self.per_layer_projection_norm(context) + op.reshape(token_part, grouped)) * 2.0**-0.5

    def _own(self, per_layer: Tensor | None, layer: int) -> Tensor | None:
        if per_layer is None:
            return None
        return op.reshape(part(per_layer, 2, layer, layer + 1), (1, per_layer.shape[1], per_layer.shape[3]))
