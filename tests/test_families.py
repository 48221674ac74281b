"""The families: parameters as HuggingFace has them, config.json fields that cannot be, and capped attention kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import models
from driftgate.kernels import sliding_prefill, softcap
from driftgate.kernels.references import references
from driftgate.kernels.signatures import SIGNATURES
from driftgate.outcome import InfraError, UsageError
from driftgate.target import NAMES, resolve, to_tvm
from models.config import FULL, SLIDING, Fields, pattern
from models.family import FAMILIES, family_of
from tests import test_references as kernels

SMALL = {"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
PARTIAL = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}


def small(family: str, types: tuple[str, ...] = pattern(4, 1), **more: Any) -> dict[str, Any]:
    """A config.json of ``family`` with a vocabulary of 24; ``more`` are further fields, or others."""
    windows = {"layer_types": list(types), "sliding_window": 4}
    own = {
        "gemma1": {"rope_parameters": PLAIN},
        "gemma2": {**windows, "rope_parameters": PLAIN, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 50.0},
        "gemma3": {**windows, "rope_parameters": {SLIDING: PLAIN, FULL: PLAIN}, "query_pre_attn_scalar": 16},
        "gemma4": {
            **windows,
            "rope_parameters": {SLIDING: PLAIN, FULL: PARTIAL},
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 24,
        },
    }[family]
    usual = {"num_hidden_layers": len(types), "head_dim": 16, "vocab_size": 24, "tie_word_embeddings": True}
    return {"model_type": FAMILIES[family].model_type, **usual, **SMALL, **own, **more}


EXPERTS = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 8}
SHARED = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
KEYS = {"attention_k_eq_v": True}
FEWER = {"num_global_key_value_heads": 1}
PER_LAYER = {"hidden_size_per_layer_input": 8}
ENTRY = {"head_dim": 64, "num_key_value_heads": 1}
ALL_FULL, ALL_SLIDING = pattern(4, 0), (SLIDING,) * 4

FEATURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma1": ("gemma1", small("gemma1")),
    "gemma1, the older name of GELU": ("gemma1", small("gemma1", hidden_act="gelu")),
    "gemma1, one KV head": ("gemma1", small("gemma1", num_key_value_heads=1)),
    "gemma2": ("gemma2", small("gemma2")),
    "gemma2, no caps": ("gemma2", small("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)),
    "gemma2, full layers": ("gemma2", small("gemma2", ALL_FULL)),
    "gemma2, sliding layers": ("gemma2", small("gemma2", ALL_SLIDING)),
    "gemma3": ("gemma3", small("gemma3")),
    "gemma3, linear RoPE": ("gemma3", small("gemma3", rope_parameters={SLIDING: PLAIN, FULL: LINEAR})),
    "gemma3, full layers": ("gemma3", small("gemma3", ALL_FULL)),
    "gemma3, sliding layers": ("gemma3", small("gemma3", ALL_SLIDING)),
    "gemma4": ("gemma4", small("gemma4")),
    "gemma4, full layers": ("gemma4", small("gemma4", ALL_FULL)),
    "gemma4, per-layer embeddings": ("gemma4", small("gemma4", **PER_LAYER)),
    "gemma4, shared layers": ("gemma4", small("gemma4", num_kv_shared_layers=2)),
    "gemma4, wide shared layers": ("gemma4", small("gemma4", **SHARED)),
    "gemma4, values are keys": ("gemma4", small("gemma4", **KEYS)),
    "gemma4, values are keys, fewer KV heads": ("gemma4", small("gemma4", **KEYS, **FEWER)),
    "gemma4, fewer KV heads, which HuggingFace ignores": ("gemma4", small("gemma4", **FEWER)),
    "gemma4, experts": ("gemma4", small("gemma4", **EXPERTS)),
    "gemma4, no experts, but their number": ("gemma4", small("gemma4", **{**EXPERTS, "enable_moe_block": False})),
    "gemma4, a layer's own entries": ("gemma4", small("gemma4", per_layer_config={"1": ENTRY, "03": ENTRY})),
    "gemma4, everything": ("gemma4", small("gemma4", **PER_LAYER, **SHARED, **KEYS, **FEWER, **EXPERTS)),
}


def target() -> Any:
    return to_tvm(resolve("llvm"))


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", FEATURES)
def test_library_huggingface_and_the_list_have_the_same_parameters(feature: str) -> None:
    import torch

    name, read = FEATURES[feature]
    family = FAMILIES[name]
    config = family.config(read)
    listed = list(family.shapes()(config))
    assert len(dict(listed)) == len(listed)  # no name twice
    library = family.library(config, target())
    assert [(key, tuple(p.shape)) for key, p in library.named_parameters()] == listed
    with torch.device("meta"):
        theirs = family.huggingface(read).state_dict()
    assert {key: tuple(p.shape) for key, p in theirs.items() if key != "lm_head.weight"} == dict(listed)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_metadata_of_a_library_lists_its_parameters(dtype: str) -> None:
    name, read = FEATURES["gemma4, everything"]
    family = FAMILIES[name]
    config = family.config(read)
    metadata = json.loads(family.module(config, target(), dtype)["_metadata"].body.body.value)
    assert (metadata["model_type"], metadata["sliding_window_size"]) == ("gemma4_text", 4)
    expected = [{"name": key, "shape": list(shape), "dtype": dtype} for key, shape in family.shapes()(config)]
    assert metadata["params"] == expected


@pytest.mark.parametrize("name", models.names())
def test_a_preset_has_the_parameters_of_its_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real sizes too: nothing is traced, and arrays without memory go to a model without memory.

    The reference refuses other shapes before missing names, so that to miss the one name left out is all to be wrong.
    """
    import torch

    monkeypatch.setattr("models.library.export", lambda library, metadata: library)
    model = models.find(name)
    shapes = {key: tuple(p.shape) for key, p in model.module(target(), "float32").named_parameters()}
    arrays = {
        key: np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), s, [0] * len(s)) for key, s in shapes.items()
    }
    del arrays["model.norm.weight"]
    with torch.device("meta"), pytest.raises(UsageError) as caught:
        model.reference(arrays, (1, 2), "float32")
    wrong = "missing ['model.norm.weight'], unknown []"
    assert str(caught.value) == f"the arrays do not fit the HuggingFace model: {wrong}"
    assert shapes["model.norm.weight"] == (model.shape.hidden,)
    if name in PUBLISHED:
        assert sum(int(np.prod(shape)) for shape in shapes.values()) == PUBLISHED[name]


PUBLISHED = {"gemma1-2b": 2_506_172_416, "gemma2-2b": 2_614_341_888, "gemma3-270m": 268_098_176}
"""Parameters, as the model cards have them."""


# --- fields of config.json --------------------------------------------------------------------------------------------

COMMON = (*SMALL, "num_hidden_layers", "head_dim", "vocab_size")
WHOLE = {
    "gemma1": COMMON,
    "gemma2": (*COMMON, "sliding_window"),
    "gemma3": (*COMMON, "sliding_window"),
    "gemma4": (
        *(*COMMON, "sliding_window", "global_head_dim", "num_kv_shared_layers", "hidden_size_per_layer_input"),
        *("num_experts", "top_k_experts", "moe_intermediate_size"),
    ),
}
NUMBERS = {
    "gemma1": ("rms_norm_eps",),
    "gemma2": ("rms_norm_eps", "query_pre_attn_scalar"),
    "gemma3": ("rms_norm_eps", "query_pre_attn_scalar"),
    "gemma4": ("rms_norm_eps",),
}
OPTIONAL = {
    "gemma1": (),
    "gemma2": ("attn_logit_softcapping", "final_logit_softcapping"),
    "gemma3": ("attn_logit_softcapping", "final_logit_softcapping"),
    "gemma4": ("final_logit_softcapping",),
}
TRUTHS = ("attention_k_eq_v", "use_double_wide_mlp", "enable_moe_block")
NO_WHOLE = (("3", "'3'"), (True, "true"), (False, "false"), (3.0, "3.0"), (2.5, "2.5"), (None, "null"), ([3], "[3]"))
NO_NUMBER = (("1.0", "'1.0'"), ("a\nb", "'a\\nb'"), (True, "true"), ([1.0], "[1.0]"), ({}, "{}"))


def refusals() -> list[Any]:
    """Family, fields that differ from those of a model that can be, the error."""
    found: list[Any] = []
    for family in FAMILIES:
        for name in WHOLE[family]:
            found += [
                (family, {name: bad}, f"{name} is {shown}, but must be a whole number") for bad, shown in NO_WHOLE
            ]
        for name in (*NUMBERS[family], *OPTIONAL[family]):
            found += [(family, {name: bad}, f"{name} is {shown}, but must be a number") for bad, shown in NO_NUMBER]
        for name in NUMBERS[family]:
            found.append((family, {name: None}, f"{name} is null, but must be a number"))
        act = "hidden_act" if family == "gemma1" else "hidden_activation"
        built = "'gelu_pytorch_tanh'" + (" or 'gelu'" if family == "gemma1" else "")
        for bad, shown in (("silu", "'silu'"), (None, "null"), (True, "true"), (["gelu"], "['gelu']")):
            found.append((family, {act: bad}, f"{act} is {shown}, but only {built} is built"))
        for name, right, wrong in (("attention_bias", "false", "true"), ("tie_word_embeddings", "true", "false")):
            change = {name: wrong == "true"}
            found.append((family, change, f"{name} is {wrong}, but only {right} is built"))
            found.append((family, {name: None}, f"{name} is null, but only {right} is built"))
        both = "null or 'vision'" if family == "gemma4" else "null or false"
        name = "use_bidirectional_attention"
        found.append((family, {name: True}, f"{name} is true, but only {both} is built"))
        found += layers(family) if family != "gemma1" else []
        found += ropes(family)
    found += [("gemma4", {name: "yes"}, f"{name} is 'yes', but must be true or false") for name in TRUTHS]
    found += [("gemma4", {name: 1}, f"{name} is 1, but must be true or false") for name in TRUTHS]
    for bad, shown in ((25, "25"), (None, "null")):
        change = {**PER_LAYER, "vocab_size_per_layer_input": bad}
        found.append(("gemma4", change, f"vocab_size_per_layer_input is {shown}, but only 24 is built"))
    return found + per_layer()


def layers(family: str) -> list[Any]:
    no_list = f"layer_types must be a list of {SLIDING} and {FULL}"
    bad = (None, SLIDING, {}, 4, [SLIDING, "chunked_attention", FULL, FULL], [None] * 4, [True, True, FULL, FULL])
    lengths = ([], [FULL] * 3, [FULL] * 5)
    return [
        *[(family, {"layer_types": types}, no_list) for types in bad],
        *[
            (family, {"layer_types": types}, f"layer_types has {len(types)} entries, but num_hidden_layers is 4")
            for types in lengths
        ],
        (family, {"num_hidden_layers": 3}, "layer_types has 4 entries, but num_hidden_layers is 3"),
    ]


def ropes(family: str) -> list[Any]:
    """What is wrong with one RoPE is wrong with that of each layer type."""
    found: list[Any] = []
    kinds = "default, linear, proportional" if family == "gemma4" else "default, linear"
    unbuilt = ["yarn", "llama3", "dynamic", None, 3] + ([] if family == "gemma4" else ["proportional"])
    wrong: list[tuple[Any, str]] = [
        *[(bad, " is missing: its rope_type and rope_theta are needed") for bad in (None, [], 1e4, "default")],
        *[
            (
                {**PLAIN, "rope_type": kind},
                f".rope_type is {'null' if kind is None else repr(kind)}, but only {kinds} are built",
            )
            for kind in unbuilt
        ],
        ({"rope_type": "default"}, ".rope_theta is null, but must be a number"),
        ({"rope_theta": "1e4"}, ".rope_theta is '1e4', but must be a number"),
        ({"rope_theta": True}, ".rope_theta is true, but must be a number"),
        ({"rope_type": "linear", "rope_theta": 1e4}, ".factor is null, but must be a number"),
        ({**LINEAR, "factor": "8"}, ".factor is '8', but must be a number"),
    ]
    if family == "gemma4":
        wrong.append(
            ({**PARTIAL, "partial_rotary_factor": "1/4"}, ".partial_rotary_factor is '1/4', but must be a number")
        )
    if family in ("gemma1", "gemma2"):
        return [(family, {"rope_parameters": bad}, f"rope_parameters{why}") for bad, why in wrong]
    for kind, other in ((SLIDING, FULL), (FULL, SLIDING)):
        found += [
            (family, {"rope_parameters": {other: PLAIN, kind: bad}}, f"rope_parameters.{kind}{why}")
            for bad, why in wrong
        ]
        found.append((family, {"rope_parameters": {other: PLAIN}}, f"rope_parameters.{kind}{wrong[0][1]}"))
    # One RoPE for all layers is not what these have.
    found.append((family, {"rope_parameters": PLAIN}, f"rope_parameters.{SLIDING}{wrong[0][1]}"))
    return found


def per_layer() -> list[Any]:
    """Of Gemma 4: entries of single layers, that HuggingFace writes in place of ``global_...``."""
    name = "per_layer_config"
    no_object = f"{name} must be an object from the number of a layer to its fields"
    return [
        *[("gemma4", {name: bad}, no_object) for bad in ([ENTRY], 3, "1", {"one": ENTRY}, {"1": 3}, {"1": None})],
        ("gemma4", {name: {"1": {"bias": True}}}, f"{name}.1 sets bias, which no layer here can"),
        ("gemma4", {name: {"1": ENTRY}}, f"{name}.3 differs from those of the other full_attention layers"),
        ("gemma4", {name: {"0": ENTRY}}, f"{name}.0 differs from those of the other sliding_attention layers"),
    ]


@pytest.mark.parametrize(("family", "changes", "message"), refusals())
def test_a_field_that_cannot_be_is_usage_and_named(family: str, changes: dict[str, Any], message: str) -> None:
    read = small(family, **(EXPERTS if family == "gemma4" else {}))
    FAMILIES[family].config(read)
    with pytest.raises(UsageError) as caught:
        FAMILIES[family].config({**read, **changes})
    assert str(caught.value) == f"{family} config: {message}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("missing", [*COMMON, "rope_parameters"])
def test_a_missing_field_is_named(family: str, missing: str) -> None:
    read = {name: value for name, value in small(family).items() if name != missing}
    with pytest.raises(UsageError, match=rf"^{family} config: {missing}[. ]") as caught:
        FAMILIES[family].config(read)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_without_a_meaning_here_are_left_alone(family: str) -> None:
    read = small(family)
    more = {"bos_token_id": 2, "transformers_version": "5", "max_position_embeddings": None, "dtype": "bfloat16"}
    assert FAMILIES[family].config({**read, **more}) == FAMILIES[family].config(read)


def test_fields_are_read_into_the_config() -> None:
    read = small("gemma3", rope_parameters={SLIDING: PLAIN, FULL: LINEAR}, rms_norm_eps=1e-5, query_pre_attn_scalar=168)
    config: Any = FAMILIES["gemma3"].config(read)
    assert (config.family, config.query_pre_attn_scalar, config.rms_norm_eps) == ("gemma3", 168, 1e-5)
    assert (config.ropes[SLIDING].theta, config.ropes[SLIDING].factor, config.ropes[SLIDING].share) == (1e4, 1, 1)
    assert (config.ropes[FULL].theta, config.ropes[FULL].factor, config.ropes[FULL].share) == (1e6, 8, 1)
    config = FAMILIES["gemma4"].config(small("gemma4", **KEYS, **FEWER, **EXPERTS, final_logit_softcapping=None))
    assert (config.ropes[FULL].theta, config.ropes[FULL].factor, config.ropes[FULL].share) == (1e6, 1, 0.25)
    assert (config.num_global_key_value_heads, config.final_logit_softcapping) == (1, None)
    assert (config.num_experts, config.top_k_experts, config.moe_intermediate_size) == (6, 2, 8)
    config = FAMILIES["gemma1"].config(small("gemma1"))
    assert (config.query_pre_attn_scalar, config.window, config.attention_softcap) == (16, None, None)
    config = FAMILIES["gemma2"].config(small("gemma2"))
    assert (config.query_pre_attn_scalar, config.window, config.attention_softcap) == (4, 4, 50)


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("gemma2", {"layer_types": [{}, {}, {}, {}]}, "layer_types"),
        ("gemma4", {"layer_types": [[FULL]] * 4}, "layer_types"),
        ("gemma3", {"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ("gemma2", {"attn_logit_softcapping": 10**400}, "attn_logit_softcapping"),
        ("gemma4", {"per_layer_config": {"1": {"head_dim": "64"}, "3": {"head_dim": "64"}}}, "head_dim"),
    ],
)
def test_values_that_python_itself_refuses_are_usage_as_well(family: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError, match=rf"^{family} config: .*{field}"):
        FAMILIES[family].config({**small(family), **changes})


def test_defaults_are_used_where_a_field_is_missing_alone() -> None:
    assert Fields("f", {}).whole("n", 3) == 3
    assert Fields("f", {}).number("n", 3) == 3.0
    assert Fields("f", {}).optional("n") is None
    assert Fields("f", {}).truth("n") is False
    assert Fields("f", {"n": None}).truth("n") is False
    assert type(Fields("f", {"n": 3}).number("n")) is float
    with pytest.raises(UsageError, match=r"^f config: n is null, but must be a whole number$"):
        Fields("f", {"n": None}).whole("n", 3)


# --- model types ------------------------------------------------------------------------------------------------------

TYPES = "gemma, gemma2, gemma3_text, gemma4_text"


def test_every_model_type_finds_its_family() -> None:
    assert ", ".join(family.model_type for family in FAMILIES.values()) == TYPES
    for name, family in FAMILIES.items():
        assert family.name == name
        assert family_of(family.model_type) is family


@pytest.mark.parametrize("model_type", ["gemma3n", "gemma3n_text"])
def test_gemma_3n_is_refused_with_what_it_has_besides(model_type: str) -> None:
    with pytest.raises(UsageError) as caught:
        family_of(model_type)
    text = str(caught.value)
    assert text.startswith(f"refused: model_type {model_type!r}: ")
    assert "AltUp" in text
    assert "Laurel" in text
    assert text.endswith(f"; the model types are {TYPES}")
    assert "\n" not in text


@pytest.mark.parametrize(
    "model_type", ["llama", "gemma3", "gemma4", "Gemma", "gemma ", "", "a\nb", None, 3, ["gemma"], {}]
)
def test_an_unknown_model_type_is_usage_and_lists_those_that_are_built(model_type: Any) -> None:
    with pytest.raises(UsageError) as caught:
        family_of(model_type)
    assert str(caught.value) == (f"model_type {model_type!r} is not a Gemma that is built; the model types are {TYPES}")


# --- attention softcap ------------------------------------------------------------------------------------------------

ATTENTION = ("prefill_ragged", "prefill_paged", "prefill_sliding", "decode", "decode_sliding", "tree", "tree_paged")
CAP = 50.0


def stores(function: Any) -> list[Any]:
    """The stores of ``function`` whose value computes a hyperbolic tangent."""
    import tvm_ffi
    from tvm import tirx

    found: list[Any] = []

    def note(store: Any) -> None:
        if "tanh" in str(store.value):
            found.append(store)

    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, note))
    return found


def uncapped(function: Any) -> Any:
    """``function`` with ``s`` for each ``c tanh(s / c)`` that it stores."""
    import tvm_ffi
    from tvm import tirx

    def undo(store: Any) -> Any:
        if "tanh" not in str(store.value):
            return store
        width, capped = store.value.a, store.value.b
        (quotient,) = capped.args
        assert (float(width), float(quotient.b)) == pytest.approx((CAP * np.log2(np.e),) * 2)
        return tirx.BufferStore(store.buffer, quotient.a, store.indices)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.BufferStore, undo)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", [*ATTENTION, "correction"])
def test_a_capped_kernel_differs_in_one_store_alone(name: str, dtype: str) -> None:
    import tvm_ffi

    if name == "correction":
        kernel = sliding_prefill.build(
            kernels.HEADS, kernels.KV_HEADS, kernels.DIM, kernels.WINDOW, dtype, kernels.PAGE
        )
    else:
        kernel = kernels.stock(name, dtype)
    assert not stores(kernel)
    capped = softcap.capped(kernel, CAP)
    assert len(stores(capped)) == 1
    assert not tvm_ffi.structural_equal(capped, kernel)
    assert tvm_ffi.structural_equal(uncapped(capped), kernel)


def test_a_module_is_capped_in_its_attention_kernels_alone() -> None:
    name, read = FEATURES["gemma2"]
    family = FAMILIES[name]
    found: list[dict[str, int]] = []
    for cap in (None, CAP):
        module = family.module(family.config({**read, "attn_logit_softcapping": cap}), target(), "float32")
        scaled = {
            key.name_hint: len(stores(function))
            for key, function in module.functions.items()
            if any(p.name == "sm_scale" for p in getattr(function, "params", ()))
        }
        others = [function for key, function in module.functions.items() if key.name_hint not in scaled]
        assert not any(stores(function) for function in others if hasattr(function, "buffer_map"))
        found.append(scaled)
    assert len(found[0]) == len(ATTENTION)
    assert found[0] == dict.fromkeys(found[0], 0)
    assert found[1] == dict.fromkeys(found[0], 1)


@pytest.mark.parametrize(("places", "words"), [(0, "in 0 places"), (2, "in 2 places")])
def test_a_kernel_that_scales_scores_in_no_place_or_in_two_is_not_capped(places: int, words: str) -> None:
    import tvm_ffi
    from tvm import tirx

    kernel = kernels.stock("prefill_ragged")
    (scaling,) = stores(softcap.capped(kernel, CAP))

    def times(store: Any) -> Any:
        if not (store.buffer.name == scaling.buffer.name and "sm_scale" in str(store.value)):
            return store
        return tirx.SeqStmt([store, store]) if places else tirx.Evaluate(0)

    changed = kernel.with_body(tvm_ffi.structural_map(kernel.body, (tirx.BufferStore, times)))
    changed = changed.with_attr("global_symbol", "changed")
    with pytest.raises(InfraError) as caught:
        softcap.capped(changed, CAP)
    assert str(caught.value) == f"attention softcap: kernel changed scales scores {words}, not in one"


def test_a_kernel_without_a_scale_is_not_capped() -> None:
    with pytest.raises(InfraError):
        softcap.capped(kernels.stock("merge"), CAP)


@pytest.mark.parametrize("name", ATTENTION)
def test_a_capped_kernel_agrees_with_its_reference_and_not_with_the_uncapped_one(name: str) -> None:
    made = {
        "prefill_ragged": kernels.ragged,
        "prefill_paged": kernels.paged,
        "prefill_sliding": lambda rng: kernels.paged(rng, 0, 0, kernels.SLIDING),
        "decode": kernels.decode,
        "decode_sliding": lambda rng: kernels.decode(rng, 0, kernels.SLIDING),
        "tree": kernels.tree,
        "tree_paged": kernels.tree_paged,
    }[name]
    args = made(np.random.default_rng(0))
    args[0][:] *= 20  # scores as large as the cap
    theirs = kernels.run(kernels.compiled(softcap.capped(kernels.stock(name), CAP)), args)
    plain = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    references(replace(kernels.CONFIG, softcap=CAP))[name](*args)
    references(kernels.CONFIG)[name](*plain)
    for argument, ours, right in zip(SIGNATURES[name], args, theirs, strict=True):
        if isinstance(ours, np.ndarray):
            np.testing.assert_allclose(ours, right, atol=1e-4, rtol=1e-5, err_msg=argument.name)
    differing = [
        argument.name
        for argument, ours, right in zip(SIGNATURES[name], plain, theirs, strict=True)
        if isinstance(ours, np.ndarray) and np.abs(ours - right).max() > 0.1
    ]
    assert differing == ["output", "lse"]


def test_a_cap_far_above_the_scores_changes_nothing_that_shows() -> None:
    args = kernels.ragged(np.random.default_rng(0))
    theirs = kernels.run(kernels.compiled(softcap.capped(kernels.stock("prefill_ragged"), 1e4)), args)
    references(kernels.CONFIG)["prefill_ragged"](*args)
    for ours, right in zip(args[7:9], theirs[7:9], strict=True):
        np.testing.assert_allclose(ours, right, atol=5e-4)  # what TVM's tanh of a small number is off by


@pytest.mark.parametrize("name", NAMES)
def test_a_cap_is_refused_on_gpus_and_nowhere_else(name: str) -> None:
    spec = resolve(name)
    softcap.check(None, spec, "m")
    if not spec.is_gpu:
        softcap.check(CAP, spec, "m")
        return
    with pytest.raises(UsageError) as caught:
        softcap.check(CAP, spec, "m")
    assert str(caught.value) == (
        f"refused: m caps attention scores at 50, and TVM's {name} attention kernels cannot; "
        "its CPU kernels are varied to (--target llvm)"
    )
