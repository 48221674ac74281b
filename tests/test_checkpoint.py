"""Models from checkpoint folders: what HuggingFace saved is what is read, and what is no checkpoint is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from driftgate.model import check_arrays
from driftgate.outcome import InfraError, UsageError
from models.checkpoint import HEAD, INDEX, SINGLE, folder_model
from models.config import FULL, SLIDING

EMBEDDING = "model.embed_tokens.weight"
UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
KEYS, VALUES = "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight"

PLAIN = {"rope_type": "default", "rope_theta": 1e4}
PARTIAL = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 24,
    "num_hidden_layers": 2,
}
WINDOWS = {"layer_types": [SLIDING, FULL], "sliding_window": 4}
GEMMA2 = SMALL | WINDOWS | {"model_type": "gemma2", "query_pre_attn_scalar": 4}
GEMMA3 = (
    SMALL
    | WINDOWS
    | {
        "model_type": "gemma3_text",
        "rope_parameters": {SLIDING: PLAIN, FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}},
    }
)
GEMMA4 = SMALL | WINDOWS | {"model_type": "gemma4_text", "rope_parameters": {SLIDING: PLAIN, FULL: PARTIAL}}
EXPERTS = {
    "global_head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 8,
}
SHARED = {
    "global_head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, FULL] * 2,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 24,
}

SAVED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma1": ("gemma1", SMALL | {"model_type": "gemma"}, {}),
    "gemma2": ("gemma2", GEMMA2, {}),
    "gemma3": ("gemma3", GEMMA3, {}),
    "gemma4-experts": ("gemma4", GEMMA4 | EXPERTS, {}),
    "gemma4-shared": ("gemma4", GEMMA4 | SHARED, {}),
    "sharded": ("gemma2", GEMMA2, {"max_shard_size": "3KB"}),
    "bfloat16": ("gemma2", GEMMA2, {"dtype": "bfloat16"}),
    "float16": ("gemma2", GEMMA2, {"dtype": "float16"}),
}
"""Family, fields of config.json, and how the folder is saved."""

TWO = {"layers": 2, "attention_layers": 2, "hidden": 16, "heads": 2, "kv_heads": 1, "head_dim": 8}
REST = {"window": 4, "vocab": 24, "capacity": 512, "softcap": None}
SHAPES = {
    "gemma1": {**TWO, **REST, "window": None},
    "gemma2": {**TWO, **REST, "softcap": 50.0},
    "gemma3": {**TWO, **REST},
    "gemma4-experts": {**TWO, **REST, "heads": 4, "kv_heads": 2, "head_dim": 16},
    "gemma4-shared": {**TWO, **REST, "layers": 4, "attention_layers": 4, "head_dim": 16},
    "sharded": {**TWO, **REST, "softcap": 50.0},
    "bfloat16": {**TWO, **REST, "softcap": 50.0},
    "float16": {**TWO, **REST, "softcap": 50.0},
}


@dataclass(frozen=True)
class Saved:
    """A folder that HuggingFace saved, and what it saved, as float32."""

    name: str
    family: str
    folder: Path
    state: dict[str, np.ndarray]


def save(name: str, folder: Path) -> Saved:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    family, read, how = SAVED[name]
    how = dict(how)
    torch.manual_seed(list(SAVED).index(name))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**read))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
        for key, buffer in model.named_buffers():
            if key.endswith("layer_scalar"):
                buffer.uniform_(0.8, 1.2)
    model.to(getattr(torch, how.pop("dtype", "float32")))
    model.save_pretrained(folder, **how)
    state = {key: value.float().numpy().copy() for key, value in model.state_dict().items() if key != HEAD}
    return Saved(name, family, folder, state)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    made: dict[str, Saved] = {}

    def get(name: str) -> Saved:
        if name not in made:
            made[name] = save(name, tmp_path_factory.mktemp("saved") / f"{name} v1.0")
        return made[name]

    return get


@pytest.fixture(scope="module", params=SAVED)
def saved(request: pytest.FixtureRequest, saved_once: Callable[[str], Saved]) -> Saved:
    return saved_once(request.param)


@pytest.fixture
def copy(saved_once: Callable[[str], Saved], tmp_path: Path) -> Callable[..., Path]:
    """Makes a copy of a saved folder, to be spoiled."""

    def copied(name: str = "gemma2") -> Path:
        return Path(shutil.copytree(saved_once(name).folder, tmp_path / name))

    return copied


# --- what is done to a copy -------------------------------------------------------------------------------------------

Spoil = Callable[[Path], Any]


def config(without: tuple[str, ...] = (), **changes: Any) -> Spoil:
    """Changes fields of config.json."""

    def spoil(folder: Path) -> None:
        read = json.loads((folder / "config.json").read_text())
        kept = {name: value for name, value in read.items() if name not in without}
        (folder / "config.json").write_text(json.dumps({**kept, **changes}))

    return spoil


def tensors(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Changes the tensors of a folder with one file."""

    def spoil(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        state = load_file(folder / SINGLE)
        change(state)
        save_file(state, folder / SINGLE)

    return spoil


def cast(name: str, dtype: str) -> Spoil:
    def change(state: dict[str, Any]) -> None:
        import torch

        state[name] = state[name].to(getattr(torch, dtype))

    return tensors(change)


def in_two(change: Callable[[Path, dict[str, Any]], Any] | None = None, index: str | None = None) -> Spoil:
    """Splits a folder's file into two, ``a`` and ``b``; ``change`` gets the folder and the map of tensor to file."""

    def spoil(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        state = load_file(folder / SINGLE)
        (folder / SINGLE).unlink()
        files = {name: "ab"[i % 2] + ".safetensors" for i, name in enumerate(state)}
        for file in ("a.safetensors", "b.safetensors"):
            save_file({name: state[name] for name in state if files[name] == file}, folder / file)
        if change:
            change(folder, files)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}) if index is None else index)

    return spoil


def twice(folder: Path, files: dict[str, Any]) -> None:
    """``UP`` in both files."""
    from safetensors.torch import load_file, save_file

    first, second = (load_file(folder / file) for file in ("a.safetensors", "b.safetensors"))
    up = {**first, **second}[UP]
    save_file({**first, UP: up}, folder / "a.safetensors")
    save_file({**second, UP: up}, folder / "b.safetensors")


def written(file: str, content: str | bytes) -> Spoil:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / file).write_bytes(raw)


def removed(file: str) -> Spoil:
    return lambda folder: (folder / file).unlink()


def cut(file: str, length: int | float) -> Spoil:
    """Leaves the first bytes of ``file``: so many, all but so many, or a part."""

    def spoil(folder: Path) -> None:
        raw = (folder / file).read_bytes()
        (folder / file).write_bytes(raw[: int(length * len(raw)) if isinstance(length, float) else length])

    return spoil


def both(*spoils: Spoil) -> Spoil:
    return lambda folder: [spoil(folder) for spoil in spoils]


# --- folders that are checkpoints -------------------------------------------------------------------------------------


def test_what_was_saved_is_small_sharded_and_of_its_dtype(saved: Saved) -> None:
    from safetensors import safe_open

    assert sum(array.size for array in saved.state.values()) < 10_000
    files = sorted(file.name for file in saved.folder.glob("*.safetensors"))
    assert (len(files) > 2) == (saved.name == "sharded")
    assert (saved.folder / INDEX).is_file() == (saved.name == "sharded")
    with safe_open(saved.folder / files[0], "np") as tensors:
        (dtype,) = {tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118
    assert dtype == {"bfloat16": "BF16", "float16": "F16"}.get(saved.name, "F32")


def test_a_folder_has_the_shape_of_its_config(saved: Saved) -> None:
    model = models.find(f"hf:{saved.folder}")
    assert {name: getattr(model.shape, name) for name in SHAPES[saved.name]} == SHAPES[saved.name]
    assert model.family == saved.family
    assert model.shape.capacity >= max(plan.tokens for plan in model.plans.values())
    assert model.shape.capacity % 16 == 0
    count = sum(array.size for array in saved.state.values())
    assert model.about == f"{SAVED[saved.name][1]['model_type']}, {count:,} parameters"
    assert model.preset == {}


def test_a_folder_has_the_arrays_that_were_saved_whatever_the_seed(saved: Saved) -> None:
    model = models.find(f"hf:{saved.folder}")
    arrays = model.arrays(0)
    assert set(arrays) == set(saved.state)
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (np.float32, saved.state[name].shape), name
        assert array.tobytes() == saved.state[name].tobytes(), name
    check_arrays(arrays, model.name)
    other = model.arrays(1)
    assert list(other) == list(arrays)
    assert all(other[name].tobytes() == array.tobytes() for name, array in arrays.items())


def test_reference_logits_are_those_of_huggingface_to_the_byte(saved: Saved) -> None:
    import torch
    import transformers

    model = models.find(f"hf:{saved.folder}")
    ids = model.prompt(9, 0)
    found = model.reference(model.arrays(0), ids, "float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        saved.folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.inference_mode():
        expected = theirs.eval()(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    assert (found.shape, found.dtype) == ((9, 24), np.float32)
    assert found.std(-1).min() > 0.01
    assert found.tobytes() == expected.tobytes()
    exact = model.reference(model.arrays(0), ids, "float64")
    assert exact.dtype == np.float64
    assert 0 < np.abs(exact - found).max() < 1e-4


def test_the_reference_refuses_arrays_that_are_not_the_folder_s(saved_once: Callable[[str], Saved]) -> None:
    model = models.find(f"hf:{saved_once('gemma2').folder}")
    arrays = dict(model.arrays(0))
    half = {name: array.astype(np.float16).astype(np.float32) for name, array in arrays.items()}
    assert np.isfinite(model.reference(half, (1, 2, 3), "float32")).all()  # what a float16 library is given
    arrays["model.norm.weight"] = arrays["model.norm.weight"] + np.float32(1e-3)
    with pytest.raises(
        InfraError, match=r"HuggingFace loads other values of model\.norm\.weight than those in"
    ) as caught:
        model.reference(arrays, (1, 2, 3), "float32")
    assert "\n" not in str(caught.value)


def test_a_random_prompt_is_in_the_vocabulary_and_follows_the_seed(saved: Saved) -> None:
    prompt = models.find(f"hf:{saved.folder}").prompt
    ids = prompt(96, 0)
    assert len(ids) == 96
    assert all(type(i) is int and 0 <= i < 24 for i in ids)
    assert set(ids) == set(range(24))
    assert ids == prompt(96, 0)
    assert ids[:48] == prompt(48, 0)
    assert ids != prompt(96, 1)


def test_plans_fit_merge_and_go_past_the_window(saved: Saved) -> None:
    model = models.find(f"hf:{saved.folder}")
    assert set(model.plans) == {"default", "hard"}
    for plan in model.plans.values():
        assert plan.tokens == sum(plan.chunks) <= model.shape.capacity
        assert any(n > 1 for n in plan.chunks[1:])
    if model.shape.window is not None:
        assert model.plans["hard"].tokens > model.shape.window
        assert model.plans["hard"].corrections == {"llvm": ("cpu-sliding-prefill",)}


def test_name_slug_and_object(saved: Saved) -> None:
    model = models.find(f"hf:{saved.folder}")
    assert model.name == f"hf:{saved.folder}"
    assert re.fullmatch(r"[A-Za-z0-9.-]{1,60}", model.slug)
    assert model.slug.endswith(f"{saved.name}-v1.0")
    assert models.find(f"hf:{saved.folder}") is model
    assert folder_model(str(saved.folder)) is model


def test_a_relative_path_and_a_home_are_found(copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy("gemma1")
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for name in ("hf:gemma1", "hf:./gemma1/", "hf:~/gemma1", "hf:gemma1/../gemma1"):
        model = models.find(name)
        assert (model.name, model.shape.vocab) == (name, 24)
        assert (
            model.arrays(0)["model.norm.weight"].tobytes()
            == models.find(f"hf:{folder}").arrays(0)["model.norm.weight"].tobytes()
        )


@pytest.mark.parametrize(
    ("window", "plans", "capacity"),
    [
        (4, {"default": (2, 2, 2), "hard": (2, 2, 4)}, 512),
        (512, {"default": (16,) * 3, "hard": (16, 16, 512)}, 544),
        (513, {"default": (16,) * 3}, 512),
    ],
)
def test_plans_follow_the_window(
    copy: Callable[..., Path], window: int, plans: dict[str, tuple[int, ...]], capacity: int
) -> None:
    folder = copy()
    config(sliding_window=window)(folder)
    model = models.find(f"hf:{folder}")
    assert {name: plan.chunks for name, plan in model.plans.items()} == plans
    assert (model.shape.window, model.shape.capacity) == (window, capacity)


def test_older_field_names_and_missing_fields_are_what_transformers_makes_of_them(copy: Callable[..., Path]) -> None:
    folder = copy()
    config(without=("layer_types", "rope_parameters", "query_pre_attn_scalar", "sliding_window"), rope_theta=5e3)(
        folder
    )
    model = models.find(f"hf:{folder}")
    assert (model.shape.window, model.shape.softcap) == (4096, 50.0)
    assert np.isfinite(model.reference(model.arrays(0), (1, 2, 3), "float32")).all()


def test_a_head_that_is_the_embedding_is_fine(copy: Callable[..., Path]) -> None:
    folder = copy()
    tensors(lambda state: state.update({HEAD: state[EMBEDDING].clone()}))(folder)
    model = models.find(f"hf:{folder}")
    arrays = model.arrays(0)
    assert HEAD not in arrays
    assert np.isfinite(model.reference(arrays, (1, 2, 3), "float32")).all()


def test_a_head_of_its_own_is_usage(copy: Callable[..., Path]) -> None:
    folder = copy()
    tensors(lambda state: state.update({HEAD: state[EMBEDDING] + 1}))(folder)
    model = models.find(f"hf:{folder}")
    with pytest.raises(UsageError) as caught:
        model.arrays(0)
    said = f"{HEAD} differs from {EMBEDDING}, but a Gemma has one table for both"
    assert str(caught.value) == f"hf:{folder}: {said}"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_weight_that_is_not_finite_is_usage_and_named(copy: Callable[..., Path], bad: float, dtype: str) -> None:
    folder = copy()
    both(tensors(lambda state: state[UP][1].fill_(bad)), cast(UP, dtype))(folder)
    model = models.find(f"hf:{folder}")
    with pytest.raises(UsageError) as caught:
        check_arrays(model.arrays(0), model.name)
    assert str(caught.value) == f"weights of hf:{folder}: {UP} holds 16 values that are NaN or infinite"


def test_dtypes_may_be_mixed(copy: Callable[..., Path]) -> None:
    folder = copy()
    tensors(lambda state: state.update({UP: state[UP].bfloat16(), DOWN: state[DOWN].half()}))(folder)
    model = models.find(f"hf:{folder}")
    arrays = model.arrays(0)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    assert np.isfinite(model.reference(arrays, (1, 2, 3), "float32")).all()


def test_a_pickle_beside_the_safetensors_is_not_touched(copy: Callable[..., Path]) -> None:
    folder = copy()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    model = models.find(f"hf:{folder}")
    assert np.isfinite(model.reference(model.arrays(0), (1, 2, 3), "float32")).all()


# --- folders that are none --------------------------------------------------------------------------------------------

BUILT = "the model types are gemma, gemma2, gemma3_text, gemma4_text"


def transformers_says(*words: str) -> str:
    return r"{hf}: config\.json is refused by transformers: .*" + ".*".join(words) + ".*"


def no_fit(said: str) -> str:
    return rf"{{hf}}: the tensors are not those of config\.json; {said}"


def no_tensor(name: str, said: str) -> str:
    return rf"{{hf}}: tensor {re.escape(name)} {said}"


CONFIGS: list[tuple[str, str, Spoil, str]] = [
    (
        "no config.json",
        "gemma2",
        removed("config.json"),
        r"{hf} holds no config\.json: it is no HuggingFace checkpoint",
    ),
    *[
        (
            f"config.json is {content}",
            "gemma2",
            written("config.json", content),
            r"{hf}: config\.json must hold an object",
        )
        for content in ("[]", "3", "null", '"gemma2"', "true")
    ],
    ("no model_type", "gemma2", config(("model_type",)), r"{hf}: config\.json has no model_type"),
    *[
        (
            f"model_type {name!r}",
            "gemma2",
            config(model_type=name),
            re.escape(f"model_type {name!r} is not a Gemma that is built; {BUILT}"),
        )
        for name in ("llama", "gemma3", "gemma4", None, 3, "a\nb")
    ],
    *[
        (
            f"{name}{' in a wrapper' if more else ''}",
            "gemma2",
            config(model_type=name, **more),
            rf"refused: model_type '{name}': .*AltUp.*Laurel.*; {BUILT}",
        )
        for name in ("gemma3n", "gemma3n_text")
        for more in ({}, {"text_config": {"model_type": "gemma3n_text"}})
    ],
    *[
        (
            f"wrapper {name}",
            "gemma2",
            config(model_type=name, text_config={"model_type": "x"}),
            rf"{{hf}}: model_type '{name}' wraps a text model with others \(text_config\); save its language model .*",
        )
        for name in ("gemma3", "gemma4", "gemma2", "paligemma")
    ],
    *[
        (
            f"quantization_config {how}",
            "gemma2",
            config(quantization_config=how),
            r"{hf}: quantization_config is set, but only weights of F32, F16, BF16 are read",
        )
        for how in ({"quant_method": "bitsandbytes"}, {})
    ],
]

FIELDS: list[tuple[str, str, Spoil, str]] = [
    *[
        (name, base, config(**change), transformers_says("num_hidden_layers", "layer_types"))
        for name, base, change in (
            ("more layers than types", "gemma2", {"num_hidden_layers": 3}),
            ("fewer layers than types", "gemma3", {"num_hidden_layers": 1}),
            ("fewer types than layers", "gemma3", {"layer_types": [FULL]}),
        )
    ],
    (
        "KV heads",
        "gemma2",
        config(num_key_value_heads=3),
        r"gemma2 config: num_attention_heads \(2\) must be a multiple of num_key_value_heads \(3\)",
    ),
    ("heads", "gemma2", config(num_attention_heads=3), transformers_says("attention heads")),
    ("odd width of a head", "gemma2", config(head_dim=7), transformers_says("head_dim")),
    (
        "last layer sliding",
        "gemma4-experts",
        config(layer_types=[FULL, SLIDING]),
        r"{hf}: layer_types of config\.json .* the last layer of a Gemma 4 must be full_attention",
    ),
    (
        "another kind of layer",
        "gemma2",
        config(layer_types=["chunked_attention", FULL]),
        "gemma2 config: layer_types must be a list of sliding_attention and full_attention",
    ),
    *[
        (
            f"window 0, {base}",
            base,
            config(sliding_window=0),
            f"{base[:6]} config: sliding_window is 0, but must be at least 1",
        )
        for base in ("gemma2", "gemma3", "gemma4-shared")
    ],
    (
        "window null",
        "gemma2",
        config(sliding_window=None),
        "gemma2 config: sliding_window is null, but must be a whole number",
    ),
    (
        "all layers share",
        "gemma4-shared",
        config(num_kv_shared_layers=4),
        r"gemma4 config: num_kv_shared_layers \(4\) must be below num_hidden_layers \(4\)",
    ),
    (
        "no owner",
        "gemma4-shared",
        config(num_kv_shared_layers=3),
        "gemma4 config: with num_kv_shared_layers 3 no layer owns the K and V that .* of type full_attention read",
    ),
    (
        "more experts picked than there are",
        "gemma4-experts",
        config(top_k_experts=5),
        r"gemma4 config: top_k_experts \(5\) exceeds num_experts \(4\)",
    ),
    (
        "another vocabulary per layer",
        "gemma4-shared",
        config(vocab_size_per_layer_input=25),
        "gemma4 config: vocab_size_per_layer_input is 25, but only 24 is built",
    ),
    (
        "a sliding layer of its own",
        "gemma4-experts",
        config(per_layer_config={"0": {"head_dim": 4}}),
        r"gemma4 config: per_layer_config\.0 differs from those of the other sliding_attention layers",
    ),
    (
        "yarn",
        "gemma2",
        config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}),
        r"gemma2 config: rope_parameters\.rope_type is 'yarn', but only default, linear are built",
    ),
    *[
        (f"{name} {value}", base, config(**{name: value}), f"{base} config: {name} is {shown}")
        for base, name, value, shown in (
            ("gemma1", "hidden_act", "silu", "'silu', but only 'gelu_pytorch_tanh' or 'gelu' is built"),
            ("gemma2", "hidden_activation", "silu", "'silu', but only 'gelu_pytorch_tanh' is built"),
            ("gemma2", "attention_bias", True, "true, but only false is built"),
            ("gemma3", "tie_word_embeddings", False, "false, but only true is built"),
            ("gemma3", "use_bidirectional_attention", True, "true, but only null or false is built"),
            ("gemma2", "rms_norm_eps", float("nan"), "nan, but must be above 0"),
            ("gemma2", "attn_logit_softcapping", 0.0, r"0\.0, but must be above 0"),
            ("gemma2", "query_pre_attn_scalar", -1, r"-1\.0, but must be above 0"),
            ("gemma2", "hidden_size", 0, "0, but must be at least 1"),
        )
    ],
    *[
        (f"{name} {value!r}", base, config(**{name: value}), transformers_says(f"'{name}'"))
        for base, name, value in (
            ("gemma2", "hidden_size", "16"),
            ("gemma2", "vocab_size", True),
            ("gemma2", "head_dim", 8.0),
            ("gemma1", "rms_norm_eps", "small"),
            ("gemma1", "num_hidden_layers", None),
            ("gemma2", "layer_types", [{}, {}]),
            ("gemma2", "rope_parameters", 3),
            ("gemma3", "final_logit_softcapping", "30"),
            ("gemma4-experts", "attention_k_eq_v", "yes"),
            ("gemma4-experts", "num_experts", 4.0),
            ("gemma4-shared", "sliding_window", None),
            ("gemma4-shared", "num_kv_shared_layers", "2"),
        )
    ],
]

TENSORS: list[tuple[str, str, Spoil, str]] = [
    ("missing tensor", "gemma2", tensors(lambda state: state.pop(UP)), no_fit(f"1 missing: {re.escape(UP)}")),
    ("extra tensor", "gemma2", tensors(lambda state: state.update(x=state[UP].clone())), no_fit("1 extra: x")),
    (
        "renamed tensor",
        "gemma2",
        tensors(lambda state: state.update({f"language_{UP}": state.pop(UP)})),
        no_fit(rf"1 missing: {re.escape(UP)}; 1 extra: language_{re.escape(UP)}"),
    ),
    (
        "values of a layer whose values are its keys",
        "gemma4-experts",
        tensors(lambda state: state.update({VALUES: state[KEYS].clone()})),
        no_fit(f"1 extra: {re.escape(VALUES)}"),
    ),
    (
        "a config with one more layer",
        "gemma1",
        config(num_hidden_layers=3),
        no_fit(r"9 missing: model\.layers\.2\.self_attn\.q_proj\.weight"),
    ),
    ("no tensors", "gemma2", tensors(dict.clear), no_fit(rf"\d+ missing: {re.escape(EMBEDDING)}")),
    (
        "missing shard of those that HuggingFace saved",
        "sharded",
        lambda folder: removed(sorted(file.name for file in folder.glob("*.safetensors"))[-1])(folder),
        r"{hf}: model\.safetensors\.index\.json names model-\d+-of-\d+\.safetensors, which is not there",
    ),
    (
        "wrong shape",
        "gemma2",
        tensors(lambda state: state.update({UP: state[UP].T.contiguous()})),
        no_tensor(UP, r"has shape \[16, 8\], config\.json has \[8, 16\]"),
    ),
    (
        "wrong number of dimensions",
        "gemma2",
        tensors(lambda state: state.update({UP: state[UP].reshape(-1)})),
        no_tensor(UP, r"has shape \[128\], config\.json has \[8, 16\]"),
    ),
    (
        "wrong shape of the head",
        "gemma2",
        tensors(lambda state: state.update({HEAD: state[UP].clone()})),
        no_tensor(HEAD, r"has shape \[8, 16\], config\.json has \[24, 16\]"),
    ),
    (
        "another vocabulary",
        "gemma2",
        config(vocab_size=25),
        no_tensor(EMBEDDING, r"has shape \[24, 16\], config\.json has \[25, 16\]"),
    ),
    *[
        (dtype, "gemma2", cast(UP, dtype), no_tensor(UP, f"is {shown}, but only F32, F16, BF16 are read"))
        for dtype, shown in (("int8", "I8"), ("float64", "F64"), ("float8_e4m3fn", "F8_E4M3"), ("bool", "BOOL"))
    ],
]

FILES: list[tuple[str, str, Spoil, str]] = [
    (
        "pickle alone",
        "gemma2",
        both(written("pytorch_model.bin", b"\x80\x02."), removed(SINGLE)),
        r"{hf} holds neither model\.safetensors nor model\.safetensors\.index\.json; pickled weights are not read",
    ),
    ("no weights", "gemma2", removed(SINGLE), r"{hf} holds neither model\.safetensors nor .*"),
    (
        "missing shard",
        "gemma2",
        in_two(lambda folder, files: (folder / "b.safetensors").unlink()),
        r"{hf}: model\.safetensors\.index\.json names b\.safetensors, which is not there",
    ),
    ("tensor in two files", "gemma2", in_two(twice), no_tensor(UP, "is in two files")),
    *[
        (
            f"shard at {place!r}",
            "gemma2",
            in_two(lambda folder, files, place=place: files.update({UP: place})),
            rf"{{hf}}: model\.safetensors\.index\.json names {re.escape(shown)}, which {why}",
        )
        for place, shown, why in (
            *[
                (place, repr(place), "does not lie in the folder")
                for place in ("../x", "../gemma2/a.safetensors", "/etc/passwd", "x/../../x", "./a.safetensors", ".")
            ],
            ("..", "..", "is not there"),
            ("", "", "is not there"),
        )
    ],
    *[
        (
            f"index {content}",
            "gemma2",
            in_two(index=content),
            r"{hf}: model\.safetensors\.index\.json has no weight_map of tensor to file",
        )
        for content in ("[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 3}}', "null")
    ],
]

BROKEN: list[tuple[str, str, Spoil, str]] = [
    *[
        (f"config.json cut at {at}", "gemma2", cut("config.json", at), r"{folder}/config\.json cannot be read: .+")
        for at in (0, 1, 0.1, 0.5, 0.9, -2)
    ],
    *[
        (f"config.json {what}", "gemma2", written("config.json", raw), r"{folder}/config\.json cannot be read: .+")
        for what, raw in (
            ("no text", b"\xff\xfe{}"),
            ("too deep", b"[" * 100_000),
            ("no JSON", b"model_type: gemma2"),
            ("with a number of too many digits", b'{"model_type": ' + b"9" * 5000 + b"}"),
        )
    ],
    ("index cut", "sharded", cut(INDEX, 0.5), r"{folder}/model\.safetensors\.index\.json cannot be read: .+"),
    *[
        (
            f"tensors cut at {at}",
            "gemma2",
            cut(SINGLE, at),
            r"{folder}/model\.safetensors is truncated or no safetensors file: .+",
        )
        for at in (0, 1, 7, 8, 9, 100, 0.1, 0.5, 0.9, -1)
    ],
    *[
        (
            f"tensors are {what}",
            "gemma2",
            written(SINGLE, raw),
            r"{folder}/model\.safetensors is truncated or no safetensors file: .+",
        )
        for what, raw in (
            ("a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 13736\n"),
            ("of a huge header", b"\xff" * 8 + b"{}"),
            ("of a header that is no JSON", b"\x04" + b"\0" * 7 + b"{{{{"),
            ("a pickle", b"\x80\x02}q\x00."),
        )
    ],
    (
        "tensors with bytes behind them",
        "gemma2",
        lambda folder: (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes() + b"x"),
        r"{folder}/model\.safetensors is truncated or no safetensors file: .+",
    ),
    (
        "shard cut",
        "gemma2",
        both(in_two(), cut("b.safetensors", -1)),
        r"{folder}/b\.safetensors is truncated or no safetensors file: .+",
    ),
]


def cases(*lists: list[tuple[str, str, Spoil, str]]) -> list[Any]:
    return [pytest.param(*case, id=name) for each in lists for name, *case in each]


def assert_refused(folder: Path, error: type[Exception], said: str) -> None:
    with pytest.raises((UsageError, InfraError)) as caught:
        models.find(f"hf:{folder}")
    found = str(caught.value)
    words = said.replace("{hf}", re.escape(f"hf:{folder}")).replace("{folder}", re.escape(str(folder)))
    assert re.fullmatch(words, found), found  # a dot is no newline: the text is one line
    assert "\n" not in found
    assert type(caught.value) is error


@pytest.mark.parametrize(("base", "spoil", "said"), cases(CONFIGS, FIELDS, TENSORS, FILES))
def test_a_folder_that_is_no_checkpoint_is_usage(copy: Callable[..., Path], base: str, spoil: Spoil, said: str) -> None:
    folder = copy(base)
    spoil(folder)
    assert_refused(folder, UsageError, said)


@pytest.mark.parametrize(("base", "spoil", "said"), cases(BROKEN))
def test_a_file_that_is_cut_off_or_another_is_infra(
    copy: Callable[..., Path], base: str, spoil: Spoil, said: str
) -> None:
    folder = copy(base)
    spoil(folder)
    assert_refused(folder, InfraError, said)


def test_a_path_that_is_no_folder_is_usage(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none", UsageError, r"{hf}: there is no such folder")
    file = tmp_path / "config.json"
    file.write_text("{}")
    assert_refused(file, UsageError, r"{hf} is a file; give the folder that holds config\.json")
    assert_refused(file / "x", UsageError, r"{hf}: there is no such folder")
    file.unlink()
    assert_refused(tmp_path, UsageError, r"{hf} holds no config\.json: it is no HuggingFace checkpoint")
    (tmp_path / "config.json").mkdir()
    assert_refused(tmp_path, UsageError, r"{hf} holds no config\.json: it is no HuggingFace checkpoint")


def test_a_folder_that_was_repaired_is_read_again(copy: Callable[..., Path]) -> None:
    folder = copy()
    whole = (folder / SINGLE).read_bytes()
    cut(SINGLE, 0.5)(folder)
    assert_refused(folder, InfraError, r"{folder}/model\.safetensors is truncated .*")
    (folder / SINGLE).write_bytes(whole)
    assert models.find(f"hf:{folder}").shape.vocab == 24


def test_weights_cut_off_after_the_folder_was_found_are_infra(copy: Callable[..., Path]) -> None:
    folder = copy()
    model = models.find(f"hf:{folder}")
    cut(SINGLE, 0.5)(folder)
    with pytest.raises(InfraError, match=r"model\.safetensors is truncated or no safetensors file: .*"):
        model.arrays(0)


# --- known not to be one line, or not ours ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["a\nb", "~nobody-of-this-name/x", "x" * 5000, "a\0b"], ids=["newline", "~", "long", "NUL"]
)
def test_a_path_that_no_system_takes_is_usage_in_one_line(path: str) -> None:
    with pytest.raises(UsageError) as caught:
        models.find(f"hf:{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "spoil", "said"),
    cases(
        [
            (
                "tensor name of two lines",
                "gemma2",
                tensors(lambda state: state.update({"x\ny": state[UP].clone()})),
                no_fit("1 extra: .*x.*y.*"),
            ),
            (
                "shard name of two lines",
                "gemma2",
                in_two(lambda folder, files: files.update({UP: "x\ny"})),
                r"{hf}: model\.safetensors\.index\.json names .*x.*y.*",
            ),
            (
                "shard name too long",
                "gemma2",
                in_two(lambda folder, files: files.update({UP: "x" * 300})),
                r"{hf}: model\.safetensors\.index\.json names .*x.*",
            ),
            ("number too large", "gemma2", config(query_pre_attn_scalar=10**400), ".*query_pre_attn_scalar.*"),
            ("no heads", "gemma2", config(num_attention_heads=0), ".*num_attention_heads.*"),
            ("layers as a list", "gemma4-shared", config(per_layer_config=[3]), ".*per_layer_config.*"),
            ("layers of Gemma 2", "gemma2", config(per_layer_config={"1": {"head_dim": 16}}), ".*per_layer_config.*"),
        ]
    ),
)
def test_stranger_folders_are_usage_in_one_line(copy: Callable[..., Path], base: str, spoil: Spoil, said: str) -> None:
    folder = copy(base)
    spoil(folder)
    assert_refused(folder, UsageError, said)


@pytest.mark.parametrize(
    "spoil",
    [
        written("generation_config.json", "[]"),
        config(pad_token_id=999),
        config(transformers_weights="../x.safetensors"),
    ],
    ids=["generation_config", "pad_token_id", "transformers_weights"],
)
def test_a_folder_that_huggingface_does_not_load_is_usage_or_infra(copy: Callable[..., Path], spoil: Spoil) -> None:
    folder = copy("gemma1")
    spoil(folder)
    with pytest.raises((UsageError, InfraError)):
        model = models.find(f"hf:{folder}")
        model.reference(model.arrays(0), (1, 2, 3), "float32")
