"""Device tensors as NumPy arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from driftgate.metrics import as_bits


def is_tensor(value: Any) -> bool:
    """Whether a kernel's argument is a tensor."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def is_float(value: Any) -> bool:
    """Whether a kernel's argument is a tensor of floating-point numbers."""
    return is_tensor(value) and str(value.dtype).startswith("float")


def view(tensor: Any) -> np.ndarray:
    """The tensor's values: on the CPU its own memory, read-only; from a device a copy."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return np.from_dlpack(tensor) if str(tensor.device).startswith("cpu") else tensor.numpy()


def copied(tensor: Any) -> np.ndarray:
    """The tensor's values in memory of their own."""
    found = view(tensor)
    return found.copy() if str(tensor.device).startswith("cpu") else found


def restore(tensor: Any, values: np.ndarray) -> None:
    """Overwrite the tensor, wherever it is."""
    tensor.copyfrom(values)


def same_bytes(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal in every byte: -0.0 is not 0.0, and a NaN equals itself."""
    return bool(np.array_equal(as_bits(left), as_bits(right)))
