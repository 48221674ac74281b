"""What the four languages that TVM generates write differently: types, barriers, thread indices, declarations."""

from __future__ import annotations

import re

KINDS = ("metal", "cuda", "opencl", "webgpu")
"""Kinds of targets whose source is read."""

BARRIERS = {
    "metal": re.compile(r"threadgroup_barrier\(.*\);"),
    "cuda": re.compile(r"__syncthreads\(\);"),
    "opencl": re.compile(r"(?:work_group_)?barrier\(.*\);"),
    "webgpu": re.compile(r"(?:workgroup|storage)Barrier\(\);"),
}
_DEVICE_FENCE = {
    "metal": "mem_flags::mem_device",
    "cuda": "__syncthreads",
    "opencl": "CLK_GLOBAL_MEM_FENCE",
    "webgpu": "storageBarrier",
}
ENTRY = {
    "metal": re.compile(r"\bkernel void (\w+)\("),
    "cuda": re.compile(r"\b__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\("),
    "opencl": re.compile(r"\b__kernel void (\w+)\("),
    "webgpu": re.compile(r"\bfn (\w+)\("),
}
_ELEMENTS = {
    "half": 2, "float": 4, "double": 8, "bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4,
    "long": 8, "ulong": 8, "longlong": 8, "ulonglong": 8, "f16": 2, "f32": 4, "i32": 4, "u32": 4,
}  # fmt: skip
_QUALIFIER = r"(?:__shared__|threadgroup|thread|__local|volatile|alignas\(\d+\))"
_ARRAY = re.compile(rf"((?:{_QUALIFIER} )*)(\w+) (\w+)\[(\d+)\];")
_WGSL_ARRAY = re.compile(r"var(<workgroup>)? ?(\w+) : array<(.+), (\d+)>;")
_POINTER = re.compile(r"(\w+)\s*\*\s*(?:__restrict__|restrict)?\s*(\w+)")
_WGSL_POINTER = re.compile(r"var<storage, \w+> (\w+) : array<(.+)>;")
_SHARED_WORDS = ("__shared__", "threadgroup ", "__local", "<workgroup>")


def orders_device_memory(barrier: str, kind: str) -> bool:
    """Whether the language says that the barrier written as ``barrier`` orders accesses to device memory, too."""
    return _DEVICE_FENCE[kind] in barrier


def bytes_of_type(name: str) -> int | None:
    """Bytes of one value of a type such as ``half4``, ``int64_t`` or ``vec4<f16>``; None for an unknown one."""
    vector = re.fullmatch(r"vec([234])<(\w+)>", name)
    if vector:
        element, lanes = vector[2], int(vector[1])
    else:
        found = re.fullmatch(r"u?int(8|16|32|64)_t", name)
        if found:
            return int(found[1]) // 8
        if name in _ELEMENTS:
            return _ELEMENTS[name]
        found = re.fullmatch(r"([a-z]+)(2|3|4|8|16)", name)
        if not found:
            return None
        element, lanes = found[1], int(found[2])
    return None if element not in _ELEMENTS else _ELEMENTS[element] * lanes


def array(text: str) -> tuple[str, str, int, bool] | None:
    """Name, element type, length and whether it is the block's, of the array that the line ``text`` declares."""
    shared = any(word in text for word in _SHARED_WORDS)
    if found := _WGSL_ARRAY.fullmatch(text):
        return found[2], found[3], int(found[4]), shared
    if found := _ARRAY.fullmatch(text):
        return found[3], found[2], int(found[4]), shared
    return None


def pointers(signature: str, kind: str) -> list[tuple[str, str]]:
    """Name and element type of the arguments in device memory, in order; for WGSL from the text above the function."""
    if kind == "webgpu":
        return [(name, element) for name, element in _WGSL_POINTER.findall(signature)]
    return [(name, element) for element, name in _POINTER.findall(signature)]


def thread_axes(text: str) -> frozenset[str]:
    """The axes (``x``, ``y``, ``z``) of the thread indices that ``text`` names."""
    named = set(re.findall(r"\bthreadIdx\.([xyz])", text))
    named |= {"xyz"[int(n)] for n in re.findall(r"\bget_local_id\((\d)\)", text)}
    if re.search(r"\bthreadIdx\b(?!\.)", text):  # Metal's index where a block has one dimension
        named.add("x")
    return frozenset(named)


def pinned_axes(condition: str) -> frozenset[str]:
    """The thread axes of which ``condition`` leaves one index: conjuncts ``index == constant`` and ``index < 1``."""
    if "||" in condition:
        return frozenset()
    pinned: frozenset[str] = frozenset()
    for part in condition.split("&&"):
        plain = re.sub(r"\((?:int|long|uint|int64_t|bool)\)|\bconvert_(?:int|long)\b|\bi32\b|\s", "", part)
        plain = re.sub(r"\bget_local_id\((\d)\)", r"get_local_id\1", plain).replace("(", "").replace(")", "")
        plain = re.sub(r"get_local_id(\d)", lambda found: f"threadIdx.{'xyz'[int(found[1])]}", plain)
        if re.fullmatch(r"threadIdx(?:\.[xyz])?(?:==\d+|<1|<=0)[iuL]?", plain):
            pinned |= thread_axes(plain)
    return pinned
