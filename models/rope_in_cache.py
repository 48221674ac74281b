"""A two-layer attention model that leaves RoPE to the KV cache, for the probe of TVM's inline RoPE.

None of the Gemma modules here does that: they have two thetas, and the cache has one. Packaged models do it.
"""

from __future__ import annotations

from typing import Any

from driftgate.model import Arrays, Model, PlanPreset, Shape

VOCAB, HIDDEN, HEADS, HEAD_DIM, WINDOW, THETA = 128, 64, 4, 64, 64, 1e6


def _module(target: Any, dtype: str) -> Any:
    from tvm.relax.frontend import nn
    from tvm.relax.frontend.nn import op

    from models.blocks import Embedding
    from models.library import CacheShape, TextLibrary, export

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = Embedding(VOCAB, HIDDEN)
            self.qkv = nn.ModuleList([nn.Linear(HIDDEN, (HEADS + 2) * HEAD_DIM, bias=False) for _ in range(2)])
            self.out = nn.ModuleList([nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False) for _ in range(2)])

        def embed(self, ids):
            return self.embed_tokens(ids)

        def forward(self, x, cache):
            count = x.shape[1]
            for layer in range(2):
                qkv = op.reshape(self.qkv[layer](x), (1, count, HEADS + 2, HEAD_DIM))
                attended = cache.attention_with_fused_qkv(layer, qkv, HEADS, sm_scale=HEAD_DIM**-0.5)
                x = x + self.out[layer](op.reshape(attended, (1, count, HEADS * HEAD_DIM)))
            return x

    cache = CacheShape(("mha_sliding", "mha"), HEADS, 1, HEAD_DIM, WINDOW, THETA)
    library = TextLibrary(Body(), hidden=HIDDEN, embed_width=HIDDEN, cap=None, cache=cache, target=target)
    library.to(dtype)
    return export(library, {"model_type": "rope-in-cache"})


def _arrays(seed: int) -> Arrays:
    import numpy as np

    rng = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(2):
        shapes[f"model.qkv.{layer}.weight"] = ((HEADS + 2) * HEAD_DIM, HIDDEN)
        shapes[f"model.out.{layer}.weight"] = (HIDDEN, HEADS * HEAD_DIM)
    # Scores of order one, so that which keys a query attends to depends on their angles.
    return {name: (rng.standard_normal(s) * s[1] ** -0.5 * 2).astype(np.float32) for name, s in shapes.items()}


def _no_reference(arrays: Arrays, ids: tuple[int, ...], dtype: str) -> Any:
    raise NotImplementedError("the probe compares chunkings with one another")


def _prompt(tokens: int, seed: int) -> tuple[int, ...]:
    import numpy as np

    return tuple(int(i) for i in np.random.default_rng(seed).integers(VOCAB, size=tokens))


ROPE_IN_CACHE = Model(
    name="rope-in-cache",
    family="probe",
    about="two layers of attention whose RoPE the cache applies",
    shape=Shape(2, 2, HIDDEN, HEADS, 1, HEAD_DIM, WINDOW, VOCAB, capacity=128),
    plans={"default": PlanPreset(60, (60,))},
    module=_module,
    arrays=_arrays,
    reference=_no_reference,
    prompt=_prompt,
)
