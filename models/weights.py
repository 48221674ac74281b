"""Seeded random weights, under HuggingFace's parameter names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

Q_NORM_DAMPING = 0.06
"""Gemma 4 multiplies normed q and k with scale 1.0, so q_norm near 1 gives logits of std sqrt(head_dim): at 512 a
softmax that is all but one-hot, and a random model so chaotic that float32 and float64 part by 1e-3. Damped, the
attention is soft, rounding stays rounding, and a band of a few noise floors is tight enough to catch a real fault."""


def random(shapes: Iterable[tuple[str, tuple[int, ...]]], seed: int, offset: float = 0.0) -> dict[str, np.ndarray]:
    """float32 arrays: matrices of std ``fan_in^(-1/2)``, norm weights and layer scalars uniform in 0.8 to 1.2.

    ``offset`` is what the model adds to a norm weight, 1 for Gemma 1 to 3. A router's matrix has std 1, so that its
    scores are of order one and experts are picked by a clear margin.
    """
    rng = np.random.default_rng(seed)
    return {name: _draw(rng, name, shape, offset) for name, shape in shapes}


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...], offset: float) -> np.ndarray:
    if len(shape) == 1:
        damped = name.endswith("q_norm.weight") and not offset
        scale = Q_NORM_DAMPING if damped else 1.0
        return (scale * rng.uniform(0.8, 1.2, shape) - (offset if "norm" in name else 0.0)).astype(np.float32)
    spread = 1.0 if name.endswith("router.proj.weight") else np.sqrt(shape[-1])
    return (rng.standard_normal(shape) / spread).astype(np.float32)
