"""tanh and tanh-GELU that vectorise, and are right to the last bit or two.

TVM lowers tanh to calls of the C library's `expf`, one element at a time. Worse, the textbook formula
`0.5 x (1 + tanh u)` cancels for negative x: at -4 only half of the digits are left. Both are avoided by
`gelu(x) = x / (1 + exp(-2u))` with the exponential as a polynomial in float64, which costs little and leaves
nothing to worry about: the one rounding to float32 at the end is the only error that can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import relax, te, tirx
from tvm.ir import Call, Expr, IRModule
from tvm.ir.transform import PassContext
from tvm.relax.dpl import is_op, rewrite_call, wildcard

Activation = Callable[[te.Tensor], te.Tensor]

_DTYPES = ("float32", "float16")
_LIMIT = 200.0
"""Beyond this exp(-t) is 0 or swamps everything for a float32, and exp(t) is still far from infinity."""


@tvm.ir.transform.module_pass(opt_level=0, name="driftgate.RewriteActivations")
class RewriteActivations:
    """Replace `nn.gelu_tanh` and `tanh` of float32 and float16 tensors by our own. To be run before LegalizeOps."""

    def __init__(self, gelu: Activation | None = None, tangent: Activation | None = None) -> None:
        """The two computations; ours by default."""
        self.gelu = gelu or gelu_tanh
        self.tangent = tangent or tanh

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass itself."""
        builder = relax.BlockBuilder(mod)
        for name, func in mod.functions.items():
            if isinstance(func, relax.Function):
                with_gelu = _replace(builder, func, "relax.nn.gelu_tanh", self.gelu)
                builder.update_func(name, _replace(builder, with_gelu, "relax.tanh", self.tangent))
        return builder.finalize()


def _replace(builder: relax.BlockBuilder, func: relax.Function, operator: str, compute: Activation) -> relax.Function:
    x = wildcard()

    def replace(call: Call, found: dict[object, Expr]) -> Expr:
        return builder.call_te(compute, found[x]) if str(call.ty.dtype) in _DTYPES else call

    return rewrite_call(is_op(operator)(x), replace, func)


def gelu_tanh(x: te.Tensor) -> te.Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), element by element; NaN where x is NaN, -0 far below 0."""

    def element(*index: tirx.Var) -> Expr:
        value = x(*index).astype("float64")
        inner = value * (_f64(1.0) + _f64(0.044715) * value * value) * _f64(math.sqrt(2 / math.pi))
        return (value / (_f64(1.0) + _exp(_f64(-2.0) * inner))).astype(x.dtype)

    return te.compute(x.shape, element, name="gelu_tanh")


def tanh(x: te.Tensor) -> te.Tensor:
    """tanh x, element by element; NaN where x is NaN."""

    def element(*index: tirx.Var) -> Expr:
        value = x(*index).astype("float64")
        large = _f64(1.0) - _f64(2.0) / (_f64(1.0) + _exp(value + value))
        # Near 0 the subtraction would cancel, and the next term of the series is already below a float32's last bit.
        small = value - value * value * value * _f64(1 / 3)
        result = tirx.Select(tirx.abs(value) < _f64(1e-4), small, large)
        return tirx.Select(tirx.isnan(value), value, result).astype(x.dtype)

    return te.compute(x.shape, element, name="tanh")


def _f64(value: float) -> Expr:
    return tirx.const(value, "float64")


def _exp(t: Expr) -> Expr:
    """exp t to about 13 digits: 2^n exp(r), where n is added to the exponent bits of a polynomial in r."""
    t = tirx.max(tirx.min(t, _f64(_LIMIT)), _f64(-_LIMIT))
    whole = tirx.floor(t * _f64(1 / math.log(2)) + _f64(0.5))
    r = t - whole * _f64(math.log(2))
    power = _f64(1 / math.factorial(10))
    for i in range(9, -1, -1):
        power = power * r + _f64(1 / math.factorial(i))
    # By way of int32, since AVX2 has no direct conversion from float64 to int64.
    exponent = whole.astype("int32").astype("int64") << tirx.const(52, "int64")
    return tirx.reinterpret("float64", tirx.reinterpret("int64", power) + exponent)
