"""The matrix kernel for a single row: rows of the weight in the vector lanes, the weight read once, in place."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as T

from .operands import Operands, over_depth, when
from .tiles import CHUNK
from .vectors import gather, gather_columns, load, multiply_add, splat, store, zeros


def one_row(op: Operands) -> None:
    lanes = op.tile.lanes
    source = op.row(tirx.const(0, "int64"))
    aligned = op.n % lanes == 0

    def vector(first: Expr) -> None:
        # Past the last column the last one is computed again, so that every load stays inside the weight.
        columns = [first + lane if aligned else T.bind(tirx.min(first + lane, op.n - 1)) for lane in range(lanes)]
        total = T.alloc_buffer((lanes,), "float32", scope="local")
        store(total, [], 0, zeros(lanes), lanes)

        def step(at: Expr, width: int) -> None:
            for j, weights in enumerate(_weights(op, columns, at, width, aligned)):
                value = splat(load(op.x, source, at + j, 1), lanes)
                store(total, [], 0, multiply_add(value, weights, load(total, [], 0, lanes), lanes), lanes)

        over_depth(op.k, step)
        if aligned:
            store(op.y, source, first, load(total, [], 0, lanes), lanes)
        else:
            for lane, column in enumerate(columns):
                store(op.y, source, column, load(total, [], lane, 1), 1)

    def task(number: Expr) -> None:
        with T.serial(0, -(-min(CHUNK, op.n) // lanes)) as part:
            first = T.bind(number * CHUNK + part * lanes)
            when(first < op.n if op.n % CHUNK else True, lambda: vector(first))

    op.spread(op.chunks, op.n * op.k, task)


def _weights(op: Operands, columns: list[Expr], at: Expr, width: int, aligned: bool) -> list[Expr]:
    """For `width` steps from `at`: the weights of these columns as one vector a step."""
    if op.by_row:
        return gather_columns(op.w, [[column] for column in columns], at, width)
    if aligned:
        return [load(op.w, [at + j], columns[0], len(columns)) for j in range(width)]
    return [gather([op.weight(column, at + j) for column in columns]) for j in range(width)]
