"""The same functions without our schedules: matrices as plain sums in float64, activations by the C library.

A library built this way has functions of the same names and signatures, and shares none of our kernels: it is the
reference that VM calls are compared with (`driftgate.kernels.vm_calls`).
"""

from __future__ import annotations

import math

from tvm import te, tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as T

from .operands import Operands, when

SIDE_BY_SIDE = 8
"""Sums that grow at the same time: one alone would wait for itself at every step."""


def plain_matmul(op: Operands) -> None:
    """Emit the body of the matrix kernel: every element the sum of its products in float64, rounded once."""

    def column_block(block: Expr) -> None:
        with T.serial(0, op.rows) as number:
            row = op.row(number)
            sums = T.alloc_buffer((SIDE_BY_SIDE,), "float64")
            with T.serial(0, SIDE_BY_SIDE) as j:
                T.buffer_store(sums, tirx.const(0.0, "float64"), [j])
            with T.serial(0, op.k) as at, T.serial(0, SIDE_BY_SIDE) as j:
                column = tirx.min(block * SIDE_BY_SIDE + j, op.n - 1)
                product = tirx.BufferLoad(op.x, [*row, at]).astype("float64") * op.weight(column, at).astype("float64")
                T.buffer_store(sums, sums[j] + product, [j])
            with T.serial(0, SIDE_BY_SIDE) as j:
                column = block * SIDE_BY_SIDE + j
                when(
                    column < op.n,
                    lambda: T.buffer_store(op.y, sums[j].astype(op.y.dtype), [*row, column]),
                )

    with T.parallel(0, -(-op.n // SIDE_BY_SIDE)) as block:
        column_block(block)


def gelu_tanh(x: te.Tensor) -> te.Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as x / (1 + exp(-2u)), which does not cancel; in float64."""

    def element(*index: tirx.Var) -> Expr:
        value = x(*index).astype("float64")
        u = math.sqrt(2 / math.pi) * (value + 0.044715 * value * value * value)
        return (value / (1.0 + tirx.exp(-2.0 * u))).astype(x.dtype)

    return te.compute(x.shape, element, name="gelu_tanh")


def tanh(x: te.Tensor) -> te.Tensor:
    """tanh x = 1 - 2 / (1 + exp 2x), in float64."""

    def element(*index: tirx.Var) -> Expr:
        value = x(*index).astype("float64")
        return (1.0 - 2.0 / (1.0 + tirx.exp(2.0 * value))).astype(x.dtype)

    return te.compute(x.shape, element, name="tanh")
