"""The matrix kernel for a single row: rows of the weight in the vector lanes, the weight read once, in place."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as T

from .operands import Operands, over_depth, when
from .tiles import CHUNK
from .vectors import gather, gather_columns, load, multiply_add, splat, store, zeros

COLUMNS = 16
"""Columns at a time: each is one long chain of additions, fewer would wait for each other; more are more streams of
memory than the prefetchers follow."""


def one_row(op: Operands) -> None:
    """Emit the kernel's body for `op.rows == 1`."""
    lanes = op.tile.lanes
    source = op.row(tirx.const(0, "int64"))
    vectors = COLUMNS // lanes if op.n % COLUMNS == 0 else 1
    width = vectors * lanes
    aligned = op.n % lanes == 0

    def part(first: Expr) -> None:
        # Past the last column the last one is computed again, so that every load stays inside the weight.
        columns = [first + c if aligned else T.bind(tirx.min(first + c, op.n - 1)) for c in range(width)]
        totals = [T.alloc_buffer((lanes,), "float32") for _ in range(vectors)]
        for total in totals:
            store(total, [], 0, zeros(lanes), lanes)

        def step(at: Expr, steps: int) -> None:
            weights = [_weights(op, columns[v * lanes : (v + 1) * lanes], at, steps, aligned) for v in range(vectors)]
            for j in range(steps):
                value = T.bind(splat(load(op.x, source, at + j, 1), lanes))
                for total, weight in zip(totals, weights, strict=True):
                    store(total, [], 0, multiply_add(value, weight[j], load(total, [], 0, lanes), lanes), lanes)

        over_depth(op.k, step)
        for v, total in enumerate(totals):
            if aligned:
                store(op.y, source, first + v * lanes, load(total, [], 0, lanes), lanes)
            else:
                for lane, column in enumerate(columns):
                    store(op.y, source, column, load(total, [], lane, 1), 1)

    def task(number: Expr) -> None:
        with T.serial(0, -(-min(CHUNK, op.n) // width)) as at:
            first = T.bind(number * CHUNK + at * width)
            when(first < op.n if op.n % CHUNK else True, lambda: part(first))

    op.spread(op.chunks, op.n * op.k, task)


def _weights(op: Operands, columns: list[Expr], at: Expr, steps: int, aligned: bool) -> list[Expr]:
    """For `steps` steps from `at`: the weights of these columns as one vector a step."""
    if op.layer.by_row:
        return gather_columns(op.w, [[column] for column in columns], at, steps)
    if aligned:
        return [load(op.w, [at + j], columns[0], len(columns)) for j in range(steps)]
    return [gather([op.weight(column, at + j) for column in columns]) for j in range(steps)]
