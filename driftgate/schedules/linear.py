"""Find the linear layers of a Relax module and hand them to our kernel."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir import Call, Expr, IRModule
from tvm.ir.transform import PassContext
from tvm.relax.dpl import is_op, rewrite_call, wildcard
from tvm.target import Target

from .matmul import fast_matmul, linear_kernel
from .operands import Layer, Operands
from .tiles import Tile, tile_for

_DTYPES = ("float32", "float16")


@tvm.transform.module_pass(opt_level=0, name="RewriteLinear")
class RewriteLinear:
    """Replace `matmul(x, permute_dims(w))`, and `matmul(x, w)` with a two-dimensional w, by `call_tir` of our kernel.

    x has two or more dimensions, w exactly two. What does not fit (batched matrices, other types, unknown shapes) is
    left for TVM's own legalization. It has to run before LegalizeOps: afterwards there is no matmul left to find.
    """

    def __init__(self, target: Target, body: Callable[[Operands], None] = fast_matmul) -> None:
        """Choose the register tile for this target, and the body of the kernels."""
        self.tile = tile_for(target)
        self.body = body

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass itself."""
        builder = relax.BlockBuilder(mod)
        rewriter = _Rewriter(builder, self.tile, self.body)
        for name, func in mod.functions.items():
            if isinstance(func, relax.Function):
                builder.update_func(name, rewriter.rewrite(func))
        return builder.finalize()


class _Rewriter:
    def __init__(self, builder: relax.BlockBuilder, tile: Tile, body: Callable[[Operands], None]) -> None:
        self.builder = builder
        self.tile = tile
        self.body = body
        self.kernels: dict[Layer, tvm.ir.GlobalVar] = {}

    def rewrite(self, func: relax.Function) -> relax.Function:
        x, w = wildcard(), wildcard()
        transposed = is_op("relax.permute_dims")(w)
        func = rewrite_call(
            is_op("relax.matmul")(x, transposed),
            lambda call, found: self._call(call, found[x], found[w], found[transposed]),
            func,
        )
        return rewrite_call(
            is_op("relax.matmul")(x, w), lambda call, found: self._call(call, found[x], found[w], None), func
        )

    def _call(self, call: Call, x: Expr, w: Expr, transposed: Call | None) -> Expr:
        types = [x.ty, w.ty, call.ty]
        if not all(isinstance(t, relax.TensorType) and t.shape is not None for t in types):
            return call
        *leading, _ = [_static(extent) for extent in x.ty.shape.values]
        extents = [_static(extent) for extent in w.ty.shape.values]
        dtypes = tuple(str(t.dtype) for t in types)
        if not leading or any(dtype not in _DTYPES for dtype in dtypes):
            return call
        if transposed is not None and not _swaps(transposed):
            return call
        match extents:
            case [int(first), int(second)] if first and second:
                n, k = (first, second) if transposed is not None else (second, first)
            case _:
                return call
        layer = Layer(tuple(leading), n, k, transposed is not None, dtypes)
        if layer not in self.kernels:
            self.kernels[layer] = self.builder.add_func(linear_kernel(layer, self.tile, self.body), "linear")
        return relax.call_tir(self.kernels[layer], [x, w], relax.TensorType(call.ty.shape, dtypes[2]))


def _swaps(call: Call) -> bool:
    axes = call.attrs.axes
    return axes is None or [int(axis) % 2 for axis in axes] == [1, 0]


def _static(extent: object) -> int | None:
    return int(extent) if isinstance(extent, (int, tvm.tirx.IntImm)) else None
