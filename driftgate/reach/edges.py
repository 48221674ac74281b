"""The lengths at which kernels change what they do: of a page, of tiles, of the plan's chunk, of the window."""

from __future__ import annotations

from driftgate.model import Shape
from driftgate.plan import PAGE
from driftgate.target import TargetSpec, to_tvm


def edges(shape: Shape, spec: TargetSpec, dtype: str, chunk: int) -> dict[str, int]:
    """Name to length in tokens; edges that fall together have one name of all."""
    found = {"page": PAGE, **_tiles(shape, spec, dtype), "chunk": chunk}
    if shape.window is not None:
        found["window"] = shape.window
    named: dict[int, list[str]] = {}
    for name, length in found.items():
        # A tile of one token has no inside.
        if length > 1:
            named.setdefault(length, []).append(name)
    return {" and ".join(names): length for length, names in named.items()}


def _tiles(shape: Shape, spec: TargetSpec, dtype: str) -> dict[str, int]:
    """Of the attention kernels on a GPU, TVM's own arithmetic; on a CPU those are loops, and matrices have the tile."""
    if not spec.is_gpu:
        from driftgate.schedules.tiles import tile_for

        return {"matrix tile": tile_for(to_tvm(spec)).rows}
    try:
        from tvm.relax.frontend.nn.llm._kernel_common import _get_prefill_kernel_config
    except ImportError:
        return {}  # private to TVM, and moved
    *_, rows, _, keys = _get_prefill_kernel_config(shape.kv_heads, shape.heads, shape.head_dim, dtype, to_tvm(spec))
    # A row of the tile is one query head of one token; a group shares a KV head.
    return {"query tile": max(rows // (shape.heads // shape.kv_heads), 1), "key tile": keys}
