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
from .vectors import gather_columns, load, multiply_add, splat, store, transpose, transpose_quads, zeros

COPY_WORK = 16
"""How many multiply-adds take as long as repacking one element of x."""


def many_rows(op: Operands) -> None:
    tile = op.tile
    blocks = (op.rows + tile.rows - 1) // tile.rows
    depth = piece_of(op.k)
    pieces = -(-op.k // depth)
    packed = T.alloc_buffer((blocks, op.k, tile.rows), "float32")

    def pack(task: Expr) -> None:
        block, piece = T.bind(task // pieces), T.bind(task % pieces)
        for vector in range(tile.vectors):
            used = op.rows > block * tile.rows + vector * tile.lanes
            when(used if vector else True, partial(_pack, op, packed, block, piece * depth, depth, vector))

    def compute(task: Expr) -> None:
        block, first = T.bind(task % blocks), T.bind(task // blocks * tile.chunk)
        wide = partial(_compute, op, packed, block, first, tile.vectors, tile.columns)
        narrow = partial(_compute, op, packed, block, first, 1, tile.narrow_columns)
        when(op.rows > block * tile.rows + tile.lanes if tile.vectors > 1 else False, wide, narrow)

    op.spread(blocks * pieces, op.k * COPY_WORK, pack)
    op.spread(blocks * op.chunks, op.n * op.k, compute)


def piece_of(k: int) -> int:
    """How much of K to work on at a time, a multiple of 4: packed x, weight and sums should fit 48 KiB of cache."""
    whole = [depth for depth in range(96, 212, 4) if k % depth == 0]
    return max(whole) if whole else min(160, -(-k // 4) * 4)


def _pack(op: Operands, packed: Buffer, block: Expr, first: Expr, depth: int, vector: int) -> None:
    """Turn rows of x into lanes: `packed[block, k, lane] = x[row, k]`."""
    lanes = op.tile.lanes
    rows = _rows(op, block, vector)

    def step(at: Expr, width: int) -> None:
        for j, column in enumerate(gather_columns(op.x, rows, at, width)):
            store(packed, [block, at + j], vector * lanes, column, lanes)

    over_depth(first, depth, op.k, step)


def _rows(op: Operands, block: Expr, vector: int) -> list[list[Expr]]:
    first = block * op.tile.rows + vector * op.tile.lanes
    return [op.row(T.bind(tirx.min(first + lane, op.rows - 1))) for lane in range(op.tile.lanes)]


def _compute(
    op: Operands, packed: Buffer, block: Expr, first: Expr, vectors: int, columns: int
) -> None:
    """One chunk of columns for one block of rows.

    Between the pieces of K the sums rest in `sums`, a column a line. Only when all are complete are they turned and
    written, so that y is filled by whole cache lines.
    """
    sums = T.alloc_buffer((op.tile.chunk, vectors * op.tile.lanes), "float32")
    parts = -(-min(op.tile.chunk, op.n) // columns)
    depth = piece_of(op.k)
    with T.serial(0, -(-op.k // depth)) as piece:
        with T.serial(0, parts) as part:
            column = T.bind(part * columns)
            body = partial(_tile, op, packed, block, first, column, piece, depth, sums, vectors, columns)
            when(first + column < op.n if op.n % op.tile.chunk else True, body)
    for vector in range(vectors):
        _write(op, block, first, sums, vector)


def _tile(
    op: Operands,
    packed: Buffer,
    block: Expr,
    first: Expr,
    column: Expr,
    piece: Expr,
    depth: int,
    sums: Buffer,
    vectors: int,
    columns: int,
) -> None:
    lanes = op.tile.lanes
    ragged = op.n % columns != 0
    weights = [first + column + c for c in range(columns)]
    if ragged:
        weights = [T.bind(tirx.min(weight, op.n - 1)) for weight in weights]
    # One small allocation per column: the whole tile would exceed what TVM is willing to put on the stack,
    # and what is not on the stack does not end up in registers.
    totals = [T.alloc_buffer((vectors * lanes,), "float32", scope="local") for _ in weights]
    places = [(total, v * lanes) for total in totals for v in range(vectors)]

    def begin() -> None:
        for total, at in places:
            store(total, [], at, zeros(lanes), lanes)

    def resume() -> None:
        for c, total in enumerate(totals):
            for v in range(vectors):
                store(total, [], v * lanes, load(sums, [column + c], v * lanes, lanes), lanes)

    when(piece == 0 if depth < op.k else True, begin, resume)
    left = op.k - piece * depth
    with T.serial(0, depth if op.k % depth == 0 else tirx.min(left, depth)) as step:
        at = T.bind(piece * depth + step)
        xs = [T.bind(load(packed, [block, at], v * lanes, lanes)) for v in range(vectors)]
        for total, weight in zip(totals, weights):
            factor = T.bind(splat(op.weight(weight, at), lanes))
            for v, x in enumerate(xs):
                store(total, [], v * lanes, multiply_add(x, factor, load(total, [], v * lanes, lanes), lanes), lanes)
    for c, total in enumerate(totals):
        for v in range(vectors):
            store(sums, [column + c], v * lanes, load(total, [], v * lanes, lanes), lanes)


def _write(op: Operands, block: Expr, first: Expr, sums: Buffer, vector: int) -> None:
    """Turn the sums of one vector of rows and put them where they belong."""
    lanes = op.tile.lanes
    rows = _rows(op, block, vector)
    width = lanes if op.n % lanes == 0 else 4 if op.n % 4 == 0 else 1
    with T.serial(0, -(-min(op.tile.chunk, op.n) // width)) as group:
        column = T.bind(group * width)

        def put() -> None:
            lines = [T.bind(load(sums, [column + c], vector * lanes, lanes)) for c in range(width)]
            if width == lanes:
                for row, value in zip(rows, transpose(lines)):
                    store(op.y, row, first + column, value, lanes)
            elif width == 4:
                turned = transpose_quads(lines, lanes)
                for lane, row in enumerate(rows):
                    quad = tirx.Shuffle([turned[lane % 4]], [lane - lane % 4 + i for i in range(4)])
                    store(op.y, row, first + column, quad, 4)
            else:
                for lane, row in enumerate(rows):
                    store(op.y, row, first + column, load(sums, [column], vector * lanes + lane, 1), 1)

        when(first + column < op.n if op.n % op.tile.chunk else True, put)
