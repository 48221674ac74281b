"""``hf:PATH``: a model from a HuggingFace checkpoint folder, config.json and safetensors, with itself as the reference.

The folder is untrusted input: headers are checked before anything is built, nothing is unpickled, and no shard lies
outside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from driftgate.model import Arrays, Model
from driftgate.outcome import InfraError, UsageError
from models.family import Family, family_of, plans_of, random_prompt, shape_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = ("F32", "F16", "BF16")
"""Of a tensor, as safetensors names them."""
HEAD = "lm_head.weight"
"""The output projection, which is the token embedding in every Gemma and may be stored a second time."""
EMBEDDING = "model.embed_tokens.weight"
LARGE = 50_000_000
"""Parameters from which a prefill on a CPU takes about a second, so that fewer runs are the default."""
LONGEST_WINDOW = 512
"""Up to which a plan goes past the window by default."""


def folder_model(path: str) -> Model:
    """The model in the folder ``path``.

    Raises UsageError for what is no checkpoint of a family that is built: no folder, another ``model_type``, a field or
    tensor that does not fit (which it names). Raises InfraError for a file that is truncated or cannot be read.
    """
    try:
        folder = Path(path).expanduser().resolve()
        folder.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"hf:{path[:100]} is no path: {getattr(error, 'strerror', None) or error}") from None
    return _folder_model(path, folder)


@cache
def _folder_model(path: str, folder: Path) -> Model:
    fields = _read_config(path, folder)
    family = family_of(fields.get("model_type"))
    config = family.config(_normalised(path, folder, fields))
    files = _files(path, folder)
    shapes = dict(family.shapes()(config))
    _check_tensors(path, files, shapes)
    count = sum(prod(shape) for shape in shapes.values())
    window = config.window
    plans = plans_of(window, min(16, max((window or 64) // 4, 2), window or 16))
    if window is not None and window > LONGEST_WINDOW:
        del plans["hard"]
    capacity = -(-max(512, *(plan.tokens for plan in plans.values())) // 16) * 16
    return Model(
        name=f"hf:{path}",
        family=family.name,
        about=f"{family.model_type}, {count:,} parameters",
        shape=shape_of(config, capacity),
        plans=plans,
        module=lambda target, dtype: family.module(config, target, dtype),
        arrays=lambda seed: _load(path, files, shapes),
        reference=_Reference(path, folder, family),
        prompt=lambda tokens, seed: random_prompt(config.vocab_size, tokens, seed),
        preset={"runs": "20", "checks": "repeat,chunking,reference,sentinel"} if count > LARGE else {},
    )


def _read_config(path: str, folder: Path) -> dict[str, Any]:
    if folder.is_file():
        raise UsageError(f"hf:{path} is a file; give the folder that holds config.json")
    if not folder.is_dir():
        raise UsageError(f"hf:{path}: there is no such folder")
    if not (folder / "config.json").is_file():
        raise UsageError(f"hf:{path} holds no config.json: it is no HuggingFace checkpoint")
    fields = _json(folder / "config.json")
    if not isinstance(fields, dict):
        raise UsageError(f"hf:{path}: config.json must hold an object")
    if "model_type" not in fields:
        raise UsageError(f"hf:{path}: config.json has no model_type")
    if fields.get("quantization_config") is not None:
        raise UsageError(f"hf:{path}: quantization_config is set, but only weights of {', '.join(DTYPES)} are read")
    if fields.get("num_attention_heads") == 0:
        # HuggingFace divides by it without a look.
        raise UsageError(f"hf:{path}: num_attention_heads is 0, but must be at least 1")
    own = fields.get("per_layer_config")
    if own is not None and (not isinstance(own, dict) or fields["model_type"] != "gemma4_text"):
        raise UsageError(f"hf:{path}: per_layer_config must be an object, and of a gemma4_text alone")
    if "text_config" in fields and not str(fields.get("model_type")).startswith("gemma3n"):
        raise UsageError(
            f"hf:{path}: model_type {fields.get('model_type')!r} wraps a text model with others (text_config); "
            "save its language model in a folder of its own"
        )
    return fields


def _normalised(path: str, folder: Path, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of config.json with HuggingFace's defaults and today's names: older files leave much to them."""
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        found = transformers.AutoConfig.from_pretrained(folder).to_dict()
    except Exception as error:
        # HuggingFace checks types, in messages of several lines that name the field.
        said = " ".join(str(error).split())
        raise UsageError(f"hf:{path}: config.json is refused by transformers: {said}") from None
    if fields.get("layer_types") not in (None, found.get("layer_types")):
        raise UsageError(
            f"hf:{path}: layer_types of config.json is not what transformers makes of it: the last layer of a Gemma 4 "
            "must be full_attention"
        )
    return dict(found)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is truncated or no JSON"
        raise InfraError(f"{file} cannot be read: {reason}") from None


def _files(path: str, folder: Path) -> tuple[Path, ...]:
    """The safetensors files: one, or the shards that the index names."""
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    if not (folder / INDEX).is_file():
        raise UsageError(f"hf:{path} holds neither {SINGLE} nor {INDEX}; pickled weights are not read")
    index = _json(folder / INDEX)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise UsageError(f"hf:{path}: {INDEX} has no weight_map of tensor to file")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name:
            raise UsageError(f"hf:{path}: {INDEX} names {name!r}, which does not lie in the folder")
        if not _is_file(folder / name):
            raise UsageError(f"hf:{path}: {INDEX} names {name}, which is not there")
    return tuple(folder / name for name in names)


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False


def _opened(file: Path) -> Any:
    from safetensors import safe_open

    try:
        return safe_open(file, "pt")
    except Exception as error:
        said = " ".join(str(error).split())
        raise InfraError(f"{file} is truncated or no safetensors file: {said}") from None


def _check_tensors(path: str, files: tuple[Path, ...], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare names, shapes and dtypes in the files' headers with those that the config asks for."""
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in files:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118, it is no mapping
                part = tensors.get_slice(name)
                if name in found:
                    raise UsageError(f"hf:{path}: tensor {name} is in two files")
                found[name] = tuple(part.get_shape()), part.get_dtype()
    allowed = {**shapes, HEAD: shapes[EMBEDDING]}
    missing = [name for name in shapes if name not in found]
    extra = [name for name in found if name not in allowed]
    if missing or extra:
        both = [f"{len(names)} {what}: {names[0]}" for names, what in ((missing, "missing"), (extra, "extra")) if names]
        raise UsageError(f"hf:{path}: the tensors are not those of config.json; {'; '.join(both)}")
    for name, (shape, dtype) in found.items():
        if shape != allowed[name]:
            raise UsageError(f"hf:{path}: tensor {name} has shape {list(shape)}, config.json has {list(allowed[name])}")
        if dtype not in DTYPES:
            raise UsageError(f"hf:{path}: tensor {name} is {dtype}, but only {', '.join(DTYPES)} are read")


def _load(path: str, files: tuple[Path, ...], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """All parameters as float32, in the order of ``shapes``."""
    import torch

    found = {}
    for file in files:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118, it is no mapping
                found[name] = tensors.get_tensor(name).to(torch.float32)
    head = found.pop(HEAD, None)
    if head is not None and not torch.equal(head, found[EMBEDDING]):
        raise UsageError(f"hf:{path}: {HEAD} differs from {EMBEDDING}, but a Gemma has one table for both")
    return {name: found[name].contiguous().numpy() for name in shapes}


class _Reference:
    """HuggingFace's model of the folder. Its own load has to have the parameters under test, or what float16 makes of
    them; that is looked at once for each set of arrays, since a check asks for dozens of prompts."""

    def __init__(self, path: str, folder: Path, family: Family) -> None:
        self.path = path
        self.folder = folder
        self.family = family
        self._compared: Arrays | None = None

    def __call__(self, arrays: Arrays, ids: tuple[int, ...], dtype: str) -> Any:
        """Logits ``(n, vocab)`` at every position of ``ids``. Raises InfraError where the loads differ, or fail."""
        from models import huggingface

        if self._compared is arrays:
            return huggingface.logits(self._empty, arrays, ids, dtype)
        try:
            model = huggingface.loaded(self.family.model_class, self.folder)
        except Exception as error:
            said = " ".join(str(error).split())
            raise InfraError(f"hf:{self.path}: HuggingFace cannot load the folder: {said}") from None
        self._compare(model, arrays)
        self._compared = arrays
        return huggingface.logits(lambda: model, arrays, ids, dtype)

    def _empty(self) -> Any:
        import transformers

        from models import huggingface

        config = transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True)
        return huggingface.empty(getattr(transformers, self.family.model_class), config)

    def _compare(self, model: Any, arrays: Arrays) -> None:
        import numpy as np

        for name, parameter in model.state_dict().items():
            if name == HEAD:
                continue
            theirs, ours = parameter.numpy(), arrays[name]
            if not (np.array_equal(theirs, ours) or np.array_equal(theirs.astype("float16").astype("float32"), ours)):
                raise InfraError(f"hf:{self.path}: HuggingFace loads other values of {name} than those in the file")
