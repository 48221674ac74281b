"""Whether a kernel of the user's own takes what the kernel takes that it stands in for."""

from __future__ import annotations

from math import prod
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.catalog import Shape, build
from driftgate.races.evidence import Setup
from driftgate.target import TargetSpec


def check_fit(name: str, shape: Shape, spec: TargetSpec, function: Any, setup: Setup) -> None:
    """Raise UsageError unless the buffers of ``function`` have dtype and size of those of catalog kernel ``name``.

    ``setup`` holds the inputs. A kernel for another head_dim would be found out of bounds, or clean on a part of them.
    With a dimension that has no number the size has to be a multiple; dtypes are not compared where TVM does not build
    ``name``.
    """
    try:
        own = {buffer: str(kind.dtype) for buffer, kind in _buffers(build(name, shape, spec)).items()}
    except UsageError:
        own = {}
    for buffer, kind in _buffers(function).items():
        if own.get(buffer, str(kind.dtype)) != str(kind.dtype):
            raise UsageError(f"kernel {name}: its buffer {buffer} is {kind.dtype}, but has to be {own[buffer]}")
        given = setup.arrays.get(buffer)
        if given is None:
            continue
        numbers = [_number(dim, setup) for dim in kind.shape]
        size = prod(n for n in numbers if n is not None)
        if given.size % size if None in numbers else given.size != size:
            raise UsageError(
                f"kernel {name}: its buffer {buffer} of shape ({', '.join(map(str, kind.shape))}) does not take the "
                f"{given.size} elements of the input at head_dim {shape.head_dim}, {shape.heads} heads, "
                f"{shape.kv_heads} KV heads"
            )


def _buffers(function: Any) -> dict[str, Any]:
    """Type of each parameter that is a buffer, by name."""
    return {p.name: p.ty for p in function.params if hasattr(p.ty, "shape")}


def _number(dim: Any, setup: Setup) -> int | None:
    if hasattr(dim, "value"):
        return int(dim.value)
    found = setup.scalars.get(getattr(dim, "name", ""))
    return None if found is None else int(found)
