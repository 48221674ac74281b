"""The models under test, by name. A family has a folder; its presets are one line each here."""

from __future__ import annotations

from driftgate.model import Model
from driftgate.outcome import UsageError

FOLDER = "hf:"
"""Prefix of a name that is the path of a HuggingFace checkpoint folder."""

REFUSED = (("gemma3n", "Gemma 3n is not built: AltUp and Laurel change the residual stream itself"),)
"""Families that are not built, and why."""


def names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(_presets())


def tiny() -> tuple[str, ...]:
    """The presets that a CPU gates in less than a minute: one a family, and one a size of Gemma 4."""
    return tuple(name for name in _presets() if name.endswith("-tiny"))


def find(name: str) -> Model:
    """The preset ``name``, or the checkpoint folder of ``hf:PATH``; raises UsageError with the names that exist."""
    if name.startswith(FOLDER):
        from models.checkpoint import folder_model

        return folder_model(name.removeprefix(FOLDER))
    presets = _presets()
    if name not in presets:
        raise UsageError(f"unknown model {name!r}; the models are {', '.join(presets)}, and {FOLDER}PATH")
    return presets[name]


def _presets() -> dict[str, Model]:
    from models.gemma1.presets import GEMMA1_2B, GEMMA1_TINY
    from models.gemma2.presets import GEMMA2_2B, GEMMA2_TINY
    from models.gemma3.presets import GEMMA3_4B, GEMMA3_270M, GEMMA3_TINY
    from models.gemma4.presets import GEMMA4_TINY, SIZES, TINY_SIZES

    tiny_ones = (GEMMA4_TINY, *TINY_SIZES, GEMMA3_TINY, GEMMA2_TINY, GEMMA1_TINY)
    return {model.name: model for model in (*tiny_ones, GEMMA3_270M, *SIZES, GEMMA3_4B, GEMMA2_2B, GEMMA1_2B)}
