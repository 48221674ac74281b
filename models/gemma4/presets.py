"""The presets of Gemma 4."""

from __future__ import annotations

from typing import Any

from driftgate.model import Arrays, Model, PlanPreset, Shape
from models.gemma4 import build
from models.gemma4.config import Gemma4Config

TINY = Gemma4Config(
    layers=10,
    hidden=128,
    intermediate=256,
    heads=8,
    kv_heads=1,
    sliding_head_dim=256,
    full_head_dim=512,
    window=64,
    sliding_per_full=4,
    shared_layers=5,
    double_wide=True,
    per_layer_width=32,
    vocab=512,
)


def _model(name: str, about: str, config: Gemma4Config, capacity: int, plans: dict[str, PlanPreset]) -> Model:
    def module(target: Any, dtype: str) -> Any:
        from models.library import export

        library = build.library(config, target)
        library.to(dtype)
        return export(library, {"model_type": "gemma4", "sliding_window_size": config.window})

    def arrays(seed: int) -> Arrays:
        from models.gemma4 import weights

        return weights.random(config, seed)

    def reference(arrays: Arrays, ids: tuple[int, ...], dtype: str) -> Any:
        from models import huggingface

        return huggingface.logits(lambda: build.huggingface(config), arrays, ids, dtype)

    def prompt(tokens: int, seed: int) -> tuple[int, ...]:
        import numpy as np

        return tuple(int(i) for i in np.random.default_rng(seed).integers(config.vocab, size=tokens))

    shape = Shape(
        layers=config.layers,
        attention_layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.full_head_dim,
        window=config.window,
        vocab=config.vocab,
        capacity=capacity,
    )
    return Model(name, "gemma4", about, shape, plans, module, arrays, reference, prompt)


GEMMA4_TINY = _model(
    "gemma4-tiny",
    "shaped like E2B: 5 of 10 layers share K and V, per-layer embeddings; random weights",
    TINY,
    capacity=512,
    plans={
        # Inside the window, where no known defect of the CPU kernels can touch the verdict.
        "default": PlanPreset(48, (16, 16, 16)),
        # Past the window, and a last chunk as long as the window, whose last row sees no past key at all: TVM's own
        # CPU kernel answers that with NaN every time, so a right answer shows that the corrected one ran.
        "hard": PlanPreset(96, (16, 16, 64), {"llvm": ("cpu-sliding-prefill",)}),
        # A fork inside a page, a chunk of one token, a token tree: every kernel that a model with a window can run.
        "kernels": PlanPreset(
            48, (20, 1, 11, 16), {"llvm": ("cpu-tree-order",)}, ("prefill", "fork", "tree", "prefill")
        ),
    },
)
