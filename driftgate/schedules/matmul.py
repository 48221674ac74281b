"""y = x wT for row-major x [.., K] and w [N, K], the way `nn.Linear` stores its weight, or w [K, N].

Every element of y is one chain, `y = fma(x[m, k], w[n, k], y)` for k = 0, 1, .. K - 1, whatever path computes it.
So a row of the result has the same bits for any number of rows around it and any number of threads, and a prefill
can be cut into chunks without the matrices moving a bit.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import IRBuilder
from tvm.tirx import PrimFunc
from tvm.tirx.script.builder import ir as T

from .many_rows import many_rows
from .one_row import one_row
from .operands import Layer, Operands, when
from .tiles import Tile

OPAQUE = 8
"""The operator pattern that keeps FuseOps from merging a function with its neighbours."""


def fast_matmul(op: Operands) -> None:
    """Emit the body of the kernel. The sum is always kept in float32."""
    when(op.rows == 1, lambda: one_row(op), lambda: many_rows(op))


def linear_kernel(layer: Layer, tile: Tile, body: Callable[[Operands], None] = fast_matmul) -> PrimFunc:
    """The kernel `(x [*leading, k], w [n, k] or [k, n], y [*leading, n])`."""
    shapes = ((layer.k,), (layer.n, layer.k) if layer.by_row else (layer.k, layer.n), (layer.n,))
    with IRBuilder() as builder, T.prim_func(private=True, s_tir=True):
        T.func_attr({"op_pattern": OPAQUE, "tirx.is_scheduled": True, "tirx.noalias": True})
        handles = [T.arg(name, T.handle()) for name in ("x", "w", "y")]
        leading = tuple(T.int64() if extent is None else extent for extent in layer.leading)
        x, w, y = (
            T.match_buffer(handle, shape if handle is handles[1] else (*leading, *shape), dtype)
            for handle, shape, dtype in zip(handles, shapes, layer.dtypes, strict=True)
        )
        body(Operands(x, w, y, leading, layer, tile))
    return builder.get()
