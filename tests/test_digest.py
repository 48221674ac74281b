"""The digest: a hash of dtype, shape and every byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from driftgate.digest import digest

ARRAYS = npst.arrays(
    st.sampled_from([np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8")]),
    npst.array_shapes(min_dims=1, max_dims=3, max_side=5),
)


def floats(*words: int) -> np.ndarray:
    return np.array(words, np.uint32).view(np.float32)


def test_a_digest_is_32_hexadecimal_digits_that_never_change() -> None:
    # Written down once: digests of two machines or versions can be held against each other.
    assert digest(np.arange(4, dtype=np.float32)) == "18e26d2d26ee65adeb506bac8b91903b"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.float32([0.0]), np.float32([-0.0])),
        (floats(0x7FC00000), floats(0x7FC00001)),  # NaN payloads
        (floats(0x7FC00000), floats(0xFFC00000)),  # the sign of a NaN
        (floats(0x7F800001), floats(0x7FC00001)),  # signalling and quiet
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)),
        (np.zeros(6, np.float32), np.zeros((1, 6), np.float32)),
        (np.zeros(4, np.float32), np.zeros(2, np.float64)),  # the same bytes
        (np.zeros(4, np.float32), np.zeros(4, np.int32)),
        (np.zeros(4, "<f4"), np.zeros(4, ">f4")),
        (np.empty((0, 3), np.float32), np.empty((3, 0), np.float32)),
        (np.float32([1, 2]), np.float32([2, 1])),  # order
        (np.float32([1, 1, 2]), np.float32([1, 2, 2])),
    ],
)
def test_arrays_that_differ_in_any_way_have_other_digests(left: np.ndarray, right: np.ndarray) -> None:
    assert digest(left) != digest(right)


@settings(deadline=None, derandomize=True)
@given(ARRAYS, st.data())
def test_any_flipped_bit_is_seen(array: np.ndarray, data: st.DataObject) -> None:
    flipped = array.copy()
    raw = flipped.reshape(-1).view(np.uint8)
    bit = data.draw(st.integers(0, raw.size * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert digest(flipped) != digest(array)
    raw[bit // 8] ^= 1 << bit % 8
    assert digest(flipped) == digest(array)


@settings(deadline=None, derandomize=True)
@given(ARRAYS)
def test_only_content_counts_not_how_it_lies_in_memory(array: np.ndarray) -> None:
    wide = np.repeat(array, 2, axis=-1)
    assert digest(wide[..., ::2]) == digest(array)
    assert digest(np.asfortranarray(array)) == digest(array)


def test_nan_equals_itself() -> None:
    assert digest(floats(0x7FC00000)) == digest(floats(0x7FC00000))


def test_an_array_of_no_dimension_has_a_digest() -> None:
    assert digest(np.array(1.0, np.float32)) != digest(np.array([1.0], np.float32))
