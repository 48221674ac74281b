"""The models under test, by name. A family has a folder; its presets are one line each here."""

from __future__ import annotations

from driftgate.model import Model
from driftgate.outcome import UsageError


def names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(_presets())


def find(name: str) -> Model:
    """The preset ``name``; raises UsageError with the names that exist."""
    presets = _presets()
    if name not in presets:
        raise UsageError(f"unknown model {name!r}; the models are {', '.join(presets)}")
    return presets[name]


def _presets() -> dict[str, Model]:
    from models.gemma3.presets import GEMMA3_270M
    from models.gemma4.presets import GEMMA4_TINY

    return {model.name: model for model in (GEMMA4_TINY, GEMMA3_270M)}
