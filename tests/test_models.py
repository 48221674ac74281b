"""The models: names, configs that cannot be, weights that are the same every time, and a reference that is finite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import models
from driftgate.model import Model, check_arrays
from driftgate.outcome import UsageError
from models import huggingface, weights
from models.blocks import inverse_frequencies
from models.config import FULL, SLIDING, Rope, pattern
from models.dense.config import DenseConfig
from models.family import FAMILIES
from models.gemma3.presets import CONFIG_270M, FIELDS_270M, recorded_prompt
from models.gemma4.config import Gemma4Config
from models.gemma4.presets import TINY as TINY_FIELDS

SMALL = {"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
OWN = {SLIDING: PLAIN, FULL: {"rope_type": "default", "rope_theta": 1e6}}
PARTIAL = {SLIDING: PLAIN, FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}


def small(model_type: str, layers: int, **more: Any) -> dict[str, Any]:
    """A config.json; a full layer after each sliding one, whose window is 4."""
    windows = {"layer_types": list(pattern(layers, 1)), "sliding_window": 4}
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "head_dim": 16,
        "vocab_size": 24,
        **SMALL,
        **({} if model_type == "gemma" else windows),
        **more,
    }


FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma1": ("gemma1", small("gemma", 2, rope_parameters=PLAIN)),
    "gemma2": (
        "gemma2",
        small(
            *("gemma2", 2),
            query_pre_attn_scalar=4,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=30.0,
            rope_parameters=PLAIN,
        ),
    ),
    "gemma3": ("gemma3", small("gemma3_text", 2, query_pre_attn_scalar=16, rope_parameters=OWN)),
    "gemma4": (
        "gemma4",
        small(
            *("gemma4_text", 6),
            head_dim=8,
            global_head_dim=16,
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=4,
            vocab_size_per_layer_input=24,
            final_logit_softcapping=30.0,
            rope_parameters=PARTIAL,
        ),
    ),
    "gemma4-moe": (
        "gemma4",
        small(
            *("gemma4_text", 4),
            head_dim=8,
            global_head_dim=16,
            num_key_value_heads=2,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=8,
            hidden_size_per_layer_input=0,
            final_logit_softcapping=30.0,
            rope_parameters=PARTIAL,
        ),
    ),
}
"""By name: the family, and the config.json of a model of a few thousand parameters, all with a vocabulary of 24."""

CONFIGS: dict[str, Any] = {name: FAMILIES[family].config(read) for name, (family, read) in FIELDS.items()}
SMALL4: Gemma4Config = CONFIGS["gemma4"]
"""SLIDING, FULL, SLIDING, FULL, and of the last two the K and V of layers 2 and 3."""
SMALL2: DenseConfig = CONFIGS["gemma2"]
TINY: Any = FAMILIES["gemma4"].config(TINY_FIELDS)
MOE: Gemma4Config = CONFIGS["gemma4-moe"]

IDS = (3, 1, 4, 1, 5, 9, 2, 6)


# --- names ------------------------------------------------------------------------------------------------------------


def test_every_name_finds_its_model() -> None:
    assert {"gemma4-tiny", "gemma3-270m"} <= set(models.names())
    for name in models.names():
        assert models.find(name).name == name
        assert models.find(name).slug == name


def test_every_family_has_a_tiny_preset() -> None:
    assert set(models.tiny()) <= set(models.names())
    assert {models.find(name).family for name in models.tiny()} == set(FAMILIES)
    assert {models.find(name).family for name in models.names()} == set(FAMILIES)


@pytest.mark.parametrize("name", ["gemma5", "", "Gemma4-tiny", "gemma4-tiny "])
def test_an_unknown_name_is_usage_and_lists_the_models(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        models.find(name)
    assert str(caught.value) == f"unknown model {name!r}; the models are {', '.join(models.names())}, and hf:PATH"


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

COUNTS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
COUNTS3 = (*COUNTS, "head_dim", "sliding_window", "vocab_size")
COUNTS4 = (*COUNTS, "sliding_window", "vocab_size")
EXPERTS = ("num_experts", "top_k_experts", "moe_intermediate_size")
NO_NUMBERS = (0.0, -1.0, nan, inf, -inf)


def roped(config: Any, layer_type: str, **changes: float) -> dict[str, Any]:
    """The change of RoPE of one layer type."""
    return {"ropes": {**config.ropes, layer_type: replace(config.ropes[layer_type], **changes)}}


CONTRADICTIONS: list[Any] = [
    *[(CONFIG_270M, {name: n}, f"{name} is {n}, but must be at least 1") for name in COUNTS3 for n in (0, -1)],
    (CONFIG_270M, {"num_key_value_heads": 3}, "num_attention_heads (4) must be a multiple of num_key_value_heads (3)"),
    (CONFIG_270M, {"num_key_value_heads": 8}, "num_attention_heads (4) must be a multiple of num_key_value_heads (8)"),
    (CONFIG_270M, {"num_attention_heads": 65_536}, "num_attention_heads is 65536, but the kernels take at most 65,535"),
    (CONFIG_270M, {"head_dim": 255}, "head_dim is 255, but RoPE needs an even number"),
    *[
        (config, {name: n}, f"{name} is {n}, but must be above 0")
        for config, names in (
            (CONFIG_270M, ("query_pre_attn_scalar", "rms_norm_eps")),
            (SMALL2, ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")),
            (TINY, ("final_logit_softcapping", "rms_norm_eps")),
        )
        for name in names
        for n in NO_NUMBERS
    ],
    *[
        (config, {"layer_types": types}, f"layer_types has {len(types)} entries, but num_hidden_layers is {layers}")
        for config, layers in ((CONFIG_270M, 18), (TINY, 10))
        for types in ((), pattern(layers - 1, 0), pattern(layers + 1, 0))
    ],
    (CONFIG_270M, {"num_hidden_layers": 17}, "layer_types has 18 entries, but num_hidden_layers is 17"),
    (CONFIG_270M, {"sliding_window": None}, "sliding_window is null, but layer_types has sliding_attention layers"),
    (SMALL2, {"sliding_window": None}, "sliding_window is null, but layer_types has sliding_attention layers"),
    *[
        (config, roped(config, kind, **{name: n}), f"RoPE {name} of {kind} is {n}, but must be above 0")
        for config in (CONFIG_270M, SMALL2, TINY)
        for kind in (SLIDING, FULL)
        for name in ("theta", "factor", "share")
        for n in NO_NUMBERS
    ],
    *[
        (config, roped(config, kind, share=n), f"partial_rotary_factor of {kind} is {n}, but at most 1 can be")
        for config in (CONFIG_270M, TINY)
        for kind in (SLIDING, FULL)
        for n in (1.001, 2.0)
    ],
    *[(TINY, {name: n}, f"{name} is {n}, but must be at least 1") for name in COUNTS4 for n in (0, -1)],
    *[
        (TINY, {name: -1}, f"{name} is -1, but must be at least 0")
        for name in ("hidden_size_per_layer_input", "num_kv_shared_layers")
    ],
    (TINY, {"num_key_value_heads": 3}, "num_attention_heads (8) must be a multiple of num_key_value_heads (3)"),
    (TINY, {"num_attention_heads": 65_536}, "num_attention_heads is 65536, but the kernels take at most 65,535"),
    *[
        (MOE, {"num_global_key_value_heads": n}, f"num_global_key_value_heads is {n}, but must be at least 1")
        for n in (0, -1)
    ],
    *[
        (
            TINY,
            {"num_key_value_heads": many, "num_global_key_value_heads": few},
            f"num_key_value_heads ({many}) must be a multiple of num_global_key_value_heads ({few}), "
            "which the one cache repeats",
        )
        for many, few in ((8, 3), (4, 8), (1, 2))
    ],
    *[(TINY, {"head_dim": n}, f"head_dim is {n}, but RoPE needs an even number") for n in (0, 255, -2)],
    *[(TINY, {"global_head_dim": n}, f"global_head_dim is {n}, but RoPE needs an even number") for n in (0, 511, -2)],
    (TINY, {"head_dim": 514}, "head_dim (514) exceeds global_head_dim (512), to which the one cache pads"),
    *[
        (TINY, {"num_kv_shared_layers": n}, f"num_kv_shared_layers ({n}) must be below num_hidden_layers (10)")
        for n in (10, 11)
    ],
    *[
        (
            TINY,
            {"num_hidden_layers": layers, "layer_types": pattern(layers, per_full)},
            "layer_types ends with sliding_attention, but the last must be full_attention",
        )
        for layers, per_full in ((9, 4), (10, 5))
    ],
    *[
        (
            config,
            {"num_kv_shared_layers": n},
            f"with num_kv_shared_layers {n} no layer owns the K and V that the sharing layers of type {types} read",
        )
        for config, n, types in ((TINY, 6, FULL), (SMALL4, 5, FULL))
    ],
    (
        TINY,
        {"layer_types": (FULL,) * 5 + (SLIDING,) * 4 + (FULL,)},
        "with num_kv_shared_layers 5 no layer owns the K and V that the sharing layers of type sliding_attention read",
    ),
    *[(MOE, {name: n}, f"{name} is {n}, but must be at least 1") for name in EXPERTS for n in (0, -1)],
    (MOE, {"top_k_experts": 5}, "top_k_experts (5) exceeds num_experts (4)"),
    (TINY, {"enable_moe_block": True}, "num_experts is 0, but must be at least 1"),
]


@pytest.mark.parametrize(("config", "changes", "message"), CONTRADICTIONS)
def test_a_config_that_contradicts_itself_is_usage_and_names_the_field(
    config: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        replace(config, **changes)
    assert str(caught.value) == f"{config.family} config: {message}"


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (TINY, {"num_key_value_heads": 8}),
        (TINY, {"num_key_value_heads": 2}),
        (TINY, {"num_kv_shared_layers": 0}),
        (TINY, {"head_dim": 512}),
        (TINY, {"num_hidden_layers": 5, "layer_types": pattern(5, 4), "num_kv_shared_layers": 0}),
        (TINY, {"layer_types": pattern(10, 0)}),
        (TINY, {"sliding_window": 1}),
        (TINY, {"hidden_size_per_layer_input": 0}),
        (TINY, {"num_attention_heads": 65_535}),
        (TINY, {"final_logit_softcapping": None}),
        (TINY, {"num_key_value_heads": 8, "num_global_key_value_heads": 2}),
        (TINY, {"num_key_value_heads": 8, "num_global_key_value_heads": 8}),
        (TINY, {"enable_moe_block": True, "num_experts": 3, "top_k_experts": 3, "moe_intermediate_size": 1}),
        (TINY, {"num_experts": 3, "top_k_experts": 4}),  # without a mixture of experts they mean nothing
        (TINY, roped(TINY, FULL, share=1.0)),
        (CONFIG_270M, {"num_key_value_heads": 4}),
        (CONFIG_270M, {"layer_types": pattern(18, 0)}),
        (CONFIG_270M, {"layer_types": pattern(18, 0), "sliding_window": None}),
        (CONFIG_270M, {"layer_types": (SLIDING,) * 18}),
        (CONFIG_270M, {"num_hidden_layers": 1, "layer_types": (SLIDING,)}),
        (CONFIG_270M, {"query_pre_attn_scalar": 168.0}),
        (CONFIG_270M, {"num_attention_heads": 65_535}),
        (CONFIG_270M, {"attn_logit_softcapping": 50.0}),
        (SMALL2, {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ],
)
def test_their_neighbours_that_can_be_are_allowed(config: Any, changes: dict[str, Any]) -> None:
    changed = replace(config, **changes)
    assert all(getattr(changed, name) == value for name, value in changes.items())


# --- layers -----------------------------------------------------------------------------------------------------------


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
        (replace(SMALL4, num_kv_shared_layers=0), "SFSFSF", [0, 1, 2, 3, 4, 5], [16] * 6),
        (replace(SMALL4, num_kv_shared_layers=4), "SFSFSF", [0, 1, 0, 1, 0, 1], [16] * 2 + [32] * 4),
        (replace(SMALL4, num_kv_shared_layers=3), "SFSFSF", [0, 1, 2, 1, 2, 1], [16] * 3 + [32] * 3),
        (
            replace(SMALL4, layer_types=pattern(6, 0), num_kv_shared_layers=5),
            "FFFFFF",
            [0] * 6,
            [16] + [32] * 5,
        ),
        (replace(SMALL4, use_double_wide_mlp=False), "SFSFSF", [0, 1, 2, 3, 2, 3], [16] * 6),
        (
            replace(SMALL4, layer_types=pattern(6, 2), num_kv_shared_layers=3),
            "SSFSSF",
            [0, 1, 2, 1, 1, 2],
            [16] * 3 + [32] * 3,
        ),
    ],
)
def test_layer_types_sources_and_widths(
    config: Gemma4Config, types: str, sources: list[int], widths: list[int]
) -> None:
    layers = range(config.num_hidden_layers)
    kinds = [{"S": SLIDING, "F": FULL}[letter] for letter in types]
    assert list(config.layer_types) == kinds
    assert [config.source(i) for i in layers] == sources
    assert [config.mlp_width(i) for i in layers] == widths
    assert [config.shares(i) for i in layers] == [i >= len(layers) - config.num_kv_shared_layers for i in layers]
    assert config.owners == len(layers) - config.num_kv_shared_layers
    assert config.cache_kinds == tuple("mha_sliding" if letter == "S" else "mha" for letter in types[: config.owners])
    assert config.window == (config.sliding_window if "S" in types else None)
    dims = {SLIDING: config.head_dim, FULL: config.global_head_dim}
    assert [config.width(i) for i in layers] == [dims[kind] for kind in kinds]
    for i in layers:
        assert not config.shares(config.source(i))
        assert config.layer_types[config.source(i)] == config.layer_types[i]


@pytest.mark.parametrize(
    ("changes", "sliding", "full", "keys"),
    [
        ({}, 2, 1, True),
        ({"attention_k_eq_v": False}, 2, 1, False),
        ({"num_global_key_value_heads": None}, 2, 2, True),
        ({"num_attention_heads": 8, "num_key_value_heads": 8, "num_global_key_value_heads": 4}, 8, 4, True),
    ],
)
def test_full_layers_may_have_fewer_kv_heads_and_keys_for_values(
    changes: dict[str, Any], sliding: int, full: int, keys: bool
) -> None:
    config = replace(MOE, **changes)
    assert [config.kv_heads(i) for i in range(4)] == [sliding, full] * 2
    assert [config.values_are_keys(i) for i in range(4)] == [False, keys] * 2
    assert config.cache_kv_heads == sliding  # those of a full layer are repeated to fit the one cache
    assert (config.cache_head_dim, config.embed_width) == (16, 32)


@pytest.mark.parametrize(("share", "pairs"), [(0.25, 64), (1.0, 256), (0.5, 128), (0.001, 0)])
def test_proportional_rope_turns_its_share_of_the_pairs(share: float, pairs: int) -> None:
    found = inverse_frequencies(512, Rope(1e6, share=share))
    assert (found.shape, found.dtype) == ((256,), np.float32)
    assert np.flatnonzero(found).tolist() == list(range(pairs))
    np.testing.assert_allclose(found[:pairs], 1e6 ** (-np.arange(pairs) / 256), rtol=1e-5)


def test_linear_rope_divides_the_frequencies() -> None:
    plain, scaled = inverse_frequencies(64, Rope(1e6)), inverse_frequencies(64, Rope(1e6, factor=8.0))
    assert (plain == 8 * scaled).all()
    assert plain[0] == 1


@pytest.mark.parametrize(
    ("per_full", "expected"), [(5, [False] * 5 + [True] + [False] * 2), (1, [False, True] * 4), (0, [True] * 8)]
)
def test_a_full_layer_comes_after_so_many_sliding_ones(per_full: int, expected: list[bool]) -> None:
    types = pattern(8, per_full)
    assert types == tuple(FULL if full else SLIDING for full in expected)
    config = replace(CONFIG_270M, num_hidden_layers=8, layer_types=types)
    assert config.cache_kinds == tuple("mha" if full else "mha_sliding" for full in expected)
    assert config.window == (None if all(expected) else 512)


def test_the_shape_of_a_preset_is_that_of_its_config() -> None:
    shape = models.find("gemma4-tiny").shape
    assert (shape.layers, shape.attention_layers, shape.head_dim, shape.window, shape.vocab) == (10, 10, 512, 64, 512)
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.capacity, shape.softcap) == (128, 8, 1, 512, None)
    shape = models.find("gemma3-270m").shape
    config = CONFIG_270M
    expected = {
        "layers": config.num_hidden_layers,
        "attention_layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "window": config.sliding_window,
        "vocab": config.vocab_size,
        "capacity": 1024,
        "softcap": None,
    }
    assert {name: getattr(shape, name) for name in expected} == expected


def test_the_shape_of_a_preset_knows_its_cap_its_window_and_the_kv_heads_of_its_cache() -> None:
    found = {name: models.find(name).shape for name in models.names()}
    assert {name for name, shape in found.items() if shape.softcap == 50.0} == {"gemma2-tiny", "gemma2-2b"}
    assert {name for name, shape in found.items() if shape.softcap is None} == set(found) - {"gemma2-tiny", "gemma2-2b"}
    assert {name for name, shape in found.items() if shape.window is None} == {"gemma1-tiny", "gemma1-2b"}
    assert (found["gemma4-12b-tiny"].kv_heads, found["gemma4-31b"].kv_heads) == (4, 16)


# --- weights ----------------------------------------------------------------------------------------------------------


def shapes(name: str) -> list[tuple[str, tuple[int, ...]]]:
    return list(FAMILIES[FIELDS[name][0]].shapes()(CONFIGS[name]))


def drawn(name: str, seed: int) -> dict[str, np.ndarray]:
    return weights.random(shapes(name), seed, FAMILIES[FIELDS[name][0]].norm_offset)


@pytest.mark.parametrize("name", FIELDS)
def test_random_weights_follow_the_seed_and_nothing_else(name: str) -> None:
    first, again, other = drawn(name, 7), drawn(name, 7), drawn(name, 8)
    assert list(first) == list(again) == list(other)
    for key, array in first.items():
        assert array.dtype == np.float32
        assert array.tobytes() == again[key].tobytes()
        assert array.tobytes() != other[key].tobytes(), key
    assert {key: array.shape for key, array in first.items()} == dict(shapes(name))
    check_arrays(first, name)


@pytest.mark.parametrize("name", models.tiny())
def test_a_preset_draws_its_weights_by_the_seed(name: str) -> None:
    model: Model = models.find(name)
    first, again, other = model.arrays(3), model.arrays(3), model.arrays(4)
    assert list(first) == list(again) == list(other)
    for key, array in first.items():
        assert array.dtype == np.float32
        assert array.tobytes() == again[key].tobytes()
        assert array.tobytes() != other[key].tobytes(), key
    check_arrays(first, name)


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_random_norm_multiplies_by_is_about_one(name: str) -> None:
    offset = {"gemma4": 0.0}.get(FIELDS[name][0], 1.0)
    for key, array in drawn(name, 0).items():
        if "norm" in key:
            factor = array + offset
            damped = key.endswith("q_norm.weight") and not offset
            low, high = (0.06 * 0.8, 0.06 * 1.2) if damped else (0.8, 1.2)
            assert low - 1e-6 <= factor.min() <= factor.max() <= high + 1e-6, key
        elif array.ndim > 1 and array.size > 500:
            spread = 1.0 if "router" in key else array.shape[-1] ** -0.5
            assert 0.8 * spread < array.std() < 1.2 * spread, key


def test_layers_that_share_have_no_keys_and_values_of_their_own() -> None:
    owned = {
        name.split(".")[2] for name, _ in shapes("gemma4") if "k_proj" in name or "v_proj" in name or "k_norm" in name
    }
    assert owned == {"0", "1", "2", "3"}


def test_layers_whose_values_are_their_keys_have_no_values_of_their_own() -> None:
    found = dict(shapes("gemma4-moe"))
    assert [i for i in range(4) if f"model.layers.{i}.self_attn.v_proj.weight" in found] == [0, 2]
    rows = [found[f"model.layers.{i}.self_attn.k_proj.weight"][0] for i in range(4)]
    assert rows == [2 * 8, 1 * 16] * 2


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


@pytest.fixture(scope="module", params=FIELDS)
def family(request: pytest.FixtureRequest) -> tuple[Callable[[], Any], dict[str, np.ndarray]]:
    """What makes an empty HuggingFace model of a few thousand parameters, and arrays for it."""
    kind, read = FIELDS[request.param]
    return lambda: FAMILIES[kind].huggingface(read), drawn(request.param, 0)


@pytest.fixture(scope="module")
def logits(family: tuple[Callable[[], Any], dict[str, np.ndarray]]) -> Callable[..., np.ndarray]:
    make, arrays = family

    def compute(ids: tuple[int, ...] = IDS, dtype: str = "float64", **changes: np.ndarray) -> np.ndarray:
        return huggingface.logits(make, {**arrays, **changes}, ids, dtype)

    return compute


@pytest.mark.parametrize(
    ("name", "family", "read"),
    [
        ("gemma4-tiny", "gemma4", {"model_type": "gemma4_text", **TINY_FIELDS}),
        ("gemma3-270m", "gemma3", FIELDS_270M),
    ],
)
def test_the_reference_of_a_preset_can_be_built(name: str, family: str, read: dict[str, Any]) -> None:
    import torch

    with torch.device("meta"):  # shapes alone: a gigabyte of weights is not the point
        model = FAMILIES[family].huggingface(read)
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
