"""Check L: what a kernel takes of the device that the device, or its language, may not have.

The threads and the shared memory of a block are compared with the target's figures; the rest is declared here, with
where it is from. Registers, and what a device compiler adds, are not known before it compiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from driftgate.outcome import UsageError
from driftgate.races.kernel import (
    LOCAL,
    SHARED,
    Buffer,
    Const,
    Expr,
    Kernel,
    Load,
    Ramp,
    Store,
    bytes_of,
    element_of,
    expressions,
    lanes_of,
    statements,
    walk,
)
from driftgate.target import TargetSpec


@dataclass(frozen=True)
class Excess:
    """More of something than is allowed."""

    what: str
    has: int
    allowed: int
    source: str
    """Who says what is allowed."""
    portable: bool = False
    """Only what every device grants is exceeded: devices with more exist, but have to be asked for it."""

    @property
    def text(self) -> str:
        """One line."""
        verb = "every device grants" if self.portable else "allowed are"
        return f"{self.what}: {self.has:,}, {verb} {self.allowed:,} ({self.source})"


@dataclass(frozen=True)
class Bound:
    """A figure, and a sentence or two on where it is from."""

    allowed: int
    source: str


VECTOR_LANES: dict[str, tuple[tuple[int, ...], str]] = {
    "metal": ((2, 3, 4), "Metal Shading Language Specification, vector data types: 2, 3 or 4 components"),
    "opencl": ((2, 3, 4, 8, 16), "OpenCL C specification, built-in vector data types: 2, 3, 4, 8 or 16 elements"),
    "webgpu": ((2, 3, 4), "WGSL specification, vector types: 2, 3 or 4 components"),
}
"""Lanes that a vector may have. CUDA has no such rule: its vectors are structures, the width of an access counts."""

ACCESS_BYTES = {
    "cuda": Bound(16, "CUDA C++ Programming Guide, device memory accesses: words of 1, 2, 4, 8 or 16 bytes"),
}
"""Bytes that one thread moves in one access to shared or device memory."""

STATIC_SHARED = {
    "cuda": Bound(49152, "CUDA C++ Programming Guide: above 48 KiB only dynamic shared memory; TVM declares it static"),
}
"""Shared memory, whatever the target's figure."""

POINTERS = {
    "metal": Bound(31, "Metal feature set tables: 31 entries of the buffer argument table; TVM's scalars take one"),
    "webgpu": Bound(10, "TVM's web runtime asks the device for maxStorageBuffersPerShaderStage 10"),
}
"""Buffers that a kernel is given."""

PARAMETER_BYTES = {
    "cuda": Bound(4096, "CUDA C++ Programming Guide: 4 KB of parameters before CUDA 12.1"),
    "opencl": Bound(1024, "OpenCL specification: CL_DEVICE_MAX_PARAMETER_SIZE is at least 1024"),
}
"""Bytes of all parameters. Both figures are what every device and version grants."""

BLOCK_AXES = {
    "cuda": (Bound(1024, "CUDA C++ Programming Guide, technical specifications"),) * 2
    + (Bound(64, "CUDA C++ Programming Guide, technical specifications"),),
    # TVM's web runtime asks for more invocations, not for larger axes, so the defaults hold.
    "webgpu": (Bound(256, "WebGPU specification, default of maxComputeWorkgroupSizeX and Y"),) * 2
    + (Bound(64, "WebGPU specification, default of maxComputeWorkgroupSizeZ"),),
}
"""Threads along x, y and z."""

GRID_AXES: dict[str, tuple[Bound | None, Bound, Bound]] = {
    "cuda": (
        Bound(2**31 - 1, "CUDA C++ Programming Guide, technical specifications"),
        Bound(65535, "CUDA C++ Programming Guide, technical specifications"),
        Bound(65535, "CUDA C++ Programming Guide, technical specifications"),
    ),
    "webgpu": (
        None,  # TVM's web runtime folds what is above 65535 into z
        Bound(65535, "WebGPU specification, default of maxComputeWorkgroupsPerDimension"),
        Bound(1, "TVM's web runtime keeps blockIdx.z for itself"),
    ),
}
"""Blocks along x, y and z; a grid that depends on the launch is not compared."""

DEFAULTS = {
    "webgpu": {
        "threads of a block": Bound(256, "WebGPU specification, default of maxComputeInvocationsPerWorkgroup"),
        "bytes of shared memory": Bound(16384, "WebGPU specification, default of maxComputeWorkgroupStorageSize"),
        "buffers": Bound(8, "WebGPU specification, default of maxStorageBuffersPerShaderStage"),
    },
}
"""What a device grants that is not asked for more: below TVM's figures for the target."""


def limits(kernel: Kernel, spec: TargetSpec) -> tuple[Excess, ...]:
    """What ``kernel``, lowered for ``spec``, has too much of; empty if nothing.

    Where the target's own figure is kept and only a default of `DEFAULTS` or of `PARAMETER_BYTES` is not, the excess
    is ``portable``. Shared memory is the sum of the arrays, without what a compiler adds to align them.
    Raises UsageError for a target that is no GPU.
    """
    if not spec.is_gpu:
        raise UsageError(f"target {spec.name} has no blocks whose limits could be exceeded")
    return (*_sizes(kernel, spec), *_axes(kernel, spec), *_parameters(kernel, spec), *_vectors(kernel, spec))


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of all shared arrays of a block; views of the same memory count once."""
    return sum(s.bytes or 0 for s in {b.storage: None for b in kernel.buffers} if s.scope == SHARED)


def _sizes(kernel: Kernel, spec: TargetSpec) -> Iterator[Excess]:
    figures = f"the figure of target {spec.name}"
    has = {
        "threads of a block": (kernel.threads, Bound(spec.max_threads_per_block, figures)),
        "bytes of shared memory": (shared_bytes(kernel), Bound(spec.max_shared_memory_bytes, figures)),
        "buffers": (len(kernel.pointers) + (spec.kind == "metal" and bool(kernel.scalars)), POINTERS.get(spec.kind)),
    }
    static = STATIC_SHARED.get(spec.kind)
    if static and static.allowed < spec.max_shared_memory_bytes:
        has["bytes of shared memory"] = (shared_bytes(kernel), static)
    for what, (count, bound) in has.items():
        default = DEFAULTS.get(spec.kind, {}).get(what)
        if bound and count > bound.allowed:
            yield Excess(what, count, bound.allowed, bound.source)
        elif default and count > default.allowed:
            yield Excess(what, count, default.allowed, default.source, portable=True)


def _axes(kernel: Kernel, spec: TargetSpec) -> Iterator[Excess]:
    block = [(var.name, extent) for var, extent in kernel.block]
    grid = [(var.name, int(extent.value)) for var, extent in kernel.grid if isinstance(extent, Const)]
    for extents, bounds, what in ((block, BLOCK_AXES, "threads"), (grid, GRID_AXES, "blocks")):
        for name, extent in extents:
            bound = bounds[spec.kind]["xyz".index(name[-1])] if spec.kind in bounds else None
            if bound and extent > bound.allowed:
                yield Excess(f"{what} along {name[-1]}", extent, bound.allowed, bound.source)


def _parameters(kernel: Kernel, spec: TargetSpec) -> Iterator[Excess]:
    bound = PARAMETER_BYTES.get(spec.kind)
    size = 8 * len(kernel.pointers) + sum(bytes_of(scalar.dtype) for scalar in kernel.scalars)
    if bound and size > bound.allowed:
        yield Excess("bytes of parameters", size, bound.allowed, bound.source, portable=True)


def _vectors(kernel: Kernel, spec: TargetSpec) -> Iterator[Excess]:
    found: dict[tuple[str, int], Excess] = {}
    lanes_allowed, lanes_source = VECTOR_LANES.get(spec.kind, ((), ""))
    word = ACCESS_BYTES.get(spec.kind)
    for buffer, lanes, contiguous in _widths(kernel):
        if lanes > 1 and lanes_allowed and lanes not in lanes_allowed:
            # The widest vector below it, as what the kernel would have to be content with.
            allowed = max((n for n in lanes_allowed if n < lanes), default=1)
            what = f"lanes of a {element_of(buffer.dtype)} vector of {buffer.name}"
            found.setdefault((what, lanes), Excess(what, lanes, allowed, lanes_source))
        size = contiguous * bytes_of(buffer.dtype)
        if word and buffer.scope != LOCAL and size > word.allowed:
            what = f"bytes of one access to {buffer.name}"
            found.setdefault((what, size), Excess(what, size, word.allowed, word.source))
    yield from found.values()


def _widths(kernel: Kernel) -> Iterator[tuple[Buffer, int, int]]:
    """Every buffer and access: its lanes, and those that lie next to one another."""
    for buffer in kernel.buffers:
        yield buffer, lanes_of(buffer.dtype), lanes_of(buffer.dtype)
    for stmt in statements(kernel.body):
        if isinstance(stmt, Store):
            yield stmt.buffer, *_width(stmt.buffer, stmt.index)
        for expr in expressions(stmt):
            for part in walk(expr):
                if isinstance(part, Load):
                    yield part.buffer, *_width(part.buffer, part.index)


def _width(buffer: Buffer, index: Expr) -> tuple[int, int]:
    own, several = lanes_of(buffer.dtype), lanes_of(index.dtype)
    dense = isinstance(index, Ramp) and isinstance(index.stride, Const) and index.stride.value == 1
    return own * several, own * (several if dense else 1)
