"""What can stand in for a kernel of the cache: ``--swap KERNEL=HOW``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from driftgate.compile import library
from driftgate.kernels.hosted import hosted
from driftgate.kernels.patches import PATCHES
from driftgate.kernels.references import references
from driftgate.model import Shape
from driftgate.outcome import UsageError
from driftgate.seam import KERNELS, Kernel, Swap
from driftgate.target import TargetSpec, resolve, to_tvm
from driftgate.tensors import is_tensor

NUMPY, TVM_CPU, SINGLE_WRITER = "numpy", "tvm-cpu", "single-writer"
NAMES = tuple(KERNELS.values())


def ways(kernel: str) -> tuple[str, ...]:
    """What can replace ``kernel``. Raises UsageError for one that does not exist."""
    if kernel not in NAMES:
        raise UsageError(f"unknown kernel {kernel!r}; the kernels are {', '.join(NAMES)}")
    return (NUMPY, TVM_CPU, SINGLE_WRITER) if kernel == "merge" else (NUMPY,)


def parse(text: str) -> tuple[tuple[str, str], ...]:
    """``merge=tvm-cpu,rotary=numpy`` to pairs. Raises UsageError with what there is."""
    pairs = []
    for part in text.split(","):
        kernel, _, how = part.partition("=")
        if how not in (there := ways(kernel)):
            raise UsageError(
                f"--swap {part!r}: {kernel} can be replaced by {', '.join(there)}; write {kernel}={there[0]}"
            )
        pairs.append((kernel, how))
    if len({kernel for kernel, _ in pairs}) < len(pairs):
        raise UsageError(f"--swap {text!r} names a kernel twice")
    return tuple(pairs)


@cache
def description(kernel: str, how: str, shape: Shape, spec: TargetSpec, dtype: str) -> dict[str, Any]:
    """What a fresh process needs to make the replacement: compiled here, if it has to be.

    Raises UsageError where there is no such thing for the target.
    """
    if how == NUMPY:
        return {"how": NUMPY}
    import tvm

    if how == TVM_CPU:
        from tvm.relax.frontend.nn.llm._decode_kernels import _merge_state_inplace_cpu

        built, function, spec = _merge_state_inplace_cpu(dtype), "merge_tvm_cpu", resolve("llvm")
    elif spec.is_gpu:
        from driftgate.kernels import single_writer

        try:
            built = single_writer.build(shape.heads, shape.head_dim, dtype, spec.max_threads_per_block)
        except ValueError as error:
            raise UsageError(f"--swap {kernel}={how}: {error}") from None
        function = single_writer.FUNCTION
    else:
        raise UsageError(f"{how} is a GPU kernel, and {spec.name} has no threads to race; use {NUMPY} or {TVM_CPU}")
    module = tvm.IRModule({function: built.with_attr("global_symbol", function)})
    path = library(module, spec, f"merge-{how}-{spec.name}-{dtype}", lambda: tvm.compile(module, to_tvm(spec)))
    return {"how": how, "library": str(path), "function": function}


def swap(kernel: str, given: dict[str, Any], not_finite: Counter[str]) -> Swap:
    """The swap that ``description`` describes. Calls that were given NaN or infinity are counted in ``not_finite``."""
    if "patch" in given:
        patch = PATCHES[given["patch"]]
        return lambda config, replaced: patch(config, replaced, given, not_finite)
    if "library" not in given:
        return lambda config, replaced: hosted(kernel, references(config)[kernel], not_finite)
    import tvm

    function = tvm.runtime.load_module(given["library"])[given["function"]]
    if given.get("how") == TVM_CPU:
        return lambda config, replaced: hosted(kernel, _on_tensors(function), not_finite)
    return lambda config, replaced: function


def _on_tensors(function: Kernel) -> Callable[..., None]:
    """A compiled CPU kernel as a function of arrays."""

    def run(*arrays: Any) -> None:
        import tvm

        tensors = [tvm.runtime.tensor(a) if is_tensor(a) else a for a in arrays]
        function(*tensors)
        for array, tensor in zip(arrays, tensors, strict=True):
            if is_tensor(array):
                array[...] = tensor.numpy()

    return run
