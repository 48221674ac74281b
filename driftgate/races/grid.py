"""How many blocks a launch has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.kernel import Cast, Const, Expr, Kernel, Op, Var

_INTEGER: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def extents(kernel: Kernel, scalars: Mapping[str, int | float]) -> tuple[int, ...]:
    """Blocks along each axis of ``kernel.grid``. Raises UsageError for an extent that is no integer arithmetic."""
    return tuple(_value(kernel.name, extent, scalars) for _, extent in kernel.grid)


def blocks_of(kernel: Kernel, scalars: Mapping[str, int | float]) -> int:
    """Blocks of a launch with these parameters."""
    count = 1
    for extent in extents(kernel, scalars):
        count *= max(extent, 0)
    return count


def _value(name: str, expr: Expr, scalars: Mapping[str, int | float]) -> int:
    match expr:
        case Const():
            return int(expr.value)
        case Var():
            if expr.name not in scalars:
                raise UsageError(f"kernel {name}: there is no value for parameter {expr.name}")
            return int(scalars[expr.name])
        case Cast():
            return _value(name, expr.value, scalars)
        case Op() if expr.name in _INTEGER:
            return int(_INTEGER[expr.name](*(_value(name, arg, scalars) for arg in expr.args)))
    raise UsageError(f"kernel {name}: {type(expr).__name__} in a grid extent is not supported by the race detector")
