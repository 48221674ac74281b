"""The functions of a model library, after MLC's interface, on the real runtime."""

import json

import numpy as np
import pytest

from driftgate.compile import model_library
from driftgate.plan import Plan, split
from driftgate.runtime import open_session
from driftgate.seam import Seam


@pytest.fixture(scope="module")
def session(tiny):
    import tvm

    library = model_library(tiny.model, tiny.target, tiny.dtype, whole=True)
    return open_session(library, tiny.params, tvm.cpu(), tiny.dtype, tiny.capacity, Seam())


@pytest.fixture
def started(session):
    """A cache that holds one empty sequence, and a function that feeds tokens to a library function."""
    import tvm
    from tvm_ffi import Shape

    builtin = lambda name: tvm.get_global_func(f"vm.builtin.{name}")  # noqa: E731
    builtin("kv_state_clear")(session.cache)
    builtin("kv_state_add_sequence")(session.cache, 0)

    def feed(function, ids, *extra):
        embedded = session.vm["embed"](tvm.runtime.tensor(np.array(ids, np.int32)), session.params).numpy()[None]
        builtin("kv_state_begin_forward")(session.cache, Shape([0]), Shape([len(ids)]))
        out = session.vm[function](tvm.runtime.tensor(embedded), *extra, session.cache, session.params)[0]
        builtin("kv_state_end_forward")(session.cache)
        return out.numpy()

    return feed


IDS = tuple(range(30, 60))


def test_metadata_lists_every_parameter_in_order(session, tiny):
    listed = json.loads(str(session.vm["_metadata"]()))["params"]
    assert [entry["name"] for entry in listed] == list(tiny.model.arrays(0))


def test_prefill_gives_the_logits_of_the_last_hidden_state(session, started):
    plan = Plan("one", IDS, (len(IDS),))
    (chunk,) = session.prefill(plan)
    expected = session.all_logits(chunk)
    assert chunk.logits.tobytes() == expected[-1].tobytes()


def test_prefill_and_hidden_states_agree_bitwise(session, started):
    direct = started("prefill", IDS)
    (chunk,) = session.prefill(Plan("one", IDS, (len(IDS),)))
    assert direct.shape == (1, 1, 512)
    assert direct.reshape(-1).tobytes() == chunk.logits.tobytes()


def test_batch_prefill_picks_positions(session, started):
    import tvm

    picked = started("batch_prefill", IDS, tvm.runtime.tensor(np.array([3, 29], np.int32)))
    (chunk,) = session.prefill(Plan("one", IDS, (len(IDS),)))
    np.testing.assert_array_equal(picked[0], session.all_logits(chunk)[[3, 29]])


def test_batch_verify_gives_every_position(session, started):
    every = started("batch_verify", IDS)
    (chunk,) = session.prefill(Plan("one", IDS, (len(IDS),)))
    np.testing.assert_array_equal(every[0], session.all_logits(chunk))


@pytest.mark.parametrize("function", ["decode", "batch_decode"])
def test_decode_continues_a_prefill(session, started, function):
    started("prefill", IDS[:-1])
    decoded = started(function, IDS[-1:])
    chunks = list(session.prefill(Plan("tail", IDS, (len(IDS) - 1, 1))))
    np.testing.assert_array_equal(decoded.reshape(-1), chunks[-1].logits)


def test_ids_out_of_range_read_nothing_outside_the_table(session, started):
    assert np.isfinite(started("prefill", [10**6, 5])).all()


def test_softmax_with_temperature(session):
    import tvm

    logits = np.random.default_rng(0).standard_normal((2, 1, 512)).astype(np.float32)
    out = session.vm["softmax_with_temperature"](
        tvm.runtime.tensor(logits), tvm.runtime.tensor(np.float32([1, 2]))
    ).numpy()
    expected = np.exp(logits / np.float32([1, 2])[:, None, None])
    np.testing.assert_allclose(out, expected / expected.sum(-1, keepdims=True), rtol=1e-5)


def test_rows_do_not_depend_on_the_length_of_the_chunk_before_attention(session):
    """The first chunk attends to itself alone: a longer one has the same first rows, bit for bit."""
    import itertools

    short = next(iter(session.prefill(Plan("short", IDS[:7], (7,)))))
    first = session.all_logits(short)
    longer = next(itertools.islice(session.prefill(Plan("long", IDS, split(30, 30))), 1))
    np.testing.assert_array_equal(first, session.all_logits(longer)[:7])
