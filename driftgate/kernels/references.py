"""NumPy references of the cache's kernels: TVM's signatures, float64 inside, results written into the arguments.

Each is made for one cache (`references`) and takes NumPy arrays where the kernel takes tensors. Shapes: ``q`` and
``output`` ``(n, heads, d)``, ``lse`` ``(n, heads)`` float32 to base 2, ``k`` and ``v`` ``(n, kv_heads, d)``, ``pages``
``(pages, 2, kv_heads, page, d)`` with keys before values, ``*_indptr`` ``(batch + 1,)`` int32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from driftgate.kernels.attention import attend, merged
from driftgate.kernels.rope import Rope, rotated
from driftgate.seam import CacheConfig

Reference = Callable[..., None]


def references(config: CacheConfig, rope: Rope | None = None) -> dict[str, Reference]:
    """A reference for every kernel of a cache. ``rope`` is what rotary was compiled for, where that is not plain."""
    rope = rope or Rope(config.rope_theta, config.rope_scale, config.head_dim)
    whole, sliding = (_Attention(rope, window, config.softcap) for window in (0, config.window or 0))
    in_chunk = replace(whole, window=config.chunk_window or 0)
    return {
        "append": append,
        "prefill_ragged": in_chunk.ragged,
        "prefill_paged": whole.paged,
        "prefill_sliding": sliding.paged,
        "decode": whole.decode,
        "decode_sliding": whole.decode,
        "tree_paged": whole.tree_paged,
        "tree": whole.tree,
        "merge": merge,
        "rotary": lambda *args: rotary(rope, *args),
        "copy_page": copy_page,
        "compact_copy": compact_copy,
    }


def merge(v: np.ndarray, s: np.ndarray, v_other: np.ndarray, s_other: np.ndarray) -> None:
    """``(v, s)`` becomes the merge of itself with ``(v_other, s_other)``."""
    v[:], s[:] = merged(v, s, v_other, s_other)


def append(pages: np.ndarray, k: np.ndarray, v: np.ndarray, position_map: np.ndarray) -> None:
    """Token ``i`` goes to slot ``position_map[i]`` of the pool, counted over pages; -1 goes nowhere."""
    kept = position_map >= 0
    page, slot = np.divmod(position_map[kept], pages.shape[3])
    pages[page, 0, :, slot] = k[kept]
    pages[page, 1, :, slot] = v[kept]


def rotary(
    rope: Rope,
    qkv: np.ndarray,
    position_map: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    apply: int | np.ndarray,
) -> None:
    """Split ``qkv`` ``(n, heads + 2 kv_heads, d)``, turning q and k by their positions if ``apply``.

    ``apply`` may be LongRoPE's extension factors instead ``(rotary_dim,)``: the long ones, for a chunk longer than the
    original context, then the short ones.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    turned = qkv[:, : heads + kv_heads]
    if isinstance(apply, np.ndarray):
        half = rope.rotary_dim // 2
        long = len(qkv) > rope.scaling["original_max_position_embeddings"]
        turned = rotated(turned, position_map, rope, apply[:half] if long else apply[half:])
    elif apply > 0:
        turned = rotated(turned, position_map, rope)
    q[:], k[:], v[:] = turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :]


def copy_page(pages: np.ndarray, src_page_id: int, tgt_page_id: int, copy_length: int) -> None:
    """The first ``copy_length`` slots of one page become those of another."""
    pages[tgt_page_id, :, :, :copy_length] = pages[src_page_id, :, :, :copy_length]


def compact_copy(pages: np.ndarray, copy_length_indptr: np.ndarray, copy_src_dst_pos: np.ndarray, batch: int) -> None:
    """Slots ``src`` to slots ``dst``, one after the other: a later copy may read what an earlier one wrote."""
    size = pages.shape[3]
    for src, dst in copy_src_dst_pos[:, copy_length_indptr[0] : copy_length_indptr[batch]].T:
        pages[dst // size, :, :, dst % size] = pages[src // size, :, :, src % size]


@dataclass(frozen=True)
class _Attention:
    """The attention kernels of one cache. ``window`` is 0 for kernels that know none; ``cap`` is of the scores.

    The last numbers of each call are rotary_mode (1: RoPE is applied to q and k here), rope_scale, rope_theta and
    sm_scale.
    """

    rope: Rope
    window: int
    cap: float | None = None

    def paged(
        self, q, q_indptr, pages, page_indptr, page_values, info, k_offset, q_position, output, lse, causal, *turn
    ):
        """Queries over pages: a window keeps the last ``window - row - 1`` keys, else causality those up to the row."""
        for b, rows in enumerate(_ranges(q_indptr)):
            k, v = _gathered(b, pages, page_indptr, page_values, info)
            row, key = np.arange(len(rows))[:, None], np.arange(len(k))[None]
            if causal > 0 and self.window:
                visible = key >= len(k) - np.maximum(self.window - row - 1, 0)
            elif causal > 0:
                visible = key < len(k) - len(rows) + row + 1
            else:
                visible = np.ones((len(rows), len(k)), bool)
            self._write(rows, q, k, v, visible, q_position, k_offset[b] + np.arange(len(k)), output, lse, turn)

    def decode(self, q, pages, page_indptr, page_values, info, k_offset, q_position, output, lse, *turn):
        """One query a sequence over all its keys."""
        indptr = np.arange(len(q) + 1)
        self.paged(q, indptr, pages, page_indptr, page_values, info, k_offset, q_position, output, lse, 0, *turn)

    def ragged(self, q, q_indptr, k, v, kv_indptr, q_position, k_offset, output, lse, causal, *turn):
        """Queries over the keys of their own chunk, up to themselves if ``causal``."""
        for b, (rows, keys) in enumerate(zip(_ranges(q_indptr), _ranges(kv_indptr), strict=True)):
            row, key = np.arange(len(rows))[:, None], np.arange(len(keys))[None]
            visible = key < (len(keys) - len(rows) + row + 1 if causal > 0 else len(keys) + 0 * row)
            if self.window:
                visible &= key > len(keys) - len(rows) + row - self.window
            positions = k_offset[b] + np.arange(len(keys))
            self._write(rows, q, _wide(k[keys]), _wide(v[keys]), visible, q_position, positions, output, lse, turn)

    def tree(self, q, q_indptr, k, v, kv_indptr, q_position, tree_indptr, tree_order, output, lse, *turn):
        """Nodes of a token tree over the nodes of the same chunk that are their ancestors."""
        for b, (rows, keys) in enumerate(zip(_ranges(q_indptr), _ranges(kv_indptr), strict=True)):
            visible = _ancestors(len(rows), len(keys), tree_order[tree_indptr[b] : tree_indptr[b + 1]])
            wide = _wide(k[keys]), _wide(v[keys])
            self._write(rows, q, *wide, visible, q_position, q_position[keys], output, lse, turn)

    def tree_paged(
        self, q, q_indptr, pages, page_indptr, page_values, info, k_offset, q_position, output, lse, *turn_and_tree
    ):
        """Nodes of a token tree over pages: all keys before the tree, and their ancestors in it."""
        *turn, tree_indptr, tree_order = turn_and_tree
        for b, rows in enumerate(_ranges(q_indptr)):
            k, v = _gathered(b, pages, page_indptr, page_values, info)
            visible = _ancestors(len(rows), len(k), tree_order[tree_indptr[b] : tree_indptr[b + 1]])
            self._write(rows, q, k, v, visible, q_position, k_offset[b] + np.arange(len(k)), output, lse, turn)

    def _write(self, rows, q, k, v, visible, q_position, k_position, output, lse, turn) -> None:
        rotary_mode, rope_scale, rope_theta, sm_scale = turn
        queries = _wide(q[rows])
        if rotary_mode == 1:
            # Inline RoPE has the theta that the call names, not the cache's.
            rope = replace(self.rope, theta=float(rope_theta), scale=float(rope_scale))
            queries, k = rotated(queries, q_position[rows], rope), rotated(k, k_position, rope)
        output[rows], lse[rows] = attend(queries, k, v, visible, float(sm_scale), self.cap)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _ranges(indptr: np.ndarray) -> list[np.ndarray]:
    return [np.arange(start, stop) for start, stop in pairwise(indptr.tolist())]


def _gathered(
    b: int, pages: np.ndarray, page_indptr: np.ndarray, page_values: np.ndarray, info: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of sequence ``b`` in order of position, ``(m, kv_heads, d)`` float64.

    ``info`` is tokens in the last page ``(batch,)``, or with a window ``(3, batch)``: those, the offset of the window
    in its first page, and the sink: first tokens that stay whatever the window.
    """
    size = pages.shape[3]
    table = page_values[page_indptr[b] : page_indptr[b + 1]]
    last, offset, sink = (info[b], 0, 0) if info.ndim == 1 else (int(n) for n in info[:, b])
    count = (len(table) - 1) * size + last - offset + sink if len(table) else 0
    at = np.arange(count)
    at = np.where(at < sink, at, at - sink + offset)
    held = pages[table[at // size], :, :, at % size] if count else pages[:0, :, :, 0]
    return _wide(held[:, 0]), _wide(held[:, 1])


def _ancestors(rows: int, keys: int, order: np.ndarray) -> np.ndarray:
    """Which of ``keys`` each of the last ``rows`` nodes sees. ``order`` ``(nodes, 2)``: when a walk of the tree, depth
    first, enters a node and when it leaves it; a node is inside all its ancestors."""
    start = keys - len(order)
    enters = order[len(order) - rows :, 0][:, None]
    inside = (enters >= order[None, :, 0]) & (enters < order[None, :, 1])
    return np.concatenate([np.ones((rows, start), bool), inside], axis=1)
