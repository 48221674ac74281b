"""Targets by name: explicit limits, the dtypes that fit them, and the device behind each.

Every limit is written out because TVM's defaults are silent: ``Target("metal")`` means 256 threads and warp width 16,
``Target("cuda")`` means sm_50 where no device is found.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from driftgate import probe
from driftgate.outcome import InfraError, UsageError

DTYPES = ("float32", "float16")
"""The dtypes that are tested; any other is refused."""

HEAD_DIMS = (64, 128, 256, 512)
"""The head dimensions that ``list_pairs`` reports; ``check_dtype`` takes any."""


@dataclass(frozen=True)
class TargetSpec:
    """A compilation target with all its limits. Threads are per block, shared memory in bytes per block."""

    name: str
    kind: str
    device_type: str
    warp_width: int
    max_threads_per_block: int
    max_shared_memory_bytes: int
    arch: str | None = None  # CUDA only, such as sm_90
    mcpu: str | None = None  # llvm only, LLVM's name of the CPU
    num_cores: int | None = None  # llvm only

    @property
    def is_gpu(self) -> bool:
        return self.kind != "llvm"


@dataclass(frozen=True)
class Pair:
    """One row of the table of what can be gated: a target, a dtype and a head dimension."""

    target: str
    dtype: str
    head_dim: int
    status: Literal["runs", "source only", "refused"]
    reason: str


# What holds where no device is there to be asked.
# metal: TVM's own tag apple/m1-gpu. cuda: the 48 KiB that a kernel may declare statically, as TVM's kernels do.
# opencl: the least shared memory that OpenCL 1.2 allows, and like TVM no assumption about warps.
# webgpu: TVM's own limits; a browser that grants only the portable minimum (16 KiB) has less.
_SPECS = {
    "llvm": TargetSpec("llvm", "llvm", "cpu", 1, 1, 0),
    "metal": TargetSpec("metal", "metal", "metal", 32, 1024, 32768),
    "cuda": TargetSpec("cuda", "cuda", "cuda", 32, 1024, 49152, arch="sm_80"),
    "opencl": TargetSpec("opencl", "opencl", "opencl", 1, 256, 32768),
    "webgpu": TargetSpec("webgpu", "webgpu", "webgpu", 1, 256, 32768),
}

NAMES = tuple(_SPECS)
"""Every target that can be named."""


def resolve(name: str | None) -> TargetSpec:
    """The target called ``name``, with the limits of the device here if there is one; None means the best one here.

    A target with no device still resolves, for compiling to source. Raises UsageError for an unknown name.
    """
    if name is None:
        name = _best()
    if name not in _SPECS:
        raise UsageError(f"unknown target {name!r}: choose one of {', '.join(NAMES)}")
    spec = _SPECS[name]
    if not spec.is_gpu:
        return _describe_cpu(spec)
    return _ask_device(spec) if probe.device_state(spec.kind).ready else spec


def _best() -> str:
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    candidates = ["metal", "cuda"] if apple else ["cuda"]
    return next((kind for kind in candidates if probe.device_state(kind).ready), "llvm")


def _describe_cpu(spec: TargetSpec) -> TargetSpec:
    from tvm.target import codegen

    # The cores this process may use, not those of the machine: containers and runners are often given fewer.
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    return replace(spec, mcpu=str(codegen.llvm_get_system_cpu()), num_cores=cores)


def _ask_device(spec: TargetSpec) -> TargetSpec:
    import tvm

    device = tvm.device(spec.kind, 0)
    # Metal and OpenCL report a warp width of 1 and Metal no shared memory, so these two keep the table's figures.
    threads = int(device.max_threads_per_block or spec.max_threads_per_block)
    spec = replace(spec, max_threads_per_block=min(threads, 1024))
    if spec.kind in ("cuda", "opencl"):
        shared = int(device.max_shared_memory_per_block or spec.max_shared_memory_bytes)
        spec = replace(spec, max_shared_memory_bytes=shared)
    if spec.kind == "cuda":
        arch = "sm_" + str(device.compute_version).replace(".", "")
        spec = replace(spec, warp_width=int(device.warp_size), arch=arch)
    return spec


def to_tvm(spec: TargetSpec) -> Any:
    """``spec`` as a ``tvm.target.Target`` with every limit written out, and llvm as the host of a GPU."""
    from tvm.target import Target

    if not spec.is_gpu:
        return Target({"kind": spec.kind, "mcpu": spec.mcpu, "num-cores": spec.num_cores})
    attrs: dict[str, Any] = {
        "kind": spec.kind,
        "thread_warp_size": spec.warp_width,
        "max_num_threads": spec.max_threads_per_block,
        "max_shared_memory_per_block": spec.max_shared_memory_bytes,
    }
    if spec.kind != "webgpu":  # TVM's WebGPU target has no such attribute and refuses it
        attrs["max_threads_per_block"] = spec.max_threads_per_block
    if spec.arch is not None:
        attrs["arch"] = spec.arch
    return Target(attrs, host="llvm")


def key(spec: TargetSpec) -> str:
    """A string that is equal for two specs exactly when they compile alike; for cache keys."""
    if not spec.is_gpu:
        return f"{spec.kind}:mcpu={spec.mcpu},cores={spec.num_cores}"
    arch = f"arch={spec.arch}," if spec.arch else ""
    threads, shared, warp = spec.max_threads_per_block, spec.max_shared_memory_bytes, spec.warp_width
    return f"{spec.kind}:{arch}threads={threads},shared={shared},warp={warp},host=llvm"


def open_device(spec: TargetSpec) -> Any:
    """The TVM device of ``spec``; a GPU is believed only after it gave the known answer.

    Raises InfraError when this wheel has no such runtime, when the runtime does not load, when there is no device,
    when kernels cannot be compiled, or when the probe fails: each with its own message.
    """
    import tvm

    state = probe.device_state(spec.kind)
    if not state.ready:
        raise InfraError(f"target {spec.name} cannot run here: {state.detail}")
    if spec.is_gpu:
        result = probe_device(spec)
        if not result.ok:
            raise InfraError(f"target {spec.name} failed the known-answer probe on {state.detail}: {result.detail}")
    return tvm.device(spec.device_type, 0)


@cache
def probe_device(spec: TargetSpec) -> probe.ProbeResult:
    """The known-answer probe on the device of ``spec``, once a process. The device must be there."""
    import tvm

    if spec.kind == "cuda" and probe.cuda_compiler() == "nvcc":
        # TVM would ask for nvrtc, which is not there; later builds of this process need the same.
        os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    return probe.run(to_tvm(spec), tvm.device(spec.device_type, 0))


def default_dtype(spec: TargetSpec, head_dim: int | None = None) -> str:
    """The dtype used when none is asked for: float16 on Metal, else float32.

    With ``head_dim``, the other dtype if only that one fits, so that Gemma 4 (512) on CUDA gets float16.
    """
    order = ("float16", "float32") if spec.kind == "metal" else DTYPES
    if head_dim is None:
        return order[0]
    return next((dtype for dtype in order if _refusal(spec, dtype, head_dim) is None), order[0])


def check_dtype(spec: TargetSpec, dtype: str, head_dim: int) -> None:
    """Raise UsageError, with the reason and what is allowed, if ``dtype`` at ``head_dim`` cannot run on ``spec``."""
    if head_dim < 1:
        raise UsageError(f"head_dim {head_dim} cannot be: it must be at least 1")
    reason = _refusal(spec, dtype, head_dim)
    if reason is None:
        return
    allowed = [other for other in DTYPES if other != dtype and _refusal(spec, other, head_dim) is None]
    instead = f"use {' or '.join(allowed)}" if allowed else "no dtype fits it there"
    raise UsageError(f"{dtype} at head_dim {head_dim} is refused on {spec.name}: {reason}; {instead}")


def _refusal(spec: TargetSpec, dtype: str, head_dim: int) -> str | None:
    """Why the pair cannot run, in a few words; None if it can."""
    if dtype not in DTYPES:
        return "bfloat16 is not tested on any target" if dtype == "bfloat16" else "not a known dtype"
    return _prefill_refusal(spec, dtype, head_dim) if spec.is_gpu else None


@cache
def _prefill_refusal(spec: TargetSpec, dtype: str, head_dim: int) -> str | None:
    """Whether TVM's prefill attention kernel fits the shared memory of ``spec``, by TVM's own arithmetic.

    TVM fits the tile for Metal alone. Elsewhere it builds a kernel that the device compiler or the driver refuses (on
    CUDA, ptxas: "uses too much shared data"), so the bytes are compared here.
    """
    try:
        from tvm.relax.frontend.nn.llm._kernel_common import (
            _get_prefill_kernel_config,
            _get_prefill_shared_memory_usage,
        )
    except ImportError:
        return None  # private to TVM: where it has moved, the build itself has to say whether the kernel fits
    try:
        # One head of each kind: the tile does not depend on the number of heads.
        *_, tile_x, _tile_y, tile_z = _get_prefill_kernel_config(1, 1, head_dim, dtype, to_tvm(spec))
    except ZeroDivisionError:
        return "TVM has no prefill tile for a head dimension this large"
    except (ValueError, AssertionError) as error:
        return _in_words(str(error))
    needed = _get_prefill_shared_memory_usage(tile_x, tile_z, head_dim, dtype)
    if needed <= spec.max_shared_memory_bytes:
        return None
    return _too_large(needed, spec.max_shared_memory_bytes)


def _in_words(message: str) -> str:
    found = re.search(r"requires (\d+) bytes, target allows (\d+) bytes", message)
    if found:
        return _too_large(int(found[1]), int(found[2]))
    found = re.search(r"tile=(\(.*?\)), threads=(\d+)", message)
    if found:
        return f"TVM's prefill tile {found[1]} does not divide among its {found[2]} threads"
    return (message.strip().splitlines() or ["TVM gave no reason"])[0]


def _too_large(needed: int, allowed: int) -> str:
    return f"the prefill tile wants {needed:,} bytes of shared memory, the target allows {allowed:,}"


def list_pairs(usable: Collection[str] | None = None) -> list[Pair]:
    """Every (target, dtype, head dimension) and whether it runs here, compiles to source only, or is refused.

    ``usable`` names the targets that can run; None asks the machine (without running the probe).
    """
    if usable is None:
        usable = [name for name in NAMES if probe.device_state(_SPECS[name].kind).ready]
    rows = []
    for name in NAMES:
        spec = resolve(name)
        for dtype in (*DTYPES, "bfloat16"):
            rows += [_pair(spec, dtype, head_dim, name in usable) for head_dim in HEAD_DIMS]
    return rows


def _pair(spec: TargetSpec, dtype: str, head_dim: int, usable: bool) -> Pair:
    reason = _refusal(spec, dtype, head_dim)
    if reason is not None:
        return Pair(spec.name, dtype, head_dim, "refused", reason)
    if not usable:
        return Pair(spec.name, dtype, head_dim, "source only", "no usable device here")
    return Pair(spec.name, dtype, head_dim, "runs", "")
