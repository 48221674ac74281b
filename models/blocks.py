"""Building blocks that the Gemma families share, as plain Relax operators.

Plain operators rather than tensor expressions: what exists as a PrimFunc before legalization is taken for
a kernel under test and is left unscheduled.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from models.config import Rope


class Norm(nn.Module):
    """RMS norm with weight ``w`` of shape ``(dim,)``; Gemma 1 to 3 multiply by ``1 + w``, Gemma 3n and 4 by ``w``."""

    def __init__(self, dim: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.weight = nn.Parameter((dim,))

    def forward(self, x: Tensor) -> Tensor:
        # In float32 whatever the dtype of x, as the published equation has it.
        weight = self.weight.astype("float32")
        scaled = normalized(x.astype("float32"), self.eps) * (weight + self.offset if self.offset else weight)
        return scaled.astype(x.dtype)


class Mlp(nn.Module):
    """``Wd(gelu(Wg x) Wu x)`` with the tanh form of GELU."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(op.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


def normalized(x: Tensor, eps: float) -> Tensor:
    """``x (mean(x^2) + eps)^(-1/2)`` over the last axis: an RMS norm without a weight. ``x`` is float32."""
    mean_square = op.sum(x * x, axis=-1, keepdims=True) * (1.0 / x.shape[-1])
    return x * _unary(relax.op.rsqrt, mean_square + eps)


def unscaled_norm(x: Tensor, eps: float) -> Tensor:
    """RMS norm without a weight, computed in float32, returned in the dtype of ``x``."""
    return normalized(x.astype("float32"), eps).astype(x.dtype)


def inverse_frequencies(dim: int, rope: Rope) -> np.ndarray:
    """RoPE frequencies ``theta^(-2i/dim) / factor``, float32 ``(dim / 2,)``; zero after the share that is turned.

    A zero frequency turns a pair by no angle at any position: that is "proportional" RoPE with a partial factor.
    """
    frequencies = 1.0 / np.float32(rope.theta) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    frequencies[int(rope.share * dim // 2) :] = 0.0
    return (frequencies / np.float32(rope.factor)).astype(np.float32)


def rotations(
    positions: Tensor, dims: Mapping[str, int], ropes: Mapping[str, Rope], dtype: str
) -> dict[str, tuple[Tensor, Tensor]]:
    """Cosine and sine of ``positions`` (``(n,)`` int32) for each layer type of ``dims``, see ``rotation``."""
    return {kind: rotation(positions, inverse_frequencies(dim, ropes[kind]), dtype) for kind, dim in dims.items()}


def rotation(positions: Tensor, frequencies: np.ndarray, dtype: str) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each ``(1, n, 1, dim / 2)``, of ``positions`` (``(n,)`` int32) times ``frequencies``."""
    count = positions.shape[0]
    table = Tensor.from_const(frequencies.reshape(1, 1, 1, -1))
    angle = op.reshape(positions.astype("float32"), (1, count, 1, 1)) * table
    return _unary(relax.op.cos, angle).astype(dtype), _unary(relax.op.sin, angle).astype(dtype)


def rotate(x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the half-split pairs ``(i, i + dim / 2)`` of ``x`` (``(1, n, heads, dim)``) by the given rotation."""
    cos, sin = cos_sin
    half = x.shape[-1] // 2
    low, high = part(x, -1, 0, half), part(x, -1, half, 2 * half)
    return op.concat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def pad_heads(x: Tensor, width: int) -> Tensor:
    """Zero-pad the last axis of ``x`` (``(1, n, heads, dim)``) to ``width``, the head_dim of the one cache."""
    missing = width - x.shape[-1]
    return op.pad(x, [0, 0, 0, 0, 0, 0, 0, missing]) if missing else x


def softcap(x: Tensor, cap: float) -> Tensor:
    """``cap tanh(x / cap)``, element-wise."""
    return op.tanh(x * (1.0 / cap)) * cap


class Embedding(nn.Module):
    """A table ``(rows, width)``. A row out of range is clipped: TVM's default would read past the table instead."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((rows, width))

    def forward(self, ids: Tensor) -> Tensor:
        return taken(self.weight, ids, axis=0)


def taken(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """``x`` at ``indices`` (``(n,)`` int32) along ``axis``; what is out of range is clipped."""
    return nn.op.wrap_nested(relax.op.take(x._expr, indices._expr, axis, mode="clip"), name="taken")


def part(x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """``x`` from ``begin`` to ``end`` (exclusive) along ``axis``; unlike a split it fuses with what reads it."""
    return nn.op.wrap_nested(relax.op.strided_slice(x._expr, [axis % x.ndim], [begin], [end]), name="part")


def _unary(operator, x: Tensor) -> Tensor:
    return nn.op.wrap_nested(operator(x._expr), name=operator.__name__)
