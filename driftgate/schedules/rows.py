"""Norms, softmax and other reductions along the last axis: a row is one task, and its elements fill the vectors."""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.s_tir import dlight
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from .elementwise import extent, spread_rows, static_size, vectorise
from .tiles import tile_for


class RowReduction(dlight.ScheduleRule):
    """Sum into as many partial sums as a vector has lanes, then add these up; spread long rows over the threads.

    TVM's own `dlight.cpu.Reduction` adds up one element at a time, and spreads rows however short they are. It stays
    behind this rule for what this one refuses.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None for functions of another kind."""
        try:
            return _schedule(s_tir.Schedule(func), tile_for(target).lanes)
        except s_tir.ScheduleError:
            return None


def _schedule(sch: s_tir.Schedule, lanes: int) -> s_tir.Schedule | None:
    infos = dlight.normalize_prim_func(sch)
    if not infos:
        return None
    kinds = {info.dom_kind() for info in infos if not info.is_injective()}
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    leading = len(kind) - 1
    if leading < 1 or kind != "S" * leading + "R":
        return None

    extents = [[extent(sch, loop) for loop in sch.get_loops(info.block_rv)] for info in infos]
    infos = [info for info in infos if info is infos[-1] or not (info.is_injective() and _inlined(sch, info.block_rv))]
    stages: list[SBlockRV] = []
    partial_sums: list[SBlockRV] = []
    for info in infos:
        if not info.is_injective() and (partial := _partial_sums(sch, info.block_rv, lanes)) is not None:
            partial_sums.append(partial)
            stages.append(partial)
        stages.append(info.block_rv)

    last = stages.pop()
    row = spread_rows(sch, sch.get_loops(last)[:leading], max(extents, key=static_size))
    for block in reversed(stages):
        sch.compute_at(block, row, preserve_unit_loops=True)
    for info in infos:
        if info.is_injective():
            vectorise(sch, sch.get_loops(info.block_rv)[-1], lanes)
    for block in partial_sums:
        loops = [loop for loop in sch.get_loops(block)[1:] if extent(sch, loop) != 1]
        if len(loops) != 2:
            # A row that is itself a part of a larger one: left to the rule behind this one.
            return None
        lane, steps = loops
        sch.reorder(steps, lane)
        sch.vectorize(lane)
    return sch


def _inlined(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Inline a block into its readers, unless each of them would have to call a function for every element."""
    calls: list[Call] = []
    tvm_ffi.structural_visit(sch.get(block).body, (Call, lambda call, _: calls.append(call)))
    if calls:
        return False
    try:
        sch.compute_inline(block)
    except s_tir.ScheduleError:
        return False
    return True


def _partial_sums(sch: s_tir.Schedule, block: SBlockRV, lanes: int) -> SBlockRV | None:
    """Put a block before this one that leaves it only `lanes` values a row to add up; None if rows do not divide."""
    loop = sch.get_loops(block)[-1]
    count = extent(sch, loop)
    if count is None or count % lanes or count <= lanes:
        return None
    _, lane = sch.split(loop, [None, lanes])
    return sch.rfactor(lane, factor_axis=0)
