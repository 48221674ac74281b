"""Corrections that change what a kernel is given, or that stand in for it in NumPy: experiments that show a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

from driftgate.kernels.hosted import hosted
from driftgate.kernels.references import references
from driftgate.kernels.signatures import SIGNATURES
from driftgate.seam import CacheConfig, Kernel
from driftgate.tensors import view

Patch = Callable[[CacheConfig, Kernel, dict[str, Any], "Counter[str]"], Kernel]
"""``(cache, kernel replaced, description, calls given NaN)`` to the kernel in its place."""

_THETA = [argument.name for argument in SIGNATURES["prefill_sliding"]].index("rope_theta") - len(
    SIGNATURES["prefill_sliding"]
)
_LENGTHS = [argument.name for argument in SIGNATURES["tree_paged"]].index("length_info")


def _chunk_window(config: CacheConfig, replaced: Kernel, given: dict[str, Any], not_finite: Counter[str]) -> Kernel:
    """The in-chunk kernel is one for all layers and is not told which calls it; they call it in order."""
    whole = hosted("prefill_ragged", references(config)["prefill_ragged"], not_finite)
    assert config.window is not None
    sliding = hosted(
        "prefill_ragged", references(replace(config, chunk_window=config.window))["prefill_ragged"], not_finite
    )
    layers = cycle(given["windowed"])

    def run(*args: Any) -> Any:
        kernel = sliding if next(layers) else whole
        return kernel(*args)

    return run


def _inline_theta(config: CacheConfig, replaced: Kernel, given: dict[str, Any], not_finite: Counter[str]) -> Kernel:
    def run(*args: Any) -> Any:
        changed = list(args)
        changed[_THETA] = config.rope_theta
        return replaced(*changed)

    return run


def _lengths_alone(config: CacheConfig, replaced: Kernel, given: dict[str, Any], not_finite: Counter[str]) -> Kernel:
    def run(*args: Any) -> Any:
        import tvm

        changed = list(args)
        lengths = args[_LENGTHS]
        if len(lengths.shape) == 2:
            changed[_LENGTHS] = tvm.runtime.tensor(view(lengths)[0].copy(), lengths.device)
        return replaced(*changed)

    return run


PATCHES: dict[str, Patch] = {
    "chunk-window": _chunk_window,
    "inline-theta": _inline_theta,
    "tree-length-info": _lengths_alone,
}
