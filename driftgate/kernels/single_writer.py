"""The merge of two attention results for a GPU, as TVM's should be: read, barrier, one thread stores the LSE.

TVM 0.27's kernel has every thread of a row read ``S[row]`` and every thread store it, without a barrier between: where
a row has more threads than a warp, a late one reads what an early one stored.
"""

from __future__ import annotations

from typing import Any

FUNCTION = "merge_single_writer"
VECTOR = 4
"""Elements of a row that one thread merges."""


def build(heads: int, head_dim: int, dtype: str, max_threads: int) -> Any:
    """A PrimFunc with the signature of TVM's merge kernel.

    ``v`` and ``v_other``: ``(n, heads, head_dim)`` of ``dtype``; ``s`` and ``s_other``: ``(n, heads)`` float32, base 2;
    ``v`` and ``s`` are written in place. Raises ValueError for a head_dim that is no multiple of 4 or needs more
    threads than a block may have.
    """
    from tvm.script import tirx as T

    if head_dim % VECTOR or head_dim // VECTOR > max_threads:
        raise ValueError(f"head_dim {head_dim} has to be a multiple of {VECTOR} and at most {VECTOR * max_threads}")
    columns = head_dim // VECTOR
    rows = max(r for r in range(1, heads + 1) if heads % r == 0 and r * columns <= max_threads)

    @T.prim_func(s_tir=True)
    def merge_single_writer(v: T.handle, s: T.handle, v_other: T.handle, s_other: T.handle):
        T.func_attr({"global_symbol": "merge_single_writer", "tirx.is_scheduled": True})
        n = T.int32()
        values = T.match_buffer(v, (n, heads, head_dim), dtype)
        lse = T.match_buffer(s, (n, heads), "float32")
        other_values = T.match_buffer(v_other, (n, heads, head_dim), dtype)
        other_lse = T.match_buffer(s_other, (n, heads), "float32")
        for token in T.thread_binding(n, thread="blockIdx.x"):
            for group in T.thread_binding(heads // rows, thread="blockIdx.y"):
                for row in T.thread_binding(rows, thread="threadIdx.y"):
                    for column in T.thread_binding(columns, thread="threadIdx.x"):
                        with T.sblock("merge"):
                            T.reads()
                            T.writes()
                            own = T.sblock_alloc_buffer((1,), "float32", scope="local")
                            other = T.sblock_alloc_buffer((1,), "float32", scope="local")
                            peak = T.sblock_alloc_buffer((1,), "float32", scope="local")
                            own[0] = lse[token, group * rows + row]
                            other[0] = other_lse[token, group * rows + row]
                            # Nobody stores before everybody has read.
                            T.tvm_storage_sync("shared")
                            peak[0] = T.max(own[0], other[0])
                            own[0] = T.exp2(own[0] - peak[0])
                            other[0] = T.exp2(other[0] - peak[0])
                            for i in T.serial(VECTOR):
                                values[token, group * rows + row, column * VECTOR + i] = T.cast(
                                    (
                                        T.cast(values[token, group * rows + row, column * VECTOR + i], "float32")
                                        * own[0]
                                        + T.cast(
                                            other_values[token, group * rows + row, column * VECTOR + i], "float32"
                                        )
                                        * other[0]
                                    )
                                    / (own[0] + other[0]),
                                    dtype,
                                )
                            if column == 0:
                                lse[token, group * rows + row] = peak[0] + T.log2(own[0] + other[0])

    return merge_single_writer
