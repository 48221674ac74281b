"""The matrix kernel for several rows: rows of x in the vector lanes.

That way only x is repacked (small, once per call) while the weight, which is large and would have to be repacked on
every call, is read in place, one broadcast value at a time. Rows past the end are copies of the last one, and so need
no code of their own: they are computed, and written, alike.
"""

from __future__ import annotations

from functools import partial

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer
from tvm.tirx.script.builder import ir as T

from .operands import Operands, over_depth, when
from .tiles import CHUNK, COLUMNS
from .vectors import gather_columns, load, multiply_add, splat, store, transpose, zeros

COPY_WORK = 16
"""How many multiply-adds take as long as repacking one element of x."""


def many_rows(op: Operands) -> None:
    tile = op.tile
    blocks = (op.rows + tile.rows - 1) // tile.rows
    packed = T.alloc_buffer((blocks, op.k, tile.rows), "float32")

    def needs(block: Expr, vector: int) -> Expr | bool:
        """Whether this block of rows reaches into its vector of this number."""
        return op.rows > block * tile.rows + vector * tile.lanes if vector else True

    def pack(block: Expr) -> None:
        for vector in range(tile.vectors):
            when(needs(block, vector), partial(_pack, op, packed, block, vector))

    def compute(task: Expr) -> None:
        block, first = T.bind(task % blocks), T.bind(task // blocks * CHUNK)

        def at_most(vectors: int) -> None:
            when(
                needs(block, vectors - 1),
                partial(_columns, op, packed, block, first, vectors),
                partial(at_most, vectors - 1),
            )

        at_most(tile.vectors)

    op.spread(blocks, op.k * COPY_WORK, pack)
    op.spread(blocks * op.chunks, op.n * op.k, compute)


def _pack(op: Operands, packed: Buffer, block: Expr, vector: int) -> None:
    """Turn rows of x into lanes: `packed[block, k, lane] = x[row, k]`."""
    lanes = op.tile.lanes
    rows = _rows(op, block, vector)

    def step(at: Expr, width: int) -> None:
        for j, column in enumerate(gather_columns(op.x, rows, at, width)):
            store(packed, [block, at + j], vector * lanes, column, lanes)

    over_depth(op.k, step)


def _rows(op: Operands, block: Expr, vector: int) -> list[list[Expr]]:
    first = block * op.tile.rows + vector * op.tile.lanes
    return [op.row(T.bind(tirx.min(first + lane, op.rows - 1))) for lane in range(op.tile.lanes)]


def _columns(op: Operands, packed: Buffer, block: Expr, first: Expr, vectors: int) -> None:
    with T.serial(0, -(-min(CHUNK, op.n) // COLUMNS)) as part:
        column = T.bind(first + part * COLUMNS)
        when(column < op.n if op.n % CHUNK else True, partial(_tile, op, packed, block, column, vectors))


def _tile(op: Operands, packed: Buffer, block: Expr, first: Expr, vectors: int) -> None:
    lanes = op.tile.lanes
    weights = [first + c for c in range(COLUMNS)]
    if op.n % COLUMNS:
        weights = [T.bind(tirx.min(weight, op.n - 1)) for weight in weights]
    # One small allocation per column: the whole tile would exceed what TVM is willing to put on the stack,
    # and what is not on the stack does not end up in registers.
    totals = [T.alloc_buffer((vectors * lanes,), "float32", scope="local") for _ in weights]
    for total in totals:
        for v in range(vectors):
            store(total, [], v * lanes, zeros(lanes), lanes)
    with T.serial(0, op.k) as at:
        xs = [T.bind(load(packed, [block, at], v * lanes, lanes)) for v in range(vectors)]
        for total, weight in zip(totals, weights):
            factor = T.bind(splat(op.weight(weight, at), lanes))
            for v, x in enumerate(xs):
                store(total, [], v * lanes, multiply_add(x, factor, load(total, [], v * lanes, lanes), lanes), lanes)
    for v in range(vectors):
        lines = [T.bind(load(total, [], v * lanes, lanes)) for total in totals]
        if op.n % COLUMNS:
            _write_ragged(op, _rows(op, block, v), first, lines)
        else:
            for row, values in zip(_rows(op, block, v), transpose(lines, lanes)):
                for at, value, width in values:
                    store(op.y, row, first + at, value, width)


def _write_ragged(op: Operands, rows: list[list[Expr]], first: Expr, lines: list[Expr]) -> None:
    """The same, element by element, for widths that are no multiple of the tile's."""
    lanes = op.tile.lanes
    for c, line in enumerate(lines):
        def put(c: int = c, line: Expr = line) -> None:
            for lane, row in enumerate(rows):
                store(op.y, row, first + c, tirx.Shuffle([line], [lane]), 1)

        when(first + c < op.n, put)
