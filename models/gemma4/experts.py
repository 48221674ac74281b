"""The mixture of experts of Gemma 4 26B-A4B: a router that picks the top k, and experts that are all computed.

Every expert is computed for every token, and weighted by zero where it was not picked: in a chunk of some dozen tokens
nearly all of them are picked by some token, and no kernel that gathers has to be trusted.
"""

from __future__ import annotations

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from models.blocks import part, unscaled_norm
from models.gemma4.config import Gemma4Config


class Router(nn.Module):
    """``s = Wr(N_1(x) scale / sqrt(D))``, ``w = topk(softmax(s))``, ``w / sum(w)``, times each expert's own scale."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        self.config = config
        self.proj = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.scale = nn.Parameter((config.hidden_size,))
        self.per_expert_scale = nn.Parameter((config.num_experts,))

    def forward(self, x: Tensor) -> Tensor:
        """``(1, n, D)`` to the weight of each expert, ``(1, n, experts)``; zero for those not picked."""
        config, count = self.config, x.shape[1]
        scaled = unscaled_norm(x, config.rms_norm_eps) * self.scale * config.hidden_size**-0.5
        shares = op.softmax(self.proj(scaled).astype("float32"), axis=-1)
        # Rank by counting those ahead: no sort, which every target would do in another way.
        one = op.reshape(shares, (1, count, config.num_experts, 1))
        other = op.reshape(shares, (1, count, 1, config.num_experts))
        ahead = op.sum(_greater(other, one).astype("float32"), axis=-1)
        picked = shares * _less(ahead, config.top_k_experts - 0.5).astype("float32")
        weights = picked / op.sum(picked, axis=-1, keepdims=True)
        return weights.astype(x.dtype) * self.per_expert_scale


class Experts(nn.Module):
    """``sum over e of w_e Wd_e(gelu(Wg_e x) * Wu_e x)``."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        self.config = config
        experts, hidden, width = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter((experts, 2 * width, hidden))
        self.down_proj = nn.Parameter((experts, hidden, width))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """``x``: ``(1, n, D)``; ``weights``: ``(1, n, experts)``."""
        config, count = self.config, x.shape[1]
        experts, width = config.num_experts, config.moe_intermediate_size
        # All experts' rows as one matrix.
        stacked = op.reshape(self.gate_up_proj, (experts * 2 * width, config.hidden_size))
        both = op.reshape(op.matmul(x, op.permute_dims(stacked)), (count, experts, 2 * width))
        inner = op.gelu(part(both, -1, 0, width), approximate="tanh") * part(both, -1, width, 2 * width)
        inner = op.permute_dims(inner, [1, 0, 2])
        out = op.matmul(inner, op.permute_dims(self.down_proj, [0, 2, 1]))
        share = op.permute_dims(op.reshape(weights, (count, experts, 1)), [1, 0, 2])
        return op.reshape(op.sum(out * share, axis=0), (1, count, config.hidden_size))


def _greater(a: Tensor, b: Tensor) -> Tensor:
    return nn.op.wrap_nested(relax.op.greater(a._expr, b._expr), name="greater")


def _less(a: Tensor, bound: float) -> Tensor:
    return nn.op.wrap_nested(relax.op.less(a._expr, relax.const(bound, a.dtype)), name="less")
