"""Inputs for the cache's kernels that reach every statement: several sequences, tails, empty pages, many tiles.

The shapes are small, since what is judged is who touches which byte, but never so small that a loop over tiles, a
bounds check or a branch stays out. What was reached is counted (see `coverage`), and an unreached store is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from driftgate.outcome import UsageError
from driftgate.races.catalog import MLA_ROPE_DIM, PAGE, THETA, Shape
from driftgate.races.evidence import Setup
from driftgate.races.kernel import Kernel, bytes_of, element_of

BLOCKS = 16
"""Blocks of a prefill kernel for each KV head: they share the tiles among them."""
KV_TOKENS = (21, 0, 16)
"""Past tokens of the sequences: a tail, nothing at all, a full page. The first grows with the kernel's tile of keys."""
DECODE_TOKENS = (37, 0, 16)

Arrays = dict[str, Any]


@dataclass(frozen=True)
class _Case:
    """What a kernel is called with. ``numbers`` win over the defaults that every kernel shares."""

    arrays: Mapping[str, Any]
    numbers: Mapping[str, int | float]
    outputs: tuple[str, ...]


def setups(name: str, shape: Shape, kernel: Kernel) -> tuple[Setup, ...]:
    """The launches of catalog kernel ``name`` that are judged; same every time.

    Raises UsageError where ``kernel`` has a parameter that the kernel of this name does not have.
    """
    rng = np.random.default_rng(0)
    return tuple(_fitted(kernel, case) for case in _CASES[name](shape, kernel, rng))


def _fitted(kernel: Kernel, case: _Case) -> Setup:
    arrays = {}
    for buffer in kernel.pointers:
        if buffer.name not in case.arrays:
            raise UsageError(
                f"kernel {kernel.name}: no input is known for its buffer {buffer.name}; "
                f"there are {', '.join(sorted(case.arrays))}"
            )
        arrays[buffer.name] = np.ascontiguousarray(case.arrays[buffer.name], element_of(buffer.dtype)).reshape(-1)
    scalars: dict[str, int | float] = {}
    for var in kernel.scalars:
        default = 0 if var.name.endswith("elem_offset") else _NUMBERS.get(var.name)
        value = case.numbers.get(var.name, default)
        if value is None:
            raise UsageError(
                f"kernel {kernel.name}: no value is known for its parameter {var.name}; "
                f"there are {', '.join(sorted({*case.numbers, *_NUMBERS}))}"
            )
        scalars[var.name] = value
    return Setup(arrays, scalars, frozenset(case.outputs))


_NUMBERS: dict[str, int | float] = {
    "sm_scale": 0.1,
    "rope_scale": 1.0,
    "rope_theta": THETA,
    "rotary_mode": 0,
    "causal": 0,
}


def _indptr(lengths: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def _pages(lengths: tuple[int, ...], rng: np.random.Generator) -> Arrays:
    counts = tuple(-(-n // PAGE) for n in lengths)
    last = [(n - 1) % PAGE + 1 if n else 0 for n in lengths]
    values = rng.permutation(sum(counts) + 1)[: sum(counts)]
    return {
        **dict.fromkeys(("page_indptr", "page_table_indptr"), _indptr(counts)),
        **dict.fromkeys(("page_values", "page_table_values"), values),
        "length_info": np.asarray(last),
        "pool": sum(counts) + 1,
    }


def _normal(rng: np.random.Generator, *dims: int) -> np.ndarray:
    return rng.standard_normal(dims)


def _sliding(arrays: Arrays, lengths: tuple[int, ...]) -> Arrays:
    """Length info of a window: last page's length, offset of the window, attention sinks, for each sequence."""
    offset = [3 if n > PAGE else 0 for n in lengths]
    sinks = [1 if n > PAGE else 0 for n in lengths]
    return {**arrays, "length_info": np.stack([arrays["length_info"], offset, sinks])}


def _merge(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
    rows, dims = 3, (3, shape.heads, shape.head_dim)
    arrays = {name: _normal(rng, *dims) for name in ("V", "V_other")}
    arrays |= {name: _normal(rng, rows, shape.heads) for name in ("S", "S_other")}
    return [_Case(arrays, {"N": rows, "H": shape.heads, "D": shape.head_dim}, ())]


def _decode(sliding: bool) -> Callable[[Shape, Kernel, np.random.Generator], list[_Case]]:
    def cases(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
        count = len(DECODE_TOKENS)
        table = _pages(DECODE_TOKENS, rng)
        if sliding:
            table = _sliding(table, DECODE_TOKENS)
        arrays = {
            **table,
            "Q": _normal(rng, count, shape.heads, shape.head_dim),
            "pages": _normal(rng, table["pool"], 2, shape.kv_heads, PAGE, shape.head_dim),
            "k_rope_pos_offset": np.zeros(count),
            "q_rope_position": np.asarray(DECODE_TOKENS),
            "output": np.zeros((count, shape.heads, shape.head_dim)),
            "lse": np.zeros((count, shape.heads)),
        }
        return [_Case(arrays, {"B": count, "rotary_mode": mode}, ("output", "lse")) for mode in (0, 1)]

    return cases


def _queries(shape: Shape, kernel: Kernel) -> tuple[int, ...]:
    """Query tokens of three sequences that give some block a second tile: the kernel tells the rows of a tile."""
    sizes = {b.name: (b.storage.bytes or 0) // 4 for b in kernel.buffers}
    rows = sizes.get("m_smem", 32)
    group = max(shape.heads // shape.kv_heads, 1)
    tokens = -(-(BLOCKS + 1) * rows // group) + 1
    # The first sequence has a second tile of keys as well, where keys are the queries' own.
    return (max(tokens - tokens // 3, _tile_of_keys(shape, kernel) + 5), tokens // 3, 3)


def _past(shape: Shape, kernel: Kernel) -> tuple[int, ...]:
    """Past tokens of the sequences, of which the first has a second tile of keys, with a tail."""
    first, *others = KV_TOKENS
    return (max(first, _tile_of_keys(shape, kernel) + 5), *others)


def _tile_of_keys(shape: Shape, kernel: Kernel) -> int:
    sizes = {b.name: b.storage.bytes or 0 for b in kernel.buffers}
    rows = [sizes[name] // (shape.head_dim * bytes_of(shape.dtype)) for name in ("K_smem", "V_smem") if name in sizes]
    return max(rows, default=16)


def _prefill(sliding: bool = False, latent: bool = False) -> Callable[..., list[_Case]]:
    def cases(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
        # With latent attention all heads share one key.
        queries = _queries(Shape(shape.head_dim, shape.heads, 1 if latent else shape.kv_heads, shape.dtype), kernel)
        count, total = len(queries), sum(queries)
        past = _past(shape, kernel)
        table = _pages(past, rng)
        if sliding:
            table = _sliding(table, past)
        width = shape.head_dim + MLA_ROPE_DIM if latent else shape.head_dim
        pool = (table["pool"], PAGE, width) if latent else (table["pool"], 2, shape.kv_heads, PAGE, width)
        arrays = {
            **table,
            "q": _normal(rng, total, shape.heads, width),
            "q_indptr": _indptr(queries),
            "pages": _normal(rng, *pool),
            "k_rope_pos_offset": np.zeros(count),
            "q_rope_position": np.arange(total),
            "output": np.zeros((total, shape.heads, shape.head_dim)),
            "lse": np.zeros((total, shape.heads)),
        }
        return [
            _Case(arrays, {"batch_size": count, "causal": causal, "rotary_mode": causal}, ("output", "lse"))
            for causal in (0, 1)
        ]

    return cases


def _in_chunk(shape: Shape, kernel: Kernel, rng: np.random.Generator, tree: bool = False) -> Arrays:
    """Queries with keys of the same chunk; in a tree each token is both, elsewhere fewer keys are enough."""
    queries = _queries(shape, kernel)
    first = max(21, _tile_of_keys(shape, kernel) + 5)
    keys = queries if tree else (min(first, queries[0]), *(min(n, 21) for n in queries[1:]))
    total = sum(queries)
    return {
        "q": _normal(rng, total, shape.heads, shape.head_dim),
        "q_indptr": _indptr(queries),
        "k": _normal(rng, sum(keys), shape.kv_heads, shape.head_dim),
        "v": _normal(rng, sum(keys), shape.kv_heads, shape.head_dim),
        "kv_indptr": _indptr(keys),
        "k_rope_pos_offset": np.zeros(len(queries)),
        "q_rope_position": np.arange(total),
        "output": np.zeros((total, shape.heads, shape.head_dim)),
        "lse": np.zeros((total, shape.heads)),
    }


def _ragged(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
    arrays = _in_chunk(shape, kernel, rng)
    return [
        _Case(arrays, {"batch_size": 3, "causal": causal, "rotary_mode": 1 - causal}, ("output", "lse"))
        for causal in (0, 1)
    ]


def _order(lengths: tuple[int, ...]) -> np.ndarray:
    """A chain of tokens for each sequence, as the half-open interval of its descendants: (token, end)."""
    return np.concatenate([np.stack([np.arange(n), np.full(n, n)], axis=1) for n in lengths])


def _tree(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
    arrays = _in_chunk(shape, kernel, rng, tree=True)
    trees = tuple(np.diff(arrays["kv_indptr"]).tolist())
    arrays |= {"mask": _order(trees), "mn_indptr": _indptr(trees)}
    return [_Case(arrays, {"batch_size_plus_1": 4, "rotary_mode": mode}, ("output", "lse")) for mode in (0, 1)]


def _tree_paged(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
    (case, *_) = _prefill()(shape, kernel, rng)
    trees = tuple(np.diff(case.arrays["q_indptr"]).tolist())
    # The tree lies in the pages, behind the past.
    lengths = tuple(past + tree for past, tree in zip(_past(shape, kernel), trees, strict=True))
    table = _pages(lengths, rng)
    arrays = {
        **case.arrays,
        **table,
        "pages": _normal(rng, table["pool"], 2, shape.kv_heads, PAGE, shape.head_dim),
        "tree_order": _order(trees),
        "tree_order_indptr": _indptr(trees),
    }
    return [_Case(arrays, {"batch_size": 3, "rotary_mode": mode}, ("output", "lse")) for mode in (0, 1)]


def _append(latent: bool) -> Callable[..., list[_Case]]:
    def cases(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
        # Not a multiple of the block, and one token of padding, which has no position.
        tokens = 2 * max(1, 1024 // (shape.head_dim * shape.kv_heads)) + 1
        positions = rng.permutation(3 * PAGE * max(1, tokens // PAGE))[:tokens]
        positions[1] = -1
        pool = -(-(int(positions.max()) + 1) // PAGE)
        width = shape.head_dim + MLA_ROPE_DIM
        data = (tokens, shape.kv_heads, shape.head_dim)
        arrays = {
            "pages": _normal(rng, pool, *((PAGE, width) if latent else (2, shape.kv_heads, PAGE, shape.head_dim))),
            "k_data": _normal(rng, *data),
            "v_data": _normal(rng, *data),
            "kv_data": _normal(rng, tokens, width),
            "position_map": positions,
        }
        return [_Case(arrays, {"ntoken": tokens}, ())]

    return cases


def _copy(latent: bool) -> Callable[..., list[_Case]]:
    def cases(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
        page = (PAGE, shape.head_dim + MLA_ROPE_DIM) if latent else (2, shape.kv_heads, PAGE, shape.head_dim)
        arrays = {"pages": _normal(rng, 3, *page)}
        return [_Case(arrays, {"src_page_id": 2, "tgt_page_id": 1, "copy_length": length}, ()) for length in (11, PAGE)]

    return cases


def _compact(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
    # The first sequence closes a gap, token by token onto the one before; the last moves one token to another page.
    moves = np.asarray([(17, 16), (18, 17), (19, 18), (40, 5)]).T
    arrays = {
        "pages": _normal(rng, 3, 2, shape.kv_heads, PAGE, shape.head_dim),
        "copy_length_indptr": _indptr((3, 0, 1)),
        "copy_src_dst_pos": moves,
    }
    return [_Case(arrays, {"batch_size": 3, "total_copy_length": 4}, ())]


def _rotary(shape: Shape, kernel: Kernel, rng: np.random.Generator) -> list[_Case]:
    tokens = 5
    arrays = {
        "qkv": _normal(rng, tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim),
        "position_map": np.arange(tokens) + 7,
        "q": np.zeros((tokens, shape.heads, shape.head_dim)),
        "k": np.zeros((tokens, shape.kv_heads, shape.head_dim)),
        "v": np.zeros((tokens, shape.kv_heads, shape.head_dim)),
    }
    return [_Case(arrays, {"seq_len": tokens, "apply_rope": on}, ("q", "k", "v")) for on in (1, 0)]


_CASES: dict[str, Callable[[Shape, Kernel, np.random.Generator], list[_Case]]] = {
    "merge": _merge,
    "decode": _decode(sliding=False),
    "decode_sliding": _decode(sliding=True),
    "prefill_paged": _prefill(),
    "prefill_sliding": _prefill(sliding=True),
    "prefill_ragged": _ragged,
    "tree": _tree,
    "tree_paged": _tree_paged,
    "append": _append(latent=False),
    "copy_page": _copy(latent=False),
    "compact_copy": _compact,
    "rotary": _rotary,
    "prefill_mla": _prefill(latent=True),
    "append_mla": _append(latent=True),
    "copy_page_mla": _copy(latent=True),
}
