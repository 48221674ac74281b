"""The kernels of TVM's paged KV cache, by the names that reports use, and how the installed TVM builds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driftgate.outcome import UsageError
from driftgate.target import TargetSpec, to_tvm

PAGE = 16
"""Tokens of a page: the only size that TVM's kernels take."""
WINDOW = 64
"""Sliding window in tokens that the sliding prefill kernel is built with."""
THETA = 10000.0
MLA_ROPE_DIM = 64
"""Dimensions of an MLA key that carry positions; head_dim counts the latent ones."""


@dataclass(frozen=True)
class Shape:
    """What one kernel is built for."""

    head_dim: int
    heads: int
    kv_heads: int
    dtype: str


Builder = Callable[[Any, Shape, Any], Any]

_BUILDERS: dict[str, Builder] = {
    "merge": lambda m, s, t: m._merge_state_inplace(s.heads, s.head_dim, s.dtype, t),
    "decode": lambda m, s, t: m._attention_decode(s.kv_heads, s.heads, s.head_dim, s.dtype, False, {}, t),
    "decode_sliding": lambda m, s, t: m._attention_decode(s.kv_heads, s.heads, s.head_dim, s.dtype, True, {}, t),
    "prefill_paged": lambda m, s, t: m._attention_prefill(s.kv_heads, s.heads, s.head_dim, s.dtype, False, {}, t),
    "prefill_sliding": lambda m, s, t: m._attention_prefill(
        s.kv_heads, s.heads, s.head_dim, s.dtype, True, {}, t, sliding_window_size=WINDOW
    ),
    "prefill_ragged": lambda m, s, t: m._attention_prefill_ragged(
        s.kv_heads, s.heads, s.head_dim, s.head_dim, s.dtype, {}, t
    ),
    "tree": lambda m, s, t: m.tree_attn(s.kv_heads, s.heads, s.head_dim, s.dtype, {}, t),
    "tree_paged": lambda m, s, t: m.tree_attn_with_paged_kv_cache(s.kv_heads, s.heads, s.head_dim, s.dtype, {}, t),
    "append": lambda m, s, t: m._kv_cache_transpose_append(s.kv_heads, s.head_dim, s.dtype),
    "copy_page": lambda m, s, t: m._copy_single_page(s.kv_heads, PAGE, s.head_dim, s.dtype, t),
    "compact_copy": lambda m, s, t: m._compact_kv_copy(s.kv_heads, s.head_dim, s.dtype, t),
    "rotary": lambda m, s, t: m.llama_rope_with_position_map(
        THETA, 1.0, s.head_dim, s.heads, s.kv_heads, s.dtype, {}, s.head_dim
    ),
    "prefill_mla": lambda m, s, t: m._attention_prefill_mla(s.heads, s.head_dim, MLA_ROPE_DIM, s.dtype, False, t),
    "append_mla": lambda m, s, t: m._kv_cache_transpose_append_mla(s.head_dim + MLA_ROPE_DIM, s.dtype),
    "copy_page_mla": lambda m, s, t: m._copy_single_page_mla(PAGE, s.head_dim + MLA_ROPE_DIM, s.dtype, t),
}

KERNELS = tuple(_BUILDERS)
"""Every kernel that can be named. ``*_mla`` are those of multi-head latent attention."""


def source_of(name: str) -> Any:
    """The function of TVM that builds kernel ``name``."""
    import inspect

    from tvm.relax.frontend.nn.llm import kv_cache

    (builder,) = (n for n in inspect.getclosurevars(_BUILDERS[name]).unbound if hasattr(kv_cache, n))
    return getattr(kv_cache, builder)


def check_kernel(name: str) -> None:
    """Raise UsageError unless ``name`` is a kernel of the catalog."""
    if name not in _BUILDERS:
        raise UsageError(f"unknown kernel {name!r}: there are {', '.join(KERNELS)}")


def build(name: str, shape: Shape, spec: TargetSpec) -> Any:
    """TVM's PrimFunc of kernel ``name``. Raises UsageError, with TVM's reason, where TVM does not build it."""
    from tvm.relax.frontend.nn.llm import kv_cache

    from driftgate.runtime import first_line

    check_kernel(name)
    try:
        return _BUILDERS[name](kv_cache, shape, to_tvm(spec))
    except AttributeError as error:
        raise UsageError(f"kernel {name}: this TVM has none, or under another name ({first_line(error)})") from error
    except Exception as error:
        raise UsageError(
            f"kernel {name} at head_dim {shape.head_dim}, {shape.heads} heads, {shape.kv_heads} KV heads, "
            f"{shape.dtype} is not built for {spec.name}: {first_line(error)}"
        ) from error
