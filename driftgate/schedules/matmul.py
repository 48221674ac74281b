"""y = x wT for row-major x [.., K] and w [N, K], the way `nn.Linear` stores its weight, or w [K, N].

Every element of y is one chain, `y = fma(x[m, k], w[n, k], y)` for k = 0, 1, .. K - 1, whatever path computes it.
So a row of the result has the same bits for any number of rows around it and any number of threads, and a prefill
can be cut into chunks without the matrices moving a bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm.script.ir_builder import IRBuilder
from tvm.tirx import PrimFunc
from tvm.tirx.script.builder import ir as T

from .many_rows import many_rows
from .one_row import one_row
from .operands import Operands, when
from .tiles import Tile

_OPAQUE = 8
"""The operator pattern that keeps FuseOps from merging the kernel with its neighbours."""


def linear_kernel(
    leading: Sequence[int | None], n: int, k: int, by_row: bool, dtypes: Sequence[str], tile: Tile
) -> PrimFunc:
    """The kernel `(x [*leading, k], w [n, k], y [*leading, n])`; w is [k, n] unless `by_row`.

    `leading` has an integer for each static dimension and None for each symbolic one. `dtypes` are those of x, w and
    y, float32 or float16 each; the sum is always kept in float32.
    """
    with IRBuilder() as builder:
        with T.prim_func(private=True, s_tir=True):
            T.func_attr({"op_pattern": _OPAQUE, "tirx.is_scheduled": True, "tirx.noalias": True})
            handles = [T.arg(name, T.handle()) for name in ("x", "w", "y")]
            shape = [T.int64() if extent is None else extent for extent in leading]
            x = T.match_buffer(handles[0], [*shape, k], dtypes[0])
            w = T.match_buffer(handles[1], (n, k) if by_row else (k, n), dtypes[1])
            y = T.match_buffer(handles[2], [*shape, n], dtypes[2])
            operands = Operands(x, w, y, tuple(shape), n, k, by_row, tile)
            when(operands.rows == 1, lambda: one_row(operands), lambda: many_rows(operands))
    return builder.get()
