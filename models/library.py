"""The functions of a model library, after MLC's interface, so that one runner serves ours and packaged ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache

from driftgate.kernels.softcap import capped_module
from models.blocks import part, softcap, taken
from models.config import Config


@dataclass(frozen=True)
class CacheShape:
    """What the paged KV cache of a model holds: one head_dim, one KV-head count and one window for all layers."""

    kinds: tuple[str, ...]
    """``mha`` or ``mha_sliding``, one a layer that owns K and V."""
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    rope_theta: float | None = None
    """Theta of the RoPE that the cache applies; None where the model applies its own."""
    softcap: float | None = None
    """Cap of the attention scores, which TVM's kernels do not have: see ``driftgate.kernels.softcap``."""


def cache_shape(config: Config) -> CacheShape:
    """What the cache of ``config`` holds."""
    return CacheShape(
        config.cache_kinds,
        config.num_attention_heads,
        config.cache_kv_heads,
        config.cache_head_dim,
        config.window,
        softcap=config.attention_softcap,
    )


class TextLibrary(nn.Module):
    """A text model behind the library interface.

    ``body`` has ``embed(ids (n,)) -> (n, w)``, ``__call__(embedded (1, n, w), cache) -> (1, n, hidden)`` and
    ``embed_tokens``, whose weight is the output projection as well.
    """

    def __init__(
        self,
        body: nn.Module,
        *,
        hidden: int,
        embed_width: int,
        cap: float | None,
        cache: CacheShape,
        target: tvm.target.Target,
    ) -> None:
        super().__init__()
        self.model = body
        self.target = target
        self.hidden = hidden
        self.embed_width = embed_width
        self.cap = cap
        self.cache = cache
        self.dtype = "float32"

    def to(self, dtype: str | None = None) -> None:
        super().to(dtype)
        self.dtype = dtype or self.dtype

    def embed(self, input_ids: Tensor) -> Tensor:
        return self.model.embed(input_ids)

    def get_logits(self, hidden_states: Tensor) -> Tensor:
        logits = op.matmul(hidden_states, op.permute_dims(self.model.embed_tokens.weight)).astype("float32")
        return softcap(logits, self.cap) if self.cap else logits

    def prefill_to_last_hidden_states(self, input_embed: Tensor, paged_kv_cache: PagedKVCache):
        return self.model(input_embed, paged_kv_cache), paged_kv_cache

    def prefill(self, input_embed: Tensor, paged_kv_cache: PagedKVCache):
        hidden = self.model(input_embed, paged_kv_cache)
        last = part(hidden, axis=1, begin=hidden.shape[1] - 1, end=hidden.shape[1])
        return self.get_logits(op.reshape(last, (1, 1, self.hidden))), paged_kv_cache

    decode = prefill

    def batch_prefill(self, input_embeds: Tensor, logit_positions: Tensor, paged_kv_cache: PagedKVCache):
        hidden = taken(self.model(input_embeds, paged_kv_cache), logit_positions, axis=1)
        return self.get_logits(hidden), paged_kv_cache

    def batch_decode(self, input_embeds: Tensor, paged_kv_cache: PagedKVCache):
        count = input_embeds.shape[0]
        flat = op.reshape(input_embeds, (1, count, self.embed_width))
        hidden = op.reshape(self.model(flat, paged_kv_cache), (count, 1, self.hidden))
        return self.get_logits(hidden), paged_kv_cache

    def batch_verify(self, input_embeds: Tensor, paged_kv_cache: PagedKVCache):
        return self.get_logits(self.model(input_embeds, paged_kv_cache)), paged_kv_cache

    def softmax_with_temperature(self, logits: Tensor, temperature: Tensor) -> Tensor:
        return op.softmax(logits / op.reshape(temperature, (temperature.shape[0], 1, 1)), axis=-1)

    def create_tir_paged_kv_cache(
        self,
        max_batch_size: tirx.Var,
        max_total_seq_len: tirx.Var,
        prefill_chunk_size: tirx.Var,
        page_size: tirx.Var,
        support_sliding_window: tirx.Var,
    ) -> PagedKVCache:
        shape = self.cache
        return TIRPagedKVCache(
            attn_kind=list(shape.kinds),
            max_batch_size=max_batch_size,
            max_total_seq_len=max_total_seq_len,
            prefill_chunk_size=prefill_chunk_size,
            page_size=page_size,
            support_sliding_window=support_sliding_window,
            layer_partition=relax.ShapeExpr([0, len(shape.kinds)]),
            num_hidden_layers=len(shape.kinds),
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            qk_head_dim=shape.head_dim,
            v_head_dim=shape.head_dim,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NONE if shape.rope_theta is None else RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=int(shape.rope_theta or 10000),
            rope_scaling={},
            # A tensor here would switch the rotary kernel's calling convention; a number stands for "none".
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=shape.head_dim,
            enable_disaggregation=False,
            dtype=self.dtype,
            target=self.target,
            # Without a sliding layer no kernel reads it.
            layer_sliding_window_size=shape.window or 1,
        )


def export(library: TextLibrary, metadata: Mapping[str, Any]) -> tvm.IRModule:
    """The IRModule of ``library``; every function takes its parameters last, packed, as ``_metadata`` lists them."""
    mod, params = library.export_tvm(nn.spec.ModuleSpec.from_raw(_spec(library), library))
    if library.cache.softcap is not None:
        mod = capped_module(mod, library.cache.softcap)
    listed = [{"name": name, "shape": list(p.shape), "dtype": p.dtype} for name, p in params]
    mod["_metadata"] = _constant_function(json.dumps({**metadata, "params": listed}))
    return mod


def _constant_function(text: str) -> relax.Function:
    function = relax.Function([], tvm.ir.StringImm(text))
    return function.with_attr("global_symbol", "_metadata")


def _spec(library: TextLibrary) -> dict[str, Any]:
    width, dtype = library.embed_width, library.dtype
    packed = {"param_mode": "packed", "effect_mode": "none"}
    bare = {"param_mode": "none", "effect_mode": "none"}
    cache = nn.spec.Object(object_type=PagedKVCache)
    one_sequence = nn.spec.Tensor([1, "seq_len", width], dtype)
    return {
        "embed": {"input_ids": nn.spec.Tensor(["seq_len"], "int32"), "$": packed},
        "get_logits": {"hidden_states": nn.spec.Tensor([1, "seq_len", library.hidden], dtype), "$": packed},
        "prefill_to_last_hidden_states": {"input_embed": one_sequence, "paged_kv_cache": cache, "$": packed},
        "prefill": {"input_embed": one_sequence, "paged_kv_cache": cache, "$": packed},
        "decode": {"input_embed": nn.spec.Tensor([1, 1, width], dtype), "paged_kv_cache": cache, "$": packed},
        "batch_prefill": {
            "input_embeds": one_sequence,
            "logit_positions": nn.spec.Tensor(["batch_size"], "int32"),
            "paged_kv_cache": cache,
            "$": packed,
        },
        "batch_decode": {
            "input_embeds": nn.spec.Tensor(["batch_size", 1, width], dtype),
            "paged_kv_cache": cache,
            "$": packed,
        },
        "batch_verify": {"input_embeds": one_sequence, "paged_kv_cache": cache, "$": packed},
        "softmax_with_temperature": {
            "logits": nn.spec.Tensor(["batch_size", 1, "vocab_size"], "float32"),
            "temperature": nn.spec.Tensor(["batch_size"], "float32"),
            "$": bare,
        },
        "create_tir_paged_kv_cache": {
            "max_batch_size": int,
            "max_total_seq_len": int,
            "prefill_chunk_size": int,
            "page_size": int,
            "support_sliding_window": int,
            "$": bare,
        },
    }
