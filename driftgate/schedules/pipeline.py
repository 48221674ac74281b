"""Lowering of a Relax module for a CPU: TVM's own passes with our schedules between them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.ir import IRModule
from tvm.ir.transform import Pass, PassContext
from tvm.relax.backend.cpu_generic import pipeline as cpu_generic
from tvm.s_tir import dlight
from tvm.target import Target
from tvm.tirx import PrimFunc

from . import plain as plain_kernels
from .activations import RewriteActivations
from .elementwise import Elementwise
from .linear import RewriteLinear
from .matmul import OPAQUE, fast_matmul
from .rows import RowReduction

Edit = Callable[[IRModule], IRModule]


def cpu_pipeline(target: Target | str | dict[str, object], plain: bool = False, edit: Edit = lambda mod: mod) -> Pass:
    """The Relax pipeline for an LLVM target: `tvm.compile(mod, target, relax_pipeline=cpu_pipeline(target))`.

    It takes a module of Relax functions (any stage before legalization) and does the whole lowering to VM form.
    Linear layers get our kernels, what fusion makes of the rest gets our schedules. PrimFuncs that are in the module
    already, the KV-cache kernels above all, come out as they went in, only marked `tirx.noalias`.

    With ``plain``, functions of the same names without our kernels and schedules (see `plain`). ``edit`` has the last
    word on the lowered module: a fault is planted there.

    Raises ValueError if the target is not an LLVM CPU.
    """
    target = target if isinstance(target, Target) else Target(target)
    if target.kind.name != "llvm":
        raise ValueError(f"cpu_pipeline needs a target of kind llvm, but got {target.kind.name}")

    body = plain_kernels.plain_matmul if plain else fast_matmul
    activations = (plain_kernels.gelu_tanh, plain_kernels.tanh) if plain else ()
    schedule = () if plain else (dlight.ApplyDefaultSchedule(RowReduction(), dlight.cpu.Reduction(), Elementwise()),)

    @tvm.ir.transform.module_pass(opt_level=0, name="driftgate.cpu_pipeline")
    def pipeline(mod: IRModule, _: PassContext) -> IRModule:
        given = {name: func for name, func in mod.functions.items() if isinstance(func, PrimFunc)}
        with target:
            for step in (
                *cpu_generic.library_dispatch_passes(target),
                RewriteLinear(target, body),
                RewriteActivations(*activations),
                _hide(given),
                *cpu_generic.legalize_passes(target),
                *schedule,
                _restore(given),
                *cpu_generic.dataflow_lower_passes(target),
                *cpu_generic.finalize_passes(target),
                edit,
                mark_noalias(),
            ):
                mod = step(mod)
        return mod

    return pipeline


def _hide(given: dict[tvm.ir.GlobalVar, PrimFunc]) -> Pass:
    """Keep fusion and scheduling off the functions that were given to us."""

    @tvm.ir.transform.module_pass(opt_level=0, name="driftgate.hide")
    def hide(mod: IRModule, _: PassContext) -> IRModule:
        mod = mod.clone()
        for name, func in given.items():
            mod.update_func(name, func.with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True}))
        return mod

    return hide


def _restore(given: dict[tvm.ir.GlobalVar, PrimFunc]) -> Pass:
    """Put them back as they were."""

    @tvm.ir.transform.module_pass(opt_level=0, name="driftgate.restore")
    def restore(mod: IRModule, _: PassContext) -> IRModule:
        mod = mod.clone()
        left = {name.name_hint: name for name in mod.functions}
        for name, func in given.items():
            if name.name_hint in left:
                mod.update_func(left[name.name_hint], func)
        return mod

    return restore


def mark_noalias() -> Pass:
    """Promise LLVM, for every PrimFunc, that its arguments do not overlap.

    Relax never passes overlapping buffers, and legalized functions carry the promise already. `shape_func`, which
    VMShapeLower makes, does not; and as all functions are compiled in one LLVM module, its loads and stores are
    recorded as "may touch anything" for the type tags that the others use too. LLVM then reloads what should stay in
    registers, in functions that did carry the promise: one small function makes every matrix three times slower.
    So this has to be the last pass, and it has to mark all of them.
    """

    @tvm.ir.transform.module_pass(opt_level=0, name="driftgate.noalias")
    def mark(mod: IRModule, _: PassContext) -> IRModule:
        mod = mod.clone()
        for name, func in list(mod.functions.items()):
            if isinstance(func, PrimFunc):
                mod.update_func(name, func.with_attr("tirx.noalias", True))
        return mod

    return mark
