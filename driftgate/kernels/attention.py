"""Attention in float64, and the softmax merge of two results: the formulas that the references share."""

from __future__ import annotations

import numpy as np

LOG2_E = float(np.log2(np.e))
NO_KEY = -5e4
"""LSE of a row that sees no key, as TVM's kernels have it: finite, and 2^NO_KEY is 0."""


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray, scale: float, cap: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Softmax attention of ``n`` queries over ``m`` keys.

    ``q``: ``(n, heads, d)``; ``k``, ``v``: ``(m, kv_heads, d)``, each KV head serving ``heads / kv_heads`` query heads;
    ``visible``: bool ``(n, m)``. All float64. Returns values ``(n, heads, d_v)`` and the LSE, base 2, ``(n, heads)``:
    ``log2(sum 2^(s log2(e)))`` with ``s = q.k scale``, or ``cap tanh(q.k scale / cap)``. A row that sees no
    key gets zeros and ``NO_KEY``. A key that a row does not see has no part in it, whatever it holds.
    """
    n, heads, _ = q.shape
    group = heads // k.shape[1]
    out, lse = np.zeros((n, heads, v.shape[-1])), np.full((n, heads), NO_KEY)
    if not k.shape[0] or not visible.any():
        return out, lse
    used = visible.any(axis=0)
    k, v, visible = k[used], v[used], visible[:, used]
    if not (np.isfinite(k).all() and np.isfinite(v).all()) and not visible.all():
        # Zero times NaN is NaN: rows that see different keys must not share a matrix product.
        for i in range(n):
            rows, row_lse = attend(
                q[i : i + 1], k[visible[i]], v[visible[i]], np.ones((1, visible[i].sum()), bool), scale, cap
            )
            out[i], lse[i] = rows[0], row_lse[0]
        return out, lse
    for head in range(heads):
        scores = q[:, head] @ k[:, head // group].T * scale
        if cap is not None:
            scores = cap * np.tanh(scores / cap)
        scores *= LOG2_E
        scores[~visible] = -np.inf
        peak = scores.max(axis=1, keepdims=True)
        seen = ~np.isneginf(peak[:, 0])
        weights = np.exp2(scores[seen] - peak[seen])
        total = weights.sum(axis=1, keepdims=True)
        out[seen, head] = weights @ v[:, head // group] / total
        lse[seen, head] = peak[seen, 0] + np.log2(total[:, 0])
    return out, lse


def merged(v: np.ndarray, s: np.ndarray, v_other: np.ndarray, s_other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two attention results over different keys as one: values ``(n, heads, d)`` and LSEs ``(n, heads)``, base 2.

    The weights of the online softmax (Milakov and Gimelshein, 2018): ``w = 2^(s - max)``; values are averaged by
    weight, LSEs add up. A side with LSE minus infinity is the neutral element; two of them leave zeros.
    """
    v, s, v_other, s_other = (a.astype(np.float64) for a in (v, s, v_other, s_other))
    peak = np.maximum(s, s_other)
    both_empty = np.isneginf(peak)
    base = np.where(both_empty, 0.0, peak)
    w, w_other = np.exp2(s - base), np.exp2(s_other - base)
    total = np.where(both_empty, 1.0, w + w_other)
    values = _part(v, s, w) + _part(v_other, s_other, w_other)
    return values / total[..., None], np.where(both_empty, -np.inf, base + np.log2(total))


def _part(v: np.ndarray, s: np.ndarray, weight: np.ndarray) -> np.ndarray:
    # What an empty side holds is nobody's value; anything else counts, NaN too.
    return np.where(np.isneginf(s)[..., None], 0.0, v * weight[..., None])
