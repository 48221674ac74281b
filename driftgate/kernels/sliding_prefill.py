"""Paged prefill attention with a sliding window, for the CPU: TVM's own gives NaN where a row sees no key.

TVM 0.27's kernel updates its running maximum only for a visible key and then reads it for every key, so a row whose
keys are all masked divides what memory held. Here a masked key is skipped, and a row that sees none is the neutral
element of the merge: output zero, LSE the most negative score.
"""

from __future__ import annotations

from typing import Any

from driftgate.kernels.attention import LOG2_E, NO_KEY

FUNCTION = "prefill_sliding_corrected"


def build(heads: int, kv_heads: int, head_dim: int, window: int, dtype: str, page: int) -> Any:
    """A PrimFunc with the signature of TVM's paged prefill kernel.

    ``q`` and ``output``: ``(n, heads, head_dim)``; ``pages``: ``(pages, 2, kv_heads, page, head_dim)``, keys then
    values; ``lse``: ``(n, heads)`` float32, base 2. ``length_info``: ``(3, batch)``, tokens in the last page, offset
    of the window, sink length. Query ``r`` of the chunk sees the last ``window - r - 1`` past keys. RoPE is the
    model's business: a rotary mode other than 0 is refused.
    """
    from tvm.script import tirx as T

    group = heads // kv_heads

    @T.prim_func(s_tir=True)
    def prefill_sliding_corrected(
        var_q: T.handle,
        var_q_indptr: T.handle,
        var_pages: T.handle,
        var_page_indptr: T.handle,
        var_page_values: T.handle,
        var_length_info: T.handle,
        var_k_rope_pos_offset: T.handle,
        var_q_rope_position: T.handle,
        var_output: T.handle,
        var_lse: T.handle,
        causal: T.int32,
        rotary_mode: T.int32,
        rope_scale: T.float32,
        rope_theta: T.float32,
        sm_scale: T.float32,
    ):
        T.func_attr({"global_symbol": "prefill_sliding_corrected", "tirx.noalias": True})
        batch = T.int32()
        tokens = T.int32()
        listed = T.int32()
        pool = T.int32()
        offsets = [T.int32() for _ in range(6)]
        q = T.match_buffer(var_q, (tokens, heads, head_dim), dtype)
        q_indptr = T.match_buffer(var_q_indptr, (batch + 1,), "int32", elem_offset=offsets[0])
        pages = T.match_buffer(var_pages, (pool, 2, kv_heads, page, head_dim), dtype)
        page_indptr = T.match_buffer(var_page_indptr, (batch + 1,), "int32", elem_offset=offsets[1])
        page_values = T.match_buffer(var_page_values, (listed,), "int32", elem_offset=offsets[2])
        length_info = T.match_buffer(var_length_info, (3, batch), "int32", elem_offset=offsets[3])
        T.match_buffer(var_k_rope_pos_offset, (batch,), "int32", elem_offset=offsets[4])
        T.match_buffer(var_q_rope_position, (tokens,), "int32", elem_offset=offsets[5])
        output = T.match_buffer(var_output, (tokens, heads, head_dim), dtype)
        lse = T.match_buffer(var_lse, (tokens, heads), "float32")
        assert rotary_mode == 0, "prefill_sliding_corrected applies no RoPE"
        for b in range(batch):
            for h in range(heads):
                with T.sblock("head"):
                    acc = T.sblock_alloc_buffer((head_dim,), "float32")
                    peak = T.sblock_alloc_buffer((1,), "float32")
                    total = T.sblock_alloc_buffer((1,), "float32")
                    score = T.sblock_alloc_buffer((1,), "float32")
                    weight = T.sblock_alloc_buffer((1,), "float32")
                    rescale = T.sblock_alloc_buffer((1,), "float32")
                    keys = T.sblock_alloc_buffer((1,), "int32")
                    held = T.sblock_alloc_buffer((1,), "int32")
                    held[0] = page_indptr[b + 1] - page_indptr[b]
                    keys[0] = 0
                    if held[0] > 0:
                        keys[0] = (held[0] - 1) * page + length_info[0, b] - length_info[1, b] + length_info[2, b]
                    for r in range(q_indptr[b + 1] - q_indptr[b]):
                        row: T.let[T.int32] = q_indptr[b] + r
                        peak[0] = T.float32(NO_KEY)
                        total[0] = T.float32(0)
                        for i in range(head_dim):
                            acc[i] = T.float32(0)
                        for key in range(keys[0]):
                            if causal == 0 or key >= keys[0] - T.max(window - r - 1, 0):
                                slot: T.let[T.int32] = T.if_then_else(
                                    key < length_info[2, b], key, key - length_info[2, b] + length_info[1, b]
                                )
                                where: T.let[T.int32] = page_values[page_indptr[b] + slot // page]
                                score[0] = T.float32(0)
                                for i in range(head_dim):
                                    score[0] = score[0] + T.cast(q[row, h, i], "float32") * T.cast(
                                        pages[where, 0, h // group, slot % page, i], "float32"
                                    )
                                score[0] = score[0] * sm_scale * T.float32(LOG2_E)
                                rescale[0] = T.exp2(peak[0] - T.max(peak[0], score[0]))
                                peak[0] = T.max(peak[0], score[0])
                                weight[0] = T.exp2(score[0] - peak[0])
                                total[0] = total[0] * rescale[0] + weight[0]
                                for i in range(head_dim):
                                    acc[i] = acc[i] * rescale[0] + weight[0] * T.cast(
                                        pages[where, 1, h // group, slot % page, i], "float32"
                                    )
                        for i in range(head_dim):
                            output[row, h, i] = T.cast(acc[i] / T.max(total[0], T.float32(1e-30)), dtype)
                        lse[row, h] = T.if_then_else(total[0] > 0.0, peak[0] + T.log2(total[0]), T.float32(NO_KEY))

    return prefill_sliding_corrected
