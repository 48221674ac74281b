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
    """Emit the kernel's body for any other number of rows."""
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
    rows = [_row(op, block, vector, lane) for lane in range(lanes)]

    def step(at: Expr, width: int) -> None:
        for j, column in enumerate(gather_columns(op.x, rows, at, width)):
            store(packed, [block, at + j], vector * lanes, column, lanes)

    over_depth(op.k, step)


def _row(op: Operands, block: Expr, vector: int, lane: Expr | int) -> list[Expr]:
    """The indices of the row in this lane; the last row also stands in for those past the end."""
    return op.row(T.bind(tirx.min(block * op.tile.rows + (vector * op.tile.lanes + lane), op.rows - 1)))


def _columns(op: Operands, packed: Buffer, block: Expr, first: Expr, vectors: int) -> None:
    with T.serial(0, -(-min(CHUNK, op.n) // COLUMNS)) as part:
        column = T.bind(first + part * COLUMNS)
        when(column < op.n if op.n % CHUNK else True, partial(_tile, op, packed, block, column, vectors))


def _tile(op: Operands, packed: Buffer, block: Expr, first: Expr, vectors: int) -> None:
    lanes = op.tile.lanes
    weights = [first + c for c in range(COLUMNS)]
    if op.n % COLUMNS:
        weights = [T.bind(tirx.min(weight, op.n - 1)) for weight in weights]
    # One small allocation per column, and of the default scope: only such, and only below 1 KiB, does TVM put on the
    # stack, from where LLVM takes them into registers. Any other is a call of the workspace allocator for every tile.
    totals = [T.alloc_buffer((vectors * lanes,), "float32") for _ in weights]
    for total in totals:
        for v in range(vectors):
            store(total, [], v * lanes, zeros(lanes), lanes)
    with T.serial(0, op.k) as at:
        xs = [T.bind(load(packed, [block, at], v * lanes, lanes)) for v in range(vectors)]
        for total, weight in zip(totals, weights, strict=True):
            factor = T.bind(splat(op.weight(weight, at), lanes))
            for v, x in enumerate(xs):
                store(total, [], v * lanes, multiply_add(x, factor, load(total, [], v * lanes, lanes), lanes), lanes)
    for v in range(vectors):
        lines = [T.bind(load(total, [], v * lanes, lanes)) for total in totals]
        if op.n % COLUMNS:
            _write_ragged(op, block, v, first, lines)
        else:
            for lane, values in enumerate(transpose(lines, lanes)):
                row = _row(op, block, v, lane)
                for at, value, width in values:
                    store(op.y, row, first + at, value, width)


def _write_ragged(op: Operands, block: Expr, vector: int, first: Expr, lines: list[Expr]) -> None:
    """The same, element by element, for widths that are no multiple of the tile's."""
    lanes = op.tile.lanes
    tile = T.alloc_buffer((COLUMNS, lanes), "float32")
    for c, line in enumerate(lines):
        store(tile, [tirx.const(c, "int64")], 0, line, lanes)
    with T.serial(0, lanes) as lane:
        row = _row(op, block, vector, lane)
        with T.serial(0, tirx.min(op.n - first, COLUMNS)) as c:
            store(op.y, row, first + c, load(tile, [c], lane, 1), 1)
