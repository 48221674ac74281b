"""A delay at the entry of TVM's CUDA merge kernel, inserted in its source as a library is loaded."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any

VARIABLE = "DRIFTGATE_MERGE_DELAY"
"""Clocks of delay at most; 0 or unset for none."""
KERNEL = "tir_attention_merge_state_kernel"

DELAY = """
  {{
    unsigned seed = __shfl_sync(0xffffffffu, (unsigned)clock64(), 0);
    unsigned warp = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32u;
    seed ^= warp * 2654435761u ^ blockIdx.x * 40503u ^ blockIdx.y * 2246822519u;
    seed ^= seed >> 16; seed *= 2246822507u; seed ^= seed >> 13; seed *= 3266489909u; seed ^= seed >> 16;
    long long until = clock64() + (long long)(seed % {clocks}u);
    while (clock64() < until) {{}}
  }}
"""
"""Clock bits are mixed in, so that each warp of each launch waits for another time."""


def delayed(source: str, clocks: int) -> str:
    """``source`` with the delay in the kernel's definition. Raises ValueError where that is not there once."""
    opening = re.compile(rf'extern "C" __global__ void [^{{;]*\b{KERNEL}\([^{{;]*\)\s*\{{')
    found = opening.findall(source)
    if len(found) != 1:
        raise ValueError(f"{KERNEL} is defined {len(found)} times in this source")
    return source.replace(found[0], found[0] + DELAY.format(clocks=clocks))


def install() -> None:
    """Have the next libraries of this process compiled with the delay, each source once for all processes."""
    import tvm_ffi

    clocks = int(os.environ.get(VARIABLE, "0"))
    cache = Path(os.environ.get("DRIFTGATE_CACHE", tempfile.gettempdir()), "cubins")
    cache.mkdir(parents=True, exist_ok=True)

    name = "tvm_callback_cuda_compile"
    original = tvm_ffi.get_global_func(name)

    def compile_delayed(source: str, *rest: Any) -> Any:
        # A swapped-in kernel is a library of its own, and is left alone.
        text = delayed(source, clocks) if clocks and KERNEL in source else source
        cubin = cache / hashlib.sha256(text.encode()).hexdigest()
        if not cubin.exists():
            cubin.write_bytes(bytes(original(text, *rest)))
        return bytearray(cubin.read_bytes())

    tvm_ffi.register_global_func(name, compile_delayed, override=True)
