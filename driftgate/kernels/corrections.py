"""Corrected kernels by name (``--fix NAME``): what each replaces, where, and when TVM's own is known to be wrong.

Each is an experiment that shows the cause of a known defect: with it in place, and nothing else, the case passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from driftgate.compile import library
from driftgate.kernels.patches import PATCHES
from driftgate.kernels.replacements import SINGLE_WRITER, description
from driftgate.kernels.softcap import capped
from driftgate.model import Shape
from driftgate.outcome import UsageError
from driftgate.plan import PAGE
from driftgate.target import NAMES, TargetSpec, to_tvm

TREE_ORDER = "cpu-tree-order"
"""The correction that is no kernel: TVM's CPU branch hands the two tree kernels to the cache the wrong way round, and
any token tree fails; with it the seam puts each where it belongs (``seam.TREE_ARGUMENTS``)."""
NONE = "none"
"""``--fix none``: TVM's kernels as they are, whatever the plan."""

Chunks = Sequence[tuple[int, int]]
"""Start and length of every chunk."""


def _never(shape: Shape, chunks: Chunks) -> bool:
    return False


@dataclass(frozen=True)
class Correction:
    """Kernels that take the place of TVM's."""

    name: str
    about: str
    kernels: tuple[str, ...]
    """The kernels of the cache that it replaces, as the seam names them."""
    targets: tuple[str, ...]
    build: Callable[[Shape, TargetSpec, str], dict[str, Any]]
    """``(shape, target, dtype)`` to what a fresh process needs to make each replacement (``replacements.swap``)."""
    needed: Callable[[Shape, Chunks], bool] = _never
    """Whether TVM's own kernel is known to be wrong for a prefill in these chunks."""


def past_outside_window(shape: Shape, chunks: Chunks) -> bool:
    """A later chunk has queries that some past key is masked from."""
    return shape.window is not None and any(s > 0 and n > 1 and s + n > shape.window for s, n in chunks)


def chunk_over_window(shape: Shape, chunks: Chunks) -> bool:
    """A chunk is longer than the window."""
    return shape.window is not None and any(n > shape.window for _, n in chunks)


def _sliding_prefill(shape: Shape, spec: TargetSpec, dtype: str) -> dict[str, Any]:
    from driftgate.kernels import sliding_prefill

    if shape.window is None:
        raise UsageError("cpu-sliding-prefill corrects sliding layers, but the model has none")
    kernel = sliding_prefill.build(shape.heads, shape.kv_heads, shape.head_dim, shape.window, dtype, PAGE)
    if shape.softcap is not None:
        kernel = capped(kernel, shape.softcap)
    import tvm

    module = tvm.IRModule({sliding_prefill.FUNCTION: kernel})
    path = library(module, spec, f"cpu-sliding-prefill-{spec.name}", lambda: tvm.compile(module, to_tvm(spec)))
    return {"library": str(path), "function": sliding_prefill.FUNCTION}


def _merge(shape: Shape, spec: TargetSpec, dtype: str) -> dict[str, Any]:
    return description("merge", SINGLE_WRITER, shape, spec, dtype)


def _patch(name: str) -> Callable[[Shape, TargetSpec, str], dict[str, Any]]:
    assert name in PATCHES
    return lambda shape, spec, dtype: {"patch": name, "windowed": list(shape.windowed)}


_GPUS = tuple(name for name in NAMES if name != "llvm")

CORRECTIONS = {
    correction.name: correction
    for correction in (
        Correction(
            "cpu-sliding-prefill",
            "paged prefill with a window in which a masked key has no part",
            ("prefill_sliding",),
            ("llvm",),
            _sliding_prefill,
            past_outside_window,
        ),
        Correction(
            TREE_ORDER,
            "the two tree kernels handed to the cache the right way round",
            ("tree", "tree_paged"),
            ("llvm",),
            lambda shape, spec, dtype: {},
        ),
        Correction(
            "chunk-window",
            "in-chunk attention with the window of the layer that calls it (NumPy)",
            ("prefill_ragged",),
            NAMES,
            _patch("chunk-window"),
        ),
        Correction(
            "inline-theta",
            "inline RoPE of sliding layers with the cache's theta",
            ("prefill_sliding", "decode_sliding"),
            NAMES,
            _patch("inline-theta"),
        ),
        Correction(
            "tree-length-info",
            "paged tree attention given the lengths alone where layers have a window",
            ("tree_paged",),
            NAMES,
            _patch("tree-length-info"),
        ),
        Correction(
            "merge-single-writer",
            "merge in which one thread of a row stores the LSE, after a barrier",
            ("merge",),
            _GPUS,
            _merge,
        ),
    )
}


def parse(text: str) -> tuple[str, ...]:
    """``NAME[,NAME...]`` or ``none`` to names. Raises UsageError with those that exist."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if names == (NONE,):
        return ()
    for name in names:
        if name not in CORRECTIONS:
            raise UsageError(f"unknown correction {name!r}; there are {', '.join(CORRECTIONS)}, and {NONE}")
    taken: dict[str, str] = {}
    for name in names:
        for kernel in CORRECTIONS[name].kernels:
            if kernel in taken:
                raise UsageError(f"--fix {text!r}: {taken[kernel]} and {name} both replace {kernel}")
            taken[kernel] = name
    return names


def check(names: Collection[str], spec: TargetSpec, shape: Shape) -> None:
    """Raise UsageError for a correction that is not for this target or model."""
    for name in names:
        correction = CORRECTIONS[name]
        if spec.name not in correction.targets:
            raise UsageError(f"correction {name} is for {', '.join(correction.targets)}, not for {spec.name}")
        if name in ("cpu-sliding-prefill", "chunk-window", "inline-theta") and shape.window is None:
            raise UsageError(f"correction {name} corrects sliding layers, but the model has none")


def needed(shape: Shape, spec: TargetSpec, chunks: Chunks, allowed: Collection[str]) -> tuple[str, ...]:
    """Of ``allowed``, the corrections without which a prefill in these chunks is known to be wrong."""
    return tuple(
        name
        for name, correction in CORRECTIONS.items()
        if name in allowed and spec.name in correction.targets and correction.needed(shape, chunks)
    )


@cache
def swaps(name: str, shape: Shape, spec: TargetSpec, dtype: str) -> dict[str, dict[str, Any]]:
    """Each kernel that correction ``name`` replaces, and what replaces it. Raises UsageError for an unknown one."""
    if name not in CORRECTIONS:
        raise UsageError(f"unknown correction {name!r}; there are {', '.join(CORRECTIONS)}")
    correction = CORRECTIONS[name]
    check((name,), spec, shape)
    if name == TREE_ORDER:
        return {}
    return dict.fromkeys(correction.kernels, correction.build(shape, spec, dtype))
