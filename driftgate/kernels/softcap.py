"""Attention kernels with capped scores: TVM's own, with ``cap tanh(s / cap)`` put where they scale a score.

TVM's paged kernels know no cap, and Gemma 2 has one of 50. On the CPU a kernel scales each score in one store,
``s = q.k * sm_scale * log2(e)``; the variant stores ``c tanh(s / c)`` with ``c = cap * log2(e)`` instead, and all else
of the kernel stays TVM's. GPU kernels scale every term of the sum, so there is no such place: refused.
"""

from __future__ import annotations

from typing import Any

from driftgate.kernels.attention import LOG2_E
from driftgate.outcome import InfraError, UsageError
from driftgate.target import TargetSpec

SCALE = "sm_scale"


def check(cap: float | None, spec: TargetSpec, model: str) -> None:
    """Raise UsageError where the kernels of ``spec`` cannot cap scores."""
    if cap is not None and spec.is_gpu:
        raise UsageError(
            f"refused: {model} caps attention scores at {cap:g}, and TVM's {spec.name} attention kernels cannot; "
            "its CPU kernels are varied to (--target llvm)"
        )


def capped_module(module: Any, cap: float) -> Any:
    """``module`` with every attention kernel capped: every PrimFunc that takes a softmax scale."""
    import tvm

    changed = module.clone()
    for name, function in module.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc) and any(p.name == SCALE for p in function.params):
            changed.update_func(name, capped(function, cap))
    return changed


def capped(kernel: Any, cap: float) -> Any:
    """The PrimFunc ``kernel``, its scores capped. Raises InfraError unless it scales a score in exactly one place."""
    import tvm_ffi
    from tvm import tirx

    scale = next((p for p in kernel.params if p.name == SCALE), None)
    if scale is None:
        raise InfraError(f"attention softcap: kernel {kernel.attrs['global_symbol']} has no {SCALE}")
    width = tirx.const(cap * LOG2_E, "float32")
    found: list[Any] = []

    def wrap(store: Any) -> Any:
        value = store.value
        if not (isinstance(value, tirx.Mul) and _reads(value, scale)):
            return store
        found.append(value)
        return tirx.BufferStore(store.buffer, width * tirx.tanh(value / width), store.indices)

    body = tvm_ffi.structural_map(kernel.body, (tirx.BufferStore, wrap))
    if len(found) != 1:
        name = kernel.attrs["global_symbol"]
        raise InfraError(f"attention softcap: kernel {name} scales scores in {len(found)} places, not in one")
    return kernel.with_body(body)


def _reads(value: Any, scale: Any) -> bool:
    """Whether the product ``value`` is of a loaded score and ``scale``; a masked score is a constant and is no load."""
    import tvm
    import tvm_ffi

    seen: set[str] = set()

    def note(node: Any) -> None:
        if isinstance(node, tvm.ir.TensorLoad):
            seen.add("load")
        elif node.same_as(scale):
            seen.add("scale")

    tvm_ffi.structural_walk(value, (object, note), order="pre")
    return seen == {"load", "scale"}
