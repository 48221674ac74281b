"""The schedule of everything that maps elements to elements."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.target import Target

from .tiles import tile_for


class Elementwise(dlight.ScheduleRule):
    """Inline all but the last block, vectorise its innermost loop, spread the others over the threads."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        sch = s_tir.Schedule(func)
        blocks = dlight.normalize_prim_func(sch)
        if not blocks or not all(block.is_injective() for block in blocks):
            return None
        blocks = dlight.try_inline_contiguous_spatial(sch, blocks)
        if blocks is None or len(blocks) != 1:
            return None
        *outer, inner = sch.get_loops(blocks[0].block_rv)
        lanes = tile_for(target).lanes
        extent = sch.get(inner).extent
        if isinstance(extent, tirx.IntImm) and int(extent) % lanes == 0:
            between, vector = sch.split(inner, [None, lanes])
            sch.vectorize(vector)
        if outer:
            sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])
        return sch
