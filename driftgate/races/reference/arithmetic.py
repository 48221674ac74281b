"""TVM's operators and functions on NumPy arrays, element by element and in the dtype of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from driftgate.outcome import UsageError
from driftgate.races.kernel import element_of

_DTYPES = {
    "bool": np.dtype(np.bool_),
    **{n: np.dtype(n) for n in ("float16", "float32", "float64")},
    **{n: np.dtype(n) for bits in (8, 16, 32, 64) for n in (f"int{bits}", f"uint{bits}")},
}


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's dtype of one lane. Raises UsageError where it has none."""
    if element_of(dtype) not in _DTYPES:
        raise UsageError(f"dtype {dtype} is not supported by the race detector's reference")
    return _DTYPES[element_of(dtype)]


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C's division: integers are cut towards zero."""
    return a / b if a.dtype.kind == "f" else (a - np.fmod(a, b)) // b


OPERATORS: dict[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": _divided,
    "//": np.floor_divide, "%": np.mod, "trunc%": np.fmod,
    # As TVM compiles them: with a NaN on either side they give the second operand.
    "max": lambda a, b: np.where(a > b, a, b), "min": lambda a, b: np.where(a < b, a, b),
    "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    "not": np.logical_not,
    "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "<<": np.left_shift, ">>": np.right_shift,
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        n: getattr(np, n) for n in ("exp2", "exp", "log2", "log", "cos", "sin", "sqrt", "tanh", "fabs", "floor", "ceil")
    },
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
