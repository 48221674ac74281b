"""The arguments of the cache's kernels, as TVM 0.27 passes them: name, content, and whether they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftgate.outcome import InfraError

IN, OUT, INOUT = "in", "out", "inout"
PAGES = "pages"
"""Name of the page pool, wherever it is an argument."""


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel."""

    name: str
    kind: str
    """``float`` (the dtype under test), ``lse`` (float32), ``int`` (int32), or ``number`` (no tensor)."""
    dims: tuple[int, ...] = ()
    """Numbers of dimensions that it may have."""
    role: str = IN


def _tensors(kind: str, text: str, dims: int, role: str = IN) -> tuple[Argument, ...]:
    return tuple(Argument(name, kind, (dims,), role) for name in text.split())


def _numbers(text: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, "number") for name in text.split())


_PAGES = Argument(PAGES, "float", (5,))
_PAGE_TABLE = (
    *_tensors("int", "page_indptr page_values", 1),
    Argument("length_info", "int", (1, 2)),
    *_tensors("int", "k_rope_pos_offset q_rope_position", 1),
)
_RESULT = (Argument("output", "float", (3,), OUT), Argument("lse", "lse", (2,), OUT))
_ROPE = _numbers("rotary_mode rope_scale rope_theta sm_scale")
_Q = Argument("q", "float", (3,))
_Q_INDPTR = Argument("q_indptr", "int", (1,))
_POOL = Argument(PAGES, "float", (5,), INOUT)

_PAGED = (_Q, _Q_INDPTR, _PAGES, *_PAGE_TABLE, *_RESULT, *_numbers("causal"), *_ROPE)
_DECODE = (_Q, _PAGES, *_PAGE_TABLE, *_RESULT, *_ROPE)
_IN_CHUNK = (_Q, _Q_INDPTR, *_tensors("float", "k v", 3), *_tensors("int", "kv_indptr q_rope_position", 1))

SIGNATURES: dict[str, tuple[Argument, ...]] = {
    "append": (_POOL, *_tensors("float", "k v", 3), Argument("position_map", "int", (1,))),
    "prefill_ragged": (*_IN_CHUNK, Argument("k_rope_pos_offset", "int", (1,)), *_RESULT, *_numbers("causal"), *_ROPE),
    "prefill_paged": _PAGED,
    "prefill_sliding": _PAGED,
    "decode": _DECODE,
    "decode_sliding": _DECODE,
    "tree_paged": (
        *(_Q, _Q_INDPTR, _PAGES, *_PAGE_TABLE, *_RESULT, *_ROPE),
        *(Argument("tree_indptr", "int", (1,)), Argument("tree_order", "int", (2,))),
    ),
    "tree": (
        *(*_IN_CHUNK, Argument("tree_indptr", "int", (1,)), Argument("tree_order", "int", (2,))),
        *(*_RESULT, *_ROPE),
    ),
    "merge": (
        *(Argument("v", "float", (3,), INOUT), Argument("s", "lse", (2,), INOUT)),
        *(Argument("v_other", "float", (3,)), Argument("s_other", "lse", (2,))),
    ),
    "rotary": (
        *(Argument("qkv", "float", (3,)), Argument("position_map", "int", (1,))),
        *(*_tensors("float", "q k v", 3, OUT), Argument("apply_rope", "number")),
    ),
    "copy_page": (_POOL, *_numbers("src_page_id tgt_page_id copy_length")),
    "compact_copy": (
        _POOL,
        Argument("copy_length_indptr", "int", (1,)),
        Argument("copy_src_dst_pos", "int", (2,)),
        *_numbers("batch_size"),
    ),
}
"""By the kernel's name at the seam. Paged, ragged and tree kernels attend; see `driftgate.kernels.references`."""

LONGROPE = (*SIGNATURES["rotary"][:-1], Argument("ext_factors", "lse", (1,)))
"""Rotary's arguments where the cache was given extension factors."""


def check(kernel: str, args: tuple[Any, ...]) -> tuple[Argument, ...]:
    """The signature that ``args`` of a call of ``kernel`` fit. Raises InfraError that names the argument that does not.

    The library decides what it calls a kernel with: another TVM may pass other arguments, and a reference that took
    them for its own would say nonsense.
    """
    signature = SIGNATURES[kernel]
    if kernel == "rotary" and len(args) == len(LONGROPE) and hasattr(args[-1], "shape"):
        signature = LONGROPE
    if len(args) != len(signature):
        names = ", ".join(argument.name for argument in signature)
        raise InfraError(
            f"{kernel} is called with {len(args)} arguments, but its reference takes {len(signature)}: {names}"
        )
    for i, (argument, value) in enumerate(zip(signature, args, strict=True)):
        if reason := _misfit(argument, value):
            raise InfraError(f"{kernel} does not fit its reference: argument {i} ({argument.name}) {reason}")
    return signature


_DTYPES = {"float": ("float32", "float16"), "lse": ("float32",), "int": ("int32",)}


def _misfit(argument: Argument, value: Any) -> str:
    is_tensor = hasattr(value, "shape")
    if argument.kind == "number":
        return "is a tensor, not a number" if is_tensor else ""
    if not is_tensor:
        return f"is {type(value).__name__}, not a tensor"
    if str(value.dtype) not in _DTYPES[argument.kind]:
        return f"has dtype {value.dtype}, not {' or '.join(_DTYPES[argument.kind])}"
    if len(value.shape) not in argument.dims:
        return f"has {len(value.shape)} dimensions, not {' or '.join(map(str, argument.dims))}"
    return ""
