"""A reference on arrays in the place of a kernel on a device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from driftgate.kernels.references import Reference
from driftgate.kernels.signatures import OUT, PAGES, check
from driftgate.seam import Kernel
from driftgate.tensors import copied, is_float, is_tensor, restore


def hosted(kernel: str, reference: Reference, not_finite: Counter[str]) -> Kernel:
    """A kernel that copies its arguments to the host, runs ``reference`` on arrays, and copies the results back."""

    def run(*args: Any) -> None:
        signature = check(kernel, args)
        arrays = [copied(arg) if is_tensor(arg) else arg for arg in args]
        read = [a for a, s in zip(arrays, signature, strict=True) if s.role != OUT and s.name != PAGES and is_float(a)]
        not_finite[kernel] += any(not np.isfinite(array).all() for array in read)
        reference(*arrays)
        for arg, array, argument in zip(args, arrays, signature, strict=True):
            if argument.role.endswith(OUT):
                restore(arg, array)

    return run
