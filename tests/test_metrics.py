"""Comparisons: nothing passes vacuously, and a difference is named by place, value and bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from driftgate.metrics import Difference, agreement, bits, first_difference, max_abs, ulps, unusable

TINY = 2.0**-149
"""The smallest float32 above zero."""

ANY_FLOAT32 = npst.arrays(np.float32, npst.array_shapes(min_dims=1, max_dims=3, max_side=4))
FINITE = st.floats(-100, 100, width=32)


def floats(*words: int) -> np.ndarray:
    return np.array(words, np.uint32).view(np.float32)


def logit_pairs() -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    shapes = st.tuples(st.integers(1, 5), st.integers(2, 9))
    return shapes.flatmap(lambda shape: st.tuples(*(npst.arrays(np.float32, shape, elements=FINITE) for _ in range(2))))


# --- what is fit to compare -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "what", "index"),
    [
        (np.empty(0, np.float32), "x is empty", None),
        (np.empty((0, 5), np.float32), "x is empty", None),
        (np.float32([[1, 2], [np.nan, 3]]), "x holds NaN", (1, 0)),
        (np.float32([1, np.inf]), "x holds infinity", (1,)),
        (np.float32([-np.inf, 1]), "x holds infinity", (0,)),
        (np.float32([np.inf, np.nan]), "x holds infinity", (0,)),  # the first of them
        (np.zeros((2, 3), np.float32), "x is all zero: degenerate output", None),
        (np.float32([0.0, -0.0]), "x is all zero: degenerate output", None),
        (np.full((2, 3), 1.5, np.float32), "x is all equal: degenerate output", None),
        (np.full(4, np.nan, np.float32), "x holds NaN", (0,)),
        (np.float32([np.nan]), "x holds NaN", (0,)),
        (np.float16([65504, np.inf]), "x holds infinity", (1,)),
    ],
)
def test_arrays_that_prove_nothing_are_unusable(array: np.ndarray, what: str, index: tuple[int, ...] | None) -> None:
    found = unusable(array, "x")
    assert found is not None
    assert (found.what, found.index) == (what, index)


@pytest.mark.parametrize(
    "array",
    [
        np.float32([0, 1]),
        np.float32([0, 0, TINY]),
        np.float32([[5], [6]]),
        np.float32([7]),  # one value is no less than it could be
        np.float32([3.4e38, -3.4e38]),
        np.float16([1, 2]),
    ],
)
def test_ordinary_arrays_are_usable(array: np.ndarray) -> None:
    assert unusable(array, "x") is None


@settings(deadline=None, derandomize=True)
@given(ANY_FLOAT32, st.data())
def test_a_single_bad_value_anywhere_is_found(array: np.ndarray, data: st.DataObject) -> None:
    array = np.arange(array.size, dtype=np.float32).reshape(array.shape)
    at = data.draw(st.integers(0, array.size - 1))
    array.flat[at] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    found = unusable(array, "x")
    assert found is not None
    assert found.index == np.unravel_index(at, array.shape)


def test_an_unusable_value_is_shown_with_its_bits_and_fits_json() -> None:
    found = unusable(floats(0x3F800000, 0x7FC00123), "x")
    assert found is not None
    assert found.as_dict() == {
        "what": "x holds NaN",
        "index": [1],
        "values": ["nan", "nan"],
        "bits": ["0x7fc00123", "0x7fc00123"],
    }


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "index", "shown"),
    [
        (np.float32([1, 0.0]), np.float32([1, -0.0]), (1,), ("0x00000000", "0x80000000")),
        (floats(0x7FC00000), floats(0x7FC00001), (0,), ("0x7fc00000", "0x7fc00001")),
        (np.float32([[1, 2], [3, 4]]), np.float32([[1, 2], [5, 6]]), (1, 0), ("0x40400000", "0x40a00000")),
        (np.float16([1, 2]), np.float16([1, 2.002]), (1,), ("0x4000", "0x4001")),
        (np.float64([0.1]), np.float64([0.1 + 2**-56]), (0,), ("0x3fb999999999999a", "0x3fb999999999999b")),
    ],
)
def test_the_first_difference_names_place_values_and_bits(
    left: np.ndarray, right: np.ndarray, index: tuple[int, ...], shown: tuple[str, str]
) -> None:
    found = first_difference(left, right)
    assert found is not None
    assert (found.what, found.index, found.bits) == ("bytes differ", index, shown)
    assert found.values is not None
    for value, array in zip(found.values, (left, right), strict=True):
        assert value == float(array[index]) or math.isnan(value) == math.isnan(array[index])


@settings(deadline=None, derandomize=True)
@given(ANY_FLOAT32, st.data())
def test_the_first_flipped_bit_is_found_in_row_order(array: np.ndarray, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, array.size - 1), min_size=1, max_size=3))
    changed = array.copy()
    for place in set(places):
        changed.reshape(-1).view(np.uint32)[place] ^= 1 << data.draw(st.integers(0, 31))
    found = first_difference(array, changed)
    assert found is not None
    assert found.index == np.unravel_index(min(places), array.shape)


@settings(deadline=None, derandomize=True)
@given(ANY_FLOAT32)
def test_any_array_equals_its_copy_even_with_nans(array: np.ndarray) -> None:
    assert first_difference(array, array.copy()) is None


@pytest.mark.parametrize(
    ("left", "right", "what"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), "float32[2, 3] against float32[3, 2]"),
        (np.zeros((1, 3), np.float32), np.zeros((2, 3), np.float32), "float32[1, 3] against float32[2, 3]"),
        (np.zeros(3, np.float32), np.zeros(3, np.float16), "float32[3] against float16[3]"),
        (np.zeros(0, np.float32), np.zeros(3, np.float32), "float32[0] against float32[3]"),
    ],
)
def test_shapes_and_dtypes_are_compared_before_values(left: np.ndarray, right: np.ndarray, what: str) -> None:
    assert first_difference(left, right) == Difference(what)
    assert Difference(what).as_dict() == {"what": what}


def test_parts_of_memory_are_compared_as_they_are_seen() -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert first_difference(base[:, ::2], base[:, ::2].copy()) is None
    assert first_difference(base.T, base.T.copy()) is None
    found = first_difference(base[:, ::2], base[:, 1::2])
    assert found is not None and found.index == (0, 0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.float32(1), "0x3f800000"),
        (np.float32(-0.0), "0x80000000"),
        (np.float16(1), "0x3c00"),
        (np.float64(1), "0x3ff0000000000000"),
        (np.float32(TINY), "0x00000001"),
    ],
)
def test_bits_are_as_wide_as_the_dtype(value: np.floating, shown: str) -> None:
    assert bits(value) == shown


# --- units in the last place ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [
        (0.0, -0.0, 0),
        (TINY, -TINY, 2),
        (TINY, 0.0, 1),
        (1.0, 1.0 + 2**-23, 1),
        (-1.0, -1.0 - 2**-23, 1),
        (1.0, 1.0 - 2**-24, 1),  # across a power of two
        (1.0, 2.0, 2**23),
        (1.0, -1.0, 2 * 0x3F800000),
    ],
)
def test_ulps_count_the_floats_between(left: float, right: float, distance: int) -> None:
    assert ulps(np.float32([left]), np.float32([right])).tolist() == [distance]
    assert ulps(np.float32([right]), np.float32([left])).tolist() == [distance]


def test_ulps_of_half_precision_are_its_own() -> None:
    assert ulps(np.float16([1, -(2.0**-24)]), np.float16([1 + 2**-10, 2.0**-24])).tolist() == [1, 2]


@settings(deadline=None, derandomize=True)
@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(1, 40))
def test_ulps_are_the_steps_of_nextafter(start: float, steps: int) -> None:
    value = np.float32(start)
    for _ in range(steps):
        value = np.nextafter(value, np.float32(np.inf))
    assert ulps(np.float32([start]), np.array([value])).tolist() == [steps]


# --- agreement --------------------------------------------------------------------------------------------------------


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)


@settings(deadline=None, derandomize=True)
@given(logit_pairs())
def test_agreement_is_what_numpy_says_over_the_whole_array(pair: tuple[np.ndarray, np.ndarray]) -> None:
    ours, theirs = pair
    found = agreement(ours, theirs)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    off = np.abs(a - b)
    p, q = softmax(b), softmax(a)
    kl = np.where(p > 1e-300, p * (np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(q, 1e-300))), 0).sum(-1)
    assert found.max_abs == off.max()
    assert found.worst == np.unravel_index(off.argmax(), off.shape)
    assert found.kl_mean == pytest.approx(kl.mean(), abs=1e-9)
    assert found.kl_p999 == pytest.approx(np.quantile(kl, 0.999), abs=1e-9)
    assert found.top1_agreement == np.mean(a.argmax(-1) == b.argmax(-1))
    assert 0 <= found.top5_overlap <= 1
    assert sum(found.ulp_histogram.values()) == ours.size
    if b.std() > 1e-3:
        assert found.max_abs_in_spread == pytest.approx(off.max() / b.std(), rel=1e-6)
    assert (found.max_abs, found.worst) == max_abs(ours, theirs)


@settings(deadline=None, derandomize=True)
@given(logit_pairs())
def test_equal_logits_agree_completely(pair: tuple[np.ndarray, np.ndarray]) -> None:
    found = agreement(pair[0], pair[0].copy())
    assert (found.max_abs, found.kl_mean, found.top1_agreement, found.top5_overlap) == (0, 0, 1, 1)
    assert found.ulp_histogram["<=0"] == pair[0].size


def test_every_class_of_the_ulp_histogram_is_counted_once() -> None:
    steps = [0, 1, 2, 3, 4, 5, 16, 17, 256, 257, 65536, 65537]
    reference = np.ones((1, len(steps)), np.float32)
    ours = (reference.view(np.uint32) + np.array(steps, np.uint32)).view(np.float32)
    assert agreement(ours, reference).ulp_histogram == {
        "<=0": 1, "<=1": 1, "<=2": 1, "<=4": 2, "<=16": 2, "<=256": 2, "<=65536": 2, ">65536": 1,
    }  # fmt: skip


def test_top5_overlap_counts_ranks_not_order() -> None:
    reference = np.arange(10, dtype=np.float32)[None]
    ours = reference.copy()
    ours[0, 9], ours[0, 8] = 8, 9  # the two best change places
    assert (agreement(ours, reference).top1_agreement, agreement(ours, reference).top5_overlap) == (0, 1)
    ours[0, 0] = 20  # the worst becomes the best
    assert agreement(ours, reference).top5_overlap == pytest.approx(0.8)


def test_kl_is_taken_from_the_reference() -> None:
    reference, ours = np.log(np.float64([[0.5, 0.25, 0.25]])), np.log(np.float64([[0.25, 0.5, 0.25]]))
    expected = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert agreement(ours, reference).kl_mean == pytest.approx(expected)
    lopsided = np.log(np.float64([[0.9, 0.05, 0.05]]))
    assert agreement(lopsided, reference).kl_mean != pytest.approx(agreement(reference, lopsided).kl_mean, rel=0.01)


def test_no_spread_in_the_reference_makes_any_error_infinite() -> None:
    assert agreement(np.float32([[1, 2]]), np.float32([[1, 1]])).max_abs_in_spread == math.inf


@pytest.mark.parametrize("compare", [agreement, max_abs])
@pytest.mark.parametrize("shape", [(2, 4), (4, 3), (3, 5)])
def test_other_shapes_are_refused_not_broadcast(compare: object, shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        compare(np.ones((3, 4), np.float32), np.ones(shape, np.float32))  # type: ignore[operator]


def test_the_last_position_and_the_last_word_count() -> None:
    reference = np.random.default_rng(0).standard_normal((4, 6))
    for place in [(3, 5), (0, 0), (3, 0)]:
        ours = reference.copy()
        ours[place] += 2.0
        assert max_abs(ours, reference) == (pytest.approx(2.0), place)
