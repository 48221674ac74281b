"""The HuggingFace side: a causal language model built from given arrays, and its logits at every position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from driftgate.outcome import UsageError

_warm: list[bool] = []


def logits(make: Callable[[], Any], arrays: Mapping[str, np.ndarray], ids: tuple[int, ...], dtype: str) -> np.ndarray:
    """Logits at all positions of ``ids``, ``(n, vocab)``: float64 where ``dtype`` is float64, else float32.

    ``make`` returns a HuggingFace model (see ``empty``); ``arrays`` are its parameters by name, cast to ``dtype``
    (``float32``, ``float64`` or ``float16``). One pass over the whole prompt, no cache, eager attention.
    Raises UsageError where names or shapes of ``arrays`` do not fit the model.
    """
    import torch

    model = filled(make(), arrays, dtype)
    with torch.inference_mode():
        if not _warm:
            # On a busy machine the first pass of a process, and no later one, was seen to be off by 1.7e-5: twice in
            # some 300 processes, to the same value both times, as if torch's libraries were still being set up.
            model(torch.tensor([ids]), use_cache=False)
            _warm.append(True)
        out = model(torch.tensor([ids]), use_cache=False).logits[0]
    return out.to(torch.float64 if dtype == "float64" else torch.float32).numpy()


def empty(model_class: Any, config: Any) -> Any:
    """``model_class(config)`` with eager attention and experts; its parameters are for ``filled`` to replace."""
    from transformers.initialization import no_init_weights

    config._attn_implementation = "eager"
    # The default experts have no float64.
    config._experts_implementation = "eager"
    with no_init_weights():
        return model_class(config)


def loaded(model_class: str, folder: Path) -> Any:
    """The model of a checkpoint folder as HuggingFace itself loads it, float32, eager attention and experts."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return getattr(transformers, model_class).from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        local_files_only=True,
        use_safetensors=True,
    )


def filled(model: Any, arrays: Mapping[str, np.ndarray], dtype: str) -> Any:
    """``model`` with ``arrays`` as its parameters, in ``dtype``; the output projection is the token embedding."""
    import torch

    state = {name: torch.from_numpy(np.asarray(a)).to(getattr(torch, dtype)) for name, a in arrays.items()}
    try:
        missing, unknown = model.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:
        raise UsageError(
            f"the arrays do not fit the HuggingFace model: {str(error).splitlines()[-1].strip()}"
        ) from None
    missing = sorted(set(missing) - {"lm_head.weight"})
    if missing or unknown:
        raise UsageError(f"the arrays do not fit the HuggingFace model: missing {missing[:3]}, unknown {unknown[:3]}")
    model.tie_weights()
    return model.eval()
