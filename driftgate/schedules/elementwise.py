"""The schedule of everything that maps elements to elements, and the steps that other schedules share."""

from __future__ import annotations

from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.schedule import LoopRV
from tvm.target import Target

from .tiles import tile_for

WORTH_SPREADING = 2048
"""Elements in a row from which rows are spread over threads. How many rows there will be is not known here; with
shorter ones a chunk of a prefill is done sooner than another thread wakes."""
PIECE = 2048
"""Elements per task where all is static."""


class Elementwise(dlight.ScheduleRule):
    """Inline all but the last block, vectorise its innermost loop, spread the others over the threads."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None for functions of another kind."""
        sch = s_tir.Schedule(func)
        blocks = dlight.normalize_prim_func(sch)
        if not blocks or not all(block.is_injective() for block in blocks):
            return None
        blocks = dlight.try_inline_contiguous_spatial(sch, blocks)
        if blocks is None or len(blocks) != 1:
            return None
        lanes = tile_for(target).lanes
        loops = list(sch.get_loops(blocks[0].block_rv))
        extents = [extent(sch, loop) for loop in loops]
        if None not in extents:
            # No rows to speak of, as in the logits of one token.
            whole = sch.fuse(*loops) if len(loops) > 1 else loops[0]
            if static_size(extents) % PIECE:
                vectorise(sch, whole, lanes)
                return sch
            piece, inner = sch.split(whole, [None, PIECE])
            if static_size(extents) > 4 * PIECE:
                sch.parallel(piece)
            vectorise(sch, inner, lanes)
            return sch
        spread_rows(sch, loops[:-1], extents)
        vectorise(sch, loops[-1], lanes)
        return sch


def extent(sch: s_tir.Schedule, loop: LoopRV) -> int | None:
    """How often the loop runs, None if that is not known yet."""
    count = sch.get(loop).extent
    return int(count) if isinstance(count, tirx.IntImm) else None


def vectorise(sch: s_tir.Schedule, loop: LoopRV, lanes: int) -> None:
    """Run the innermost loop in vectors. One that does not divide evenly is left to LLVM."""
    count = extent(sch, loop)
    if count is None or count % lanes:
        return
    sch.vectorize(sch.split(loop, [None, lanes])[1] if count > lanes else loop)


def spread_rows(sch: s_tir.Schedule, rows: list[LoopRV], extents: list[int | None]) -> LoopRV | None:
    """Fuse the loops over rows, and run them on all threads if an outermost step is long enough."""
    if not rows:
        return None
    row = sch.fuse(*rows) if len(rows) > 1 else rows[0]
    if static_size(extents) >= WORTH_SPREADING:
        sch.parallel(row)
    return row


def static_size(extents: list[int | None]) -> int:
    """Elements in what is known of a loop nest: the length of a row, where the number of rows is symbolic."""
    return prod(count for count in extents if count is not None)
