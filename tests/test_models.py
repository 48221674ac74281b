"""The models: names, configs that cannot be, weights that are the same every time, and a reference that is finite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import models
from driftgate.model import check_arrays
from driftgate.outcome import UsageError
from models import huggingface
from models.gemma3 import build as build3
from models.gemma3.config import Gemma3Config
from models.gemma3.presets import CONFIG_270M, recorded_prompt
from models.gemma4 import build as build4
from models.gemma4 import weights
from models.gemma4.config import FULL, SLIDING, Gemma4Config
from models.gemma4.presets import TINY

SMALL4 = Gemma4Config(
    layers=6,
    hidden=32,
    intermediate=16,
    heads=2,
    kv_heads=1,
    sliding_head_dim=8,
    full_head_dim=16,
    window=4,
    sliding_per_full=1,
    shared_layers=2,
    double_wide=True,
    per_layer_width=4,
    vocab=24,
)
"""SLIDING, FULL, SLIDING, FULL, and of the last two the K and V of layers 2 and 3."""

SMALL3 = Gemma3Config(
    layers=2,
    hidden=32,
    intermediate=16,
    heads=2,
    kv_heads=1,
    head_dim=16,
    window=4,
    sliding_per_full=1,
    vocab=24,
    query_pre_attn_scalar=16,
)

IDS = (3, 1, 4, 1, 5, 9, 2, 6)


# --- names ------------------------------------------------------------------------------------------------------------


def test_every_name_finds_its_model() -> None:
    assert {"gemma4-tiny", "gemma3-270m"} <= set(models.names())
    for name in models.names():
        assert models.find(name).name == name


@pytest.mark.parametrize("name", ["gemma5", "", "Gemma4-tiny", "gemma4-tiny "])
def test_an_unknown_name_is_usage_and_lists_the_models(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        models.find(name)
    assert str(caught.value) == f"unknown model {name!r}; the models are {', '.join(models.names())}"


@pytest.mark.parametrize("name", models.names())
def test_every_plan_of_a_model_fits_it_and_merges(name: str) -> None:
    model = models.find(name)
    assert "default" in model.plans
    for plan in model.plans.values():
        assert plan.tokens == sum(plan.chunks) <= model.shape.capacity
        assert any(n > 1 for n in plan.chunks[1:])
    with pytest.raises(UsageError, match=rf"^{name} has no plan 'x'; it has {', '.join(model.plans)}$"):
        model.plan("x")


@pytest.mark.parametrize("name", models.names())
def test_prompts_are_in_the_vocabulary_and_the_same_every_time(name: str) -> None:
    model = models.find(name)
    tokens = max(plan.tokens for plan in model.plans.values())
    ids = model.prompt(tokens, 0)
    assert ids == model.prompt(tokens, 0)
    assert len(ids) == tokens
    assert all(type(i) is int and 0 <= i < model.shape.vocab for i in ids)
    assert len(set(ids)) > tokens // 3  # not one token over and over


def test_a_random_prompt_follows_the_seed() -> None:
    prompt = models.find("gemma4-tiny").prompt
    assert prompt(48, 0) != prompt(48, 1)
    assert prompt(48, 0) == prompt(96, 0)[:48]


def test_a_recorded_prompt_says_where_it_ends() -> None:
    with pytest.raises(
        UsageError, match=r"^the recorded prompt of gemma3-270m has \d+ tokens, not 1000000; give --prompt-ids$"
    ):
        recorded_prompt(1_000_000, 0)


@pytest.mark.parametrize(
    "module", ["driftgate.cli", "models", "driftgate.options", "driftgate.plan", "driftgate.outcome"]
)
def test_a_name_is_looked_up_without_importing_what_is_heavy(module: str) -> None:
    look_up = "; import models; models.find('gemma4-tiny'), models.names()" if module == "models" else ""
    heavy = "{'numpy', 'tvm', 'tvm_ffi', 'torch', 'transformers', 'scipy', 'pytest', 'rich'}"
    code = f"import sys, {module}{look_up}; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- configs that cannot be -------------------------------------------------------------------------------------------

COUNTS3 = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "window", "vocab")
COUNTS4 = ("layers", "hidden", "intermediate", "heads", "kv_heads", "window", "vocab", "per_layer_width")

LAST = "the last of {} layers must be a full one, but with {} sliding per full"

CONTRADICTIONS: list[Any] = [
    *[(CONFIG_270M, {name: n}, f"{name} is {n}, but must be at least 1") for name in COUNTS3 for n in (0, -1)],
    (CONFIG_270M, {"kv_heads": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
    (CONFIG_270M, {"head_dim": 255}, "head_dim is 255, but RoPE needs an even number"),
    (CONFIG_270M, {"query_pre_attn_scalar": 0.0}, "query_pre_attn_scalar is 0.0, but must be above 0"),
    (CONFIG_270M, {"query_pre_attn_scalar": -1.0}, "query_pre_attn_scalar is -1.0, but must be above 0"),
    pytest.param(CONFIG_270M, {"sliding_per_full": -1}, "sliding_per_full is -1"),
    *[(TINY, {name: n}, f"{name} is {n}, but must be at least 1") for name in COUNTS4 for n in (0, -1)],
    (TINY, {"kv_heads": 3}, r"heads \(8\) must be a multiple of kv_heads \(3\)"),
    *[(TINY, {"sliding_head_dim": n}, f"sliding_head_dim is {n}, but RoPE needs an even number") for n in (0, 255, -2)],
    *[(TINY, {"full_head_dim": n}, f"full_head_dim is {n}, but RoPE needs an even number") for n in (0, 511, -2)],
    (TINY, {"sliding_head_dim": 514}, r"sliding_head_dim \(514\) exceeds full_head_dim \(512\)"),
    *[(TINY, {"shared_layers": n}, rf"shared_layers \({n}\) must be below layers \(10\)") for n in (-1, 10, 11)],
    (TINY, {"layers": 9}, LAST.format(9, 4)),
    (TINY, {"sliding_per_full": 5}, LAST.format(10, 5)),
    (
        TINY,
        {"shared_layers": 6},
        "with shared_layers 6 no layer owns the K and V that the sharing layers of type full_attention read",
    ),
    pytest.param(TINY, {"sliding_per_full": -1}, "sliding_per_full is -1"),
]


@pytest.mark.parametrize(("config", "changes", "message"), CONTRADICTIONS)
def test_a_config_that_contradicts_itself_is_usage_and_names_the_field(
    config: Any, changes: dict[str, Any], message: str
) -> None:
    family = "gemma3" if config is CONFIG_270M else "gemma4"
    with pytest.raises(UsageError, match=f"^{family} config: {message}") as caught:
        replace(config, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (TINY, {"kv_heads": 8}),
        (TINY, {"kv_heads": 2}),
        (TINY, {"shared_layers": 0}),
        (TINY, {"sliding_head_dim": 512}),
        (TINY, {"layers": 5, "shared_layers": 0}),
        (TINY, {"sliding_per_full": 0}),
        (TINY, {"window": 1}),
        (CONFIG_270M, {"kv_heads": 4}),
        (CONFIG_270M, {"sliding_per_full": 0}),
        (CONFIG_270M, {"layers": 1}),
        (CONFIG_270M, {"query_pre_attn_scalar": 168.0}),
    ],
)
def test_their_neighbours_that_can_be_are_allowed(config: Any, changes: dict[str, Any]) -> None:
    changed = replace(config, **changes)
    assert all(getattr(changed, name) == value for name, value in changes.items())


# --- Gemma 4's layers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "types", "sources", "widths"),
    [
        (
            TINY,
            "SSSSFSSSSF",
            [0, 1, 2, 3, 4, 3, 3, 3, 3, 4],
            [256] * 5 + [512] * 5,
        ),
        (SMALL4, "SFSFSF", [0, 1, 2, 3, 2, 3], [16] * 4 + [32] * 2),
        (replace(SMALL4, shared_layers=0), "SFSFSF", [0, 1, 2, 3, 4, 5], [16] * 6),
        (replace(SMALL4, shared_layers=4), "SFSFSF", [0, 1, 0, 1, 0, 1], [16] * 2 + [32] * 4),
        (replace(SMALL4, shared_layers=3), "SFSFSF", [0, 1, 2, 1, 2, 1], [16] * 3 + [32] * 3),
        (replace(SMALL4, sliding_per_full=0, shared_layers=5), "FFFFFF", [0] * 6, [16] + [32] * 5),
        (replace(SMALL4, double_wide=False), "SFSFSF", [0, 1, 2, 3, 2, 3], [16] * 6),
        (replace(SMALL4, sliding_per_full=2, shared_layers=3), "SSFSSF", [0, 1, 2, 1, 1, 2], [16] * 3 + [32] * 3),
    ],
)
def test_layer_types_sources_and_widths(
    config: Gemma4Config, types: str, sources: list[int], widths: list[int]
) -> None:
    layers = range(config.layers)
    kinds = [{"S": SLIDING, "F": FULL}[letter] for letter in types]
    assert [config.layer_type(i) for i in layers] == kinds
    assert [config.source(i) for i in layers] == sources
    assert [config.mlp_width(i) for i in layers] == widths
    assert [config.shares(i) for i in layers] == [i >= config.layers - config.shared_layers for i in layers]
    assert config.owners == config.layers - config.shared_layers
    dims = {SLIDING: config.sliding_head_dim, FULL: config.full_head_dim}
    assert [config.head_dim(i) for i in layers] == [dims[kind] for kind in kinds]
    for i in layers:
        assert not config.shares(config.source(i))
        assert config.layer_type(config.source(i)) == config.layer_type(i)


@pytest.mark.parametrize(("factor", "pairs"), [(0.25, 64), (1.0, 256), (0.5, 128), (0.001, 0)])
def test_proportional_rope_turns_its_share_of_the_pairs(factor: float, pairs: int) -> None:
    assert replace(TINY, full_rotary_factor=factor).full_rotated_pairs == pairs


@pytest.mark.parametrize(
    ("per_full", "expected"), [(5, [False] * 5 + [True] + [False] * 2), (1, [False, True] * 4), (0, [True] * 8)]
)
def test_gemma3_has_a_full_layer_after_so_many_sliding_ones(per_full: int, expected: list[bool]) -> None:
    config = replace(CONFIG_270M, sliding_per_full=per_full)
    assert [config.full(i) for i in range(8)] == expected


def test_the_shape_of_a_preset_is_that_of_its_config() -> None:
    shape = models.find("gemma4-tiny").shape
    assert (shape.layers, shape.attention_layers, shape.head_dim, shape.window, shape.vocab) == (10, 10, 512, 64, 512)
    shape = models.find("gemma3-270m").shape
    for name in {field.name for field in fields(shape)} & {field.name for field in fields(CONFIG_270M)}:
        assert getattr(shape, name) == getattr(CONFIG_270M, name)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_random_weights_follow_the_seed_and_nothing_else() -> None:
    first, again, other = weights.random(SMALL4, 7), weights.random(SMALL4, 7), weights.random(SMALL4, 8)
    assert list(first) == list(again) == list(other)
    for name, array in first.items():
        assert array.dtype == np.float32
        assert array.tobytes() == again[name].tobytes()
        assert array.tobytes() != other[name].tobytes(), name
    assert {name: array.shape for name, array in first.items()} == dict(weights.shapes(SMALL4))
    check_arrays(first, "gemma4")


def test_layers_that_share_have_no_keys_and_values_of_their_own() -> None:
    owned = {
        name.split(".")[2]
        for name, _ in weights.shapes(SMALL4)
        if "k_proj" in name or "v_proj" in name or "k_norm" in name
    }
    assert owned == {"0", "1", "2", "3"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, -1])
def test_a_weight_that_is_not_finite_is_usage_and_its_tensor_is_named(bad: float, place: int) -> None:
    arrays = {"a": np.ones((3, 4), np.float32), "model.layers.3.mlp": np.ones((2, 2), np.float32), "z": np.ones(2)}
    arrays["model.layers.3.mlp"].flat[place] = bad
    message = "^weights of m: model.layers.3.mlp holds 1 values that are NaN or infinite$"
    with pytest.raises(UsageError, match=message):
        check_arrays(arrays, "m")


def test_infinities_that_cancel_are_counted() -> None:
    with np.errstate(invalid="ignore"), pytest.raises(UsageError, match="a holds 2 values"):
        check_arrays({"a": np.float32([1, np.inf, -np.inf])}, "m")


@pytest.mark.parametrize(
    "array", [np.float32([3e38, 3e38, 3e38]), np.float16([65504] * 9), np.full(3, 1e308), np.zeros(2), np.empty(0)]
)
def test_large_but_finite_weights_are_fine(array: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        check_arrays({"a": array}, "m")


# --- the reference ----------------------------------------------------------------------------------------------------


def _arrays3(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {name: tuple(p.shape) for name, p in build3.huggingface(SMALL3).named_parameters()}
    return {
        name: (0.3 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
        if "lm_head" not in name
    }


@pytest.fixture(scope="module", params=["gemma3", "gemma4"])
def family(request: pytest.FixtureRequest) -> tuple[Callable[[], Any], dict[str, np.ndarray]]:
    """What makes an empty HuggingFace model of a few thousand parameters, and arrays for it."""
    if request.param == "gemma3":
        return lambda: build3.huggingface(SMALL3), _arrays3(0)
    return lambda: build4.huggingface(SMALL4), weights.random(SMALL4, 0)


@pytest.fixture(scope="module")
def logits(family: tuple[Callable[[], Any], dict[str, np.ndarray]]) -> Callable[..., np.ndarray]:
    make, arrays = family

    def compute(ids: tuple[int, ...] = IDS, dtype: str = "float64", **changes: np.ndarray) -> np.ndarray:
        return huggingface.logits(make, {**arrays, **changes}, ids, dtype)

    return compute


@pytest.mark.parametrize(
    "name",
    [
        "gemma4-tiny",
        "gemma3-270m",
    ],
)
def test_the_reference_of_a_preset_can_be_built(name: str) -> None:
    import torch

    with torch.device("meta"):  # shapes alone: a gigabyte of weights is not the point
        model = build4.huggingface(TINY) if name == "gemma4-tiny" else build3.huggingface(CONFIG_270M)
    shape = models.find(name).shape
    assert model.get_input_embeddings().weight.shape == (shape.vocab, shape.hidden)
    assert model.config.num_hidden_layers == shape.layers


def test_reference_logits_are_finite_at_every_position_and_repeat(logits: Callable[..., np.ndarray]) -> None:
    found = logits()
    assert (found.shape, found.dtype) == ((len(IDS), 24), np.float64)
    assert np.isfinite(found).all()
    assert found.std(-1).min() > 1e-3  # not one value over and over, at no position
    assert logits().tobytes() == found.tobytes()


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-23), ("float16", 2.0**-10)])
def test_a_lower_precision_differs_from_float64_by_its_rounding(
    logits: Callable[..., np.ndarray], dtype: str, unit: float
) -> None:
    found, exact = logits(dtype=dtype), logits()
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact).max() < 100 * unit * max(np.abs(exact).max(), 1)


def test_a_reference_position_sees_what_is_before_it_and_only_that(logits: Callable[..., np.ndarray]) -> None:
    found, other = logits(), logits((*IDS[:5], 20, *IDS[6:]))
    np.testing.assert_allclose(found[:5], other[:5], rtol=0, atol=1e-12)
    for position in range(5, len(IDS)):
        assert np.abs(found[position] - other[position]).max() > 1e-6


def test_arrays_that_do_not_fit_the_reference_are_usage(
    family: tuple[Callable[[], Any], dict[str, np.ndarray]],
) -> None:
    make, arrays = family
    without = {name: array for name, array in arrays.items() if name != "model.norm.weight"}
    with pytest.raises(UsageError, match=r"missing \['model.norm.weight'\], unknown \[\]$"):
        huggingface.logits(make, without, IDS, "float32")
    with pytest.raises(UsageError, match=r"missing \[\], unknown \['model.extra'\]$"):
        huggingface.logits(make, {**arrays, "model.extra": np.ones(2, np.float32)}, IDS, "float32")
    with pytest.raises(UsageError, match=r"model.norm.weight.*torch.Size\(\[5\]\)") as caught:
        huggingface.logits(make, {**arrays, "model.norm.weight": np.ones(5, np.float32)}, IDS, "float32")
    assert "\n" not in str(caught.value)
