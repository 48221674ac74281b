"""What a device really does: the runtime and device that are there, and a kernel whose answer is known.

A paravirtual GPU can accept every call and return zeros, so that two runs "agree" bitwise. Nothing measured on a GPU
is believed before this kernel has given the right answer on it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

THREADS = 128
"""Threads per block: several warps at any warp width up to 64, and within every target's limit."""
BLOCKS = 4
_SIZE = BLOCKS * THREADS
_UNWRITTEN = -0x5A5A5A5B
"""What the outputs hold before the launch, so that a kernel that never ran is told apart from one that wrote zeros."""

_LABELS = {"llvm": "LLVM", "metal": "Metal", "cuda": "CUDA", "opencl": "OpenCL", "webgpu": "WebGPU"}


@dataclass(frozen=True)
class ProbeResult:
    """Whether the device gave the known answer, and in one line what it gave instead."""

    ok: bool
    detail: str


class Status(Enum):
    """Why a target can or cannot run here. The value is the word ``driftgate doctor`` prints."""

    READY = "ready"
    NO_RUNTIME = "no runtime"
    BROKEN_RUNTIME = "runtime does not load"
    NO_DEVICE = "no device"
    NO_COMPILER = "no kernel compiler"


@dataclass(frozen=True)
class DeviceState:
    """One device kind on this machine: its status, and in one line the reason."""

    kind: str
    status: Status
    detail: str

    @property
    def ready(self) -> bool:
        return self.status is Status.READY


def device_state(kind: str) -> DeviceState:
    """Whether ``kind`` can run here: runtime in this TVM wheel, library loaded, device present, kernels compilable.

    Asks the machine each time and runs no kernel. Takes about 1 s at the first call of a process (imports TVM).
    """
    import tvm

    label = _LABELS.get(kind, kind)
    if kind == "llvm":
        if tvm.runtime.enabled("llvm"):
            return DeviceState(kind, Status.READY, "this machine's CPU")
        return DeviceState(kind, Status.NO_RUNTIME, "this TVM has no LLVM (TVM_USE_RUNTIME_LIB=1 leaves it out)")
    if not _has_device_api(kind):
        broken = _why_library_does_not_load(kind)
        if broken:
            return DeviceState(kind, Status.BROKEN_RUNTIME, f"{label} runtime library could not be loaded: {broken}")
    if not _has_device_api(kind):  # asked again: loading the library by hand registers the runtime
        return DeviceState(kind, Status.NO_RUNTIME, f"this TVM wheel has no {label} runtime (it compiles to source)")
    device = tvm.device(kind, 0)
    if not device.exist:
        return DeviceState(kind, Status.NO_DEVICE, f"no {label} device on this machine")
    if kind == "cuda" and cuda_compiler() is None:
        return DeviceState(kind, Status.NO_COMPILER, "CUDA kernels cannot be compiled: neither cuda-bindings nor nvcc")
    return DeviceState(kind, Status.READY, str(device.device_name or f"{label} device 0"))


def cuda_compiler() -> str | None:
    """The compiler TVM can call for CUDA kernels, ``nvrtc`` or ``nvcc``; None if there is none.

    TVM itself asks for nvrtc unless ``TVM_CUDA_COMPILE_MODE`` says otherwise; what the user set there is kept.
    """
    present = {"nvrtc": _has_nvrtc(), "nvcc": _has_nvcc()}
    asked = os.environ.get("TVM_CUDA_COMPILE_MODE", "").lower()
    return next((name for name in ([asked] if asked else present) if present.get(name)), None)


def _has_nvrtc() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


def _has_nvcc() -> bool:
    # TVM looks in CUDA_PATH, then on PATH, then at the toolkit's standard place.
    roots = [os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    return shutil.which("nvcc") is not None or any(root and (Path(root) / "bin" / "nvcc").exists() for root in roots)


def _has_device_api(kind: str) -> bool:
    import tvm

    return tvm.get_global_func(f"device_api.{kind}", allow_missing=True) is not None


def _why_library_does_not_load(kind: str) -> str | None:
    """Why TVM's runtime library for ``kind`` does not load; None if the wheel has none, or if it loads now.

    TVM swallows this error at import, so the library is loaded again to learn it.
    """
    import tvm

    names = [f"libtvm_runtime_{kind}.so", f"libtvm_runtime_{kind}.dylib", f"tvm_runtime_{kind}.dll"]
    paths = [folder / name for folder in tvm.libinfo.package_lib_paths() for name in names]
    for path in (path for path in paths if path.is_file()):
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            return explain_load_error(str(error))
    return None


def explain_load_error(message: str) -> str:
    """The dynamic loader's ``message`` in one short line: the library that is missing, and what it belongs to."""
    found = re.search(r"(?:^|[ /])(lib[\w.+-]+): cannot open shared object", message) or re.search(
        r"Library not loaded: \S*?([\w.+-]+)(?:\s|$)", message
    )
    if found is None:
        return (message.strip().splitlines() or ["no reason given"])[0]
    hints = {"libcuda.so": " (no NVIDIA driver here)", "libcudart.so": " (install the CUDA runtime of that version)"}
    hint = next((text for prefix, text in hints.items() if found[1].startswith(prefix)), "")
    return f"{found[1]} missing{hint}"


def inputs() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The kernel's inputs: int32 and float32. The floats are small multiples of 1/4, so that every result is exact."""
    import numpy as np

    index = np.arange(_SIZE, dtype=np.int32)
    return (index * 37 + 11) % 1009, ((index * 53) % 251 - 125).astype(np.float32) / np.float32(4)


def expected() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The known answer, by NumPy: two exchanges through shared memory with threads of other warps."""
    import numpy as np

    ints, floats = (array.reshape(BLOCKS, THREADS) for array in inputs())
    thread = np.arange(THREADS, dtype=np.int32)
    partner = (thread + THREADS // 2) % THREADS
    stage_i = ints[:, partner] * 31 + (ints ^ thread)
    stage_f = floats[:, partner] * np.float32(0.5) + floats
    out_i = stage_i[:, ::-1] - stage_i
    out_f = stage_f[:, ::-1] * np.float32(3) + stage_f
    return out_i.reshape(_SIZE).astype(np.int32), out_f.reshape(_SIZE).astype(np.float32)


def compare(got_i: np.ndarray[Any, Any], got_f: np.ndarray[Any, Any]) -> ProbeResult:
    """Judge a device's two outputs against the known answer, bitwise; degenerate results are named first."""
    want_i, want_f = expected()
    for name, got, want in (("integer", got_i, want_i), ("float", got_f, want_f)):
        if got.shape != want.shape or got.dtype != want.dtype:
            return ProbeResult(False, f"{name} result is {got.dtype}{got.shape}, expected {want.dtype}{want.shape}")
        if not got.any():
            return ProbeResult(False, f"device returned zeros for all {got.size} {name} results")
        if (got == _UNWRITTEN).all():
            return ProbeResult(False, f"the kernel did not run: no {name} result was written")
        if (got == got[0]).all():
            return ProbeResult(False, f"device returned {got[0]} for all {got.size} {name} results")
        wrong = got != want  # a NaN differs from every number
        if wrong.any():
            first = int(wrong.argmax())
            return ProbeResult(
                False,
                f"{int(wrong.sum())} of {got.size} {name} results wrong, first at {first}: "
                f"got {got[first]}, expected {want[first]}",
            )
    return ProbeResult(True, f"{2 * _SIZE} known answers right")


def run(target: Any, device: Any) -> ProbeResult:
    """Compile the known-answer kernel for the TVM ``target``, run it on the TVM ``device``, and judge the answer.

    Never raises for what the compiler or the device does: that is a failed probe. A device that hangs hangs this call.
    """
    import numpy as np
    import tvm

    try:
        function = tvm.compile(kernel(target), target=target)["probe"]
        given = [tvm.runtime.tensor(array, device) for array in inputs()]
        out = [tvm.runtime.tensor(np.full(_SIZE, _UNWRITTEN, dtype), device) for dtype in ("int32", "float32")]
        function(*given, *out)
        device.sync()
        got_i, got_f = (tensor.numpy() for tensor in out)
    except Exception as error:  # TVM raises many types, and each of them is the answer "it does not run here"
        return ProbeResult(False, f"the kernel did not compile or run: {type(error).__name__}: {_last_line(error)}")
    return compare(got_i, got_f)


def source(target: Any) -> str:
    """The device source of the known-answer kernel for a TVM GPU ``target``; needs no device."""
    import tvm

    return str(tvm.compile(kernel(target), target=target).mod.imports[0].inspect_source())


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def kernel(target: Any) -> Any:
    """The known-answer kernel as an IRModule: thread blocks for a GPU, a parallel loop of blocks for a CPU."""
    import tvm

    function = _cpu_kernel() if target.kind.name == "llvm" else _gpu_kernel()
    return tvm.IRModule({"probe": function.with_attr({"global_symbol": "probe", "tirx.is_scheduled": True})})


# mypy cannot read TVMScript: the bodies below are parsed by TVM, never run as Python.
def _gpu_kernel() -> Any:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator,unused-ignore]
    def probe(a: T.handle, b: T.handle, c: T.handle, d: T.handle):
        in_i = T.match_buffer(a, (_SIZE,), "int32")
        in_f = T.match_buffer(b, (_SIZE,), "float32")
        out_i = T.match_buffer(c, (_SIZE,), "int32")
        out_f = T.match_buffer(d, (_SIZE,), "float32")
        for block in T.thread_binding(BLOCKS, thread="blockIdx.x"):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                with T.sblock("probe"):
                    bx, tx = T.axis.remap("SS", [block, thread])
                    T.reads()
                    T.writes()
                    tile_i = T.sblock_alloc_buffer((THREADS,), "int32", scope="shared")
                    tile_f = T.sblock_alloc_buffer((THREADS,), "float32", scope="shared")
                    stage_i = T.sblock_alloc_buffer((THREADS,), "int32", scope="shared")
                    stage_f = T.sblock_alloc_buffer((THREADS,), "float32", scope="shared")
                    tile_i[tx] = in_i[bx * THREADS + tx]
                    tile_f[tx] = in_f[bx * THREADS + tx]
                    T.tvm_storage_sync("shared")
                    stage_i[tx] = tile_i[(tx + THREADS // 2) % THREADS] * 31 + (tile_i[tx] ^ tx)
                    stage_f[tx] = tile_f[(tx + THREADS // 2) % THREADS] * T.float32(0.5) + tile_f[tx]
                    T.tvm_storage_sync("shared")
                    out_i[bx * THREADS + tx] = stage_i[THREADS - 1 - tx] - stage_i[tx]
                    out_f[bx * THREADS + tx] = stage_f[THREADS - 1 - tx] * T.float32(3) + stage_f[tx]

    return probe


def _cpu_kernel() -> Any:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator,unused-ignore]
    def probe(a: T.handle, b: T.handle, c: T.handle, d: T.handle):
        in_i = T.match_buffer(a, (_SIZE,), "int32")
        in_f = T.match_buffer(b, (_SIZE,), "float32")
        out_i = T.match_buffer(c, (_SIZE,), "int32")
        out_f = T.match_buffer(d, (_SIZE,), "float32")
        for block in T.parallel(BLOCKS):
            with T.sblock("probe"):
                bx = T.axis.spatial(BLOCKS, block)
                T.reads()
                T.writes()
                stage_i = T.sblock_alloc_buffer((THREADS,), "int32")
                stage_f = T.sblock_alloc_buffer((THREADS,), "float32")
                for t in T.serial(THREADS):
                    stage_i[t] = in_i[bx * THREADS + (t + THREADS // 2) % THREADS] * 31 + (in_i[bx * THREADS + t] ^ t)
                    stage_f[t] = (
                        in_f[bx * THREADS + (t + THREADS // 2) % THREADS] * T.float32(0.5) + in_f[bx * THREADS + t]
                    )
                for t in T.serial(THREADS):
                    out_i[bx * THREADS + t] = stage_i[THREADS - 1 - t] - stage_i[t]
                    out_f[bx * THREADS + t] = stage_f[THREADS - 1 - t] * T.float32(3) + stage_f[t]

    return probe
