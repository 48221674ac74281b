"""Small vector idioms written as TIR expressions.

The matrix kernels keep rows of x in vector lanes, but both x and the result are stored the other way round.
Element by element that change of layout would cost as much as the arithmetic of a narrow layer, so it is done
four by four in registers, as any hand-written BLAS does.
"""

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer
from tvm.tirx.script.builder import ir as T

QUAD = 4
"""Side of the blocks that are turned, and lanes of the narrowest vectors."""


def load(buffer: Buffer, row: Sequence[Expr], start: Expr | int, lanes: int) -> Expr:
    """`buffer[*row, start : start + lanes]` as a float32 vector."""
    index = start if lanes == 1 else tirx.Ramp(start, 1, lanes)
    value = tirx.BufferLoad(buffer, [*row, index])
    if buffer.dtype == "float32":
        return value
    return value.astype("float32" if lanes == 1 else f"float32x{lanes}")


def store(buffer: Buffer, row: Sequence[Expr], start: Expr | int, value: Expr, lanes: int) -> None:
    """`buffer[*row, start : start + lanes] = value`, rounded to the buffer's type."""
    if buffer.dtype != "float32":
        value = value.astype(buffer.dtype if lanes == 1 else f"{buffer.dtype}x{lanes}")
    T.buffer_store(buffer, value, [*row, start if lanes == 1 else tirx.Ramp(start, 1, lanes)])


def splat(value: Expr, lanes: int) -> Expr:
    """A vector of one value."""
    return tirx.Broadcast(value, lanes)


def zeros(lanes: int) -> Expr:
    """A vector of float32 zeros."""
    return splat(tirx.const(0.0, "float32"), lanes)


def gather(values: Sequence[Expr]) -> Expr:
    """A vector of these scalars."""
    return _shuffle(values, range(len(values)))


def multiply_add(a: Expr, b: Expr, c: Expr, lanes: int) -> Expr:
    """a * b + c: one instruction, rounded once, where the CPU has it; two where it has not.

    The intrinsic is spelled out because every path of a kernel must round alike: the optimiser may fuse a plain
    `a * b + c` in one loop and not in another, and then a row's bits would depend on its neighbours.
    """
    dtype = "float32" if lanes == 1 else f"float32x{lanes}"
    return T.call_llvm_pure_intrin(dtype, "llvm.fmuladd", a, b, c)


def _shuffle(parts: Sequence[Expr], order: Sequence[int]) -> Expr:
    return T.bind(tirx.Shuffle(list(parts), list(order)))


def transpose_quads(r: Sequence[Expr], lanes: int) -> list[Expr]:
    """Transpose each 4 x 4 block of four vectors: `out[j][4g + q] = r[q][4g + j]`. Its own inverse."""

    def interleave(a: Expr, b: Expr, picks: Sequence[int], from_b: Sequence[int]) -> Expr:
        order = [
            4 * g + p + (lanes if side else 0) for g in range(lanes // 4) for p, side in zip(picks, from_b, strict=True)
        ]
        return _shuffle([a, b], order)

    low01 = interleave(r[0], r[1], (0, 0, 1, 1), (0, 1, 0, 1))
    high01 = interleave(r[0], r[1], (2, 2, 3, 3), (0, 1, 0, 1))
    low23 = interleave(r[2], r[3], (0, 0, 1, 1), (0, 1, 0, 1))
    high23 = interleave(r[2], r[3], (2, 2, 3, 3), (0, 1, 0, 1))
    return [
        interleave(low01, low23, (0, 1, 0, 1), (0, 0, 1, 1)),
        interleave(low01, low23, (2, 3, 2, 3), (0, 0, 1, 1)),
        interleave(high01, high23, (0, 1, 0, 1), (0, 0, 1, 1)),
        interleave(high01, high23, (2, 3, 2, 3), (0, 0, 1, 1)),
    ]


def gather_columns(buffer: Buffer, rows: Sequence[Sequence[Expr]], start: Expr | int, width: int) -> list[Expr]:
    """Columns `start .. start + width` of `len(rows)` rows, each column one vector with a row in every lane.

    `width` is 4 (in registers) or 1 (element by element, for what is left of a row).
    """
    lanes = len(rows)
    if width == 1:
        return [gather([load(buffer, row, start, 1) for row in rows])]
    quads = []
    for q in range(4):
        parts = [T.bind(load(buffer, rows[4 * g + q], start, 4)) for g in range(lanes // 4)]
        quads.append(parts[0] if len(parts) == 1 else _shuffle(parts, range(lanes)))
    return transpose_quads(quads, lanes)


def transpose(columns: Sequence[Expr], lanes: int) -> list[list[tuple[int, Expr, int]]]:
    """Turn eight vectors by: for each lane its eight values, as pieces `(offset, vector, width)`."""
    left, right = transpose_quads(columns[:4], lanes), transpose_quads(columns[4:], lanes)
    if lanes == QUAD:
        return [[(0, left[lane], 4), (4, right[lane], 4)] for lane in range(4)]
    rows: list[list[tuple[int, Expr, int]]] = [[] for _ in range(lanes)]
    for j in range(4):
        for g in range(0, lanes // 4, 2):
            # Groups g and g + 1 of both sides, alternating: the rows of two lanes, one after the other.
            order = [side * lanes + 4 * (g + i) + p for i in (0, 1) for side in (0, 1) for p in range(4)]
            both = _shuffle([left[j], right[j]], order)
            for i in (0, 1):
                rows[4 * (g + i) + j] = [(0, tirx.Shuffle([both], [8 * i + p for p in range(8)]), 8)]
    return rows
