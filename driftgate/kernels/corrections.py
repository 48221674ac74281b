"""Corrected kernels by name: what each replaces, and the library that holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from driftgate.compile import library
from driftgate.kernels.softcap import capped
from driftgate.model import Shape
from driftgate.outcome import UsageError
from driftgate.plan import PAGE
from driftgate.target import TargetSpec, to_tvm

TREE_ORDER = "cpu-tree-order"
"""The correction that is no kernel: TVM's CPU branch hands the two tree kernels to the cache the wrong way round, and
any token tree fails; with it the seam puts each where it belongs (``seam.TREE_ARGUMENTS``)."""


@dataclass(frozen=True)
class Correction:
    """One kernel that takes the place of TVM's."""

    name: str
    kernel: str
    """The kernel of the cache that it replaces, as the seam names it."""
    targets: tuple[str, ...]
    function: str
    build: Callable[[Shape, str], Any]
    """``(shape, dtype)`` to a PrimFunc with the signature of the kernel replaced."""


def _sliding_prefill(shape: Shape, dtype: str) -> Any:
    from driftgate.kernels import sliding_prefill

    if shape.window is None:
        raise UsageError("cpu-sliding-prefill corrects sliding layers, but the model has none")
    kernel = sliding_prefill.build(shape.heads, shape.kv_heads, shape.head_dim, shape.window, dtype, PAGE)
    return kernel if shape.softcap is None else capped(kernel, shape.softcap)


CORRECTIONS = {
    correction.name: correction
    for correction in (
        Correction("cpu-sliding-prefill", "prefill_sliding", ("llvm",), "prefill_sliding_corrected", _sliding_prefill),
    )
}


@cache
def swap(name: str, shape: Shape, spec: TargetSpec, dtype: str) -> tuple[str, dict[str, str]]:
    """The kernel that correction ``name`` replaces, and the library and function that replace it."""
    if name not in CORRECTIONS:
        raise UsageError(f"unknown correction {name!r}; there are {', '.join(CORRECTIONS)}")
    correction = CORRECTIONS[name]
    if spec.name not in correction.targets:
        raise UsageError(f"correction {name} is for {', '.join(correction.targets)}, not for {spec.name}")
    import tvm

    module = tvm.IRModule({correction.function: correction.build(shape, dtype)})
    path = library(module, spec, f"{name}-{spec.name}", lambda: tvm.compile(module, to_tvm(spec)))
    return correction.kernel, {"library": str(path), "function": correction.function}
