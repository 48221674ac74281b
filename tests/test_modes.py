"""Count, digest, replay and shadow on the real kernels of the real cache: each finds its fault and changes no byte."""

import ctypes
from collections import Counter

import numpy as np
import pytest

from driftgate.calls import Calls, vm_name
from driftgate.kernels import replacements
from driftgate.kernels.corrections import swaps
from driftgate.kernels.references import references
from driftgate.kernels.vm_calls import functions, plain_library
from driftgate.modes.count import Count
from driftgate.modes.digests import Digests, first_divergence
from driftgate.modes.replay import Replay
from driftgate.modes.shadow import BAND_UNITS, Shadow, compared
from driftgate.plan import Plan, split
from driftgate.runtime import open_session
from driftgate.seam import KERNELS, Seam

IDS = tuple(range(100, 148))
PLAN = Plan("t", IDS, split(48, 16))
EVERY_WAY = Plan("t", IDS, (20, 1, 11, 16), ("prefill", "fork", "tree", "prefill"))
CALLS = {"rotary": 15, "prefill_ragged": 30, "append": 15, "merge": 20, "prefill_sliding": 16, "prefill_paged": 4}


def opened(tiny, modes=(), vm=False, faults=(), plain=None, trees=False, swapped=None):
    import tvm

    seam, calls = Seam(swapped or {}, faults=list(faults)), Calls(list(modes), vm, plain)
    seam.exchange_trees = trees
    calls.attach(seam)
    session = open_session(tiny.library, tiny.params, tvm.cpu(), tiny.dtype, tiny.capacity, seam)
    session.calls = calls
    calls.instrument_of(session.vm)
    return session, seam


def logits(session, plan=PLAN):
    return np.concatenate([session.all_logits(chunk) for chunk in session.prefill(plan)])


@pytest.fixture(scope="module")
def bare(tiny):
    return logits(opened(tiny)[0])


@pytest.fixture(scope="module")
def plain(tiny):
    return functions(str(plain_library(tiny.model, tiny.target, tiny.dtype)))


def shadow_of(seam_of, plain=None):
    """A shadow of every cache kernel, and of VM functions where ``plain`` has them."""

    def find(name):
        if name.startswith("vm:"):
            return plain(name) if plain else None
        return references(seam_of().config)[name]

    return Shadow(find)


def half_of_merge(kernel):
    """Every merge loses a thousandth of its first row."""

    def faulty(v, *rest):
        result = kernel(v, *rest)
        values = v.numpy().copy()
        values[0] *= np.float32(0.999)
        v.copyfrom(values)
        return result

    return faulty


def sometimes(kernel, every=7):
    """Every seventh execution writes one other bit."""
    made = [0]

    def faulty(v, *rest):
        result = kernel(v, *rest)
        made[0] += 1
        if made[0] % every == 0:
            values = v.numpy().copy()
            values.view(np.uint32)[0, 0, 0] ^= 1
            v.copyfrom(values)
        return result

    return faulty


def fault_in(kernel, make):
    return (frozenset({kernel}), lambda name, original: make(original))


def test_all_modes_together_change_no_byte(tiny, bare, plain):
    seen = []
    modes = [Count(), Digests(inputs=True), Replay(2), shadow_of(lambda: seen[0], plain)]
    session, seam = opened(tiny, modes, vm=True)
    seen.append(seam)
    assert logits(session).tobytes() == bare.tobytes()
    assert {name: n for name, n in modes[0].calls.items() if not name.startswith("vm:")} == CALLS
    assert modes[0].calls["vm:take1"] == 3


def test_sound_model_is_blamed_for_nothing(tiny, plain):
    seen = []
    replay, shadow = Replay(3), shadow_of(lambda: seen[0], plain)
    session, seam = opened(tiny, [replay, shadow], vm=True)
    seen.append(seam)
    logits(session)
    assert {name for name, found in replay.kernels.items() if found.disagreed} == set()
    assert {
        name for name, found in shadow.kernels.items() if found.off or found.nan_inputs or found.nan_outputs
    } == set()
    assert max(found.worst_in_bands for found in shadow.kernels.values()) < 0.5
    assert {name: found.calls for name, found in shadow.kernels.items() if not name.startswith("vm:")} == CALLS
    assert len(shadow.kernels) > 50
    assert shadow.without <= {vm_name("attention_kv_cache_get_query_positions")}


def test_every_kernel_but_one_runs_in_a_plan_with_a_fork_and_a_tree(tiny):
    """The paged tree kernel cannot: where a layer slides, TVM hands it a length_info that it does not take."""
    seen, count = [], Count()
    shadow = shadow_of(lambda: seen[0])
    session, seam = opened(tiny, [count, shadow], trees=True)
    seen.append(seam)
    forked = logits(session, EVERY_WAY)
    assert set(count.calls) == set(KERNELS.values()) - {"tree_paged"}
    assert {name for name, found in shadow.kernels.items() if found.off} == set()
    assert count.calls["merge"] == EVERY_WAY.merge_calls(10)
    np.testing.assert_allclose(forked, logits(opened(tiny)[0]), atol=1e-4)


def test_tree_kernels_of_the_cpu_are_the_wrong_way_round(tiny):
    with pytest.raises(TypeError, match="Expected 16 arguments"):
        logits(opened(tiny)[0], EVERY_WAY)


def growing_tree(session):
    """20 tokens, a tree of four nodes, and three more nodes below its last; the hidden states of those three."""
    for name in ("kv_state_clear", "kv_state_add_sequence"):
        session._builtin(name)(session.cache, *([0] if name.endswith("sequence") else []))

    def forward(ids, parents=()):
        return session._forward("prefill_to_last_hidden_states", {0: len(ids)}, session._embedded(ids), parents)

    forward(IDS[:20])
    forward(IDS[20:24], (-1, 0, 0, 2))
    return forward(IDS[24:27], (3, 3, 4)).numpy()[0]


def test_tree_that_grows_in_a_second_forward_fails_where_layers_have_a_window(tiny):
    with pytest.raises(ValueError, match=r"Mismatched length_info\.ndim"):
        growing_tree(opened(tiny, trees=True)[0])


def test_a_tree_grows_where_its_kernel_is_given_the_lengths_alone(tiny):
    given = swaps("tree-length-info", tiny.model.shape, tiny.target, tiny.dtype)["tree_paged"]
    swap = {"tree_paged": replacements.swap("tree_paged", given, Counter())}
    grown = growing_tree(opened(tiny, trees=True, swapped=swap)[0])
    # The path to the last node: over 20, 22 and 23 of the first tree, then 24 and its child 26.
    path = (*IDS[:21], *IDS[22:25], IDS[26])
    straight = np.concatenate([c.hidden.numpy()[0] for c in opened(tiny)[0].prefill(Plan("t", path, (len(path),)))])
    np.testing.assert_allclose(grown[[0, 2]], straight[-2:], atol=1e-4)


def test_shadow_finds_a_wrong_kernel_and_no_other(tiny):
    seen = []
    shadow = shadow_of(lambda: seen[0])
    session, seam = opened(tiny, [shadow], vm=True, faults=[fault_in("merge", half_of_merge)])
    seen.append(seam)
    logits(session)
    assert {name for name, found in shadow.kernels.items() if found.off} == {"merge"}
    found = shadow.kernels["merge"]
    assert (found.off, found.calls) == (20, 20)
    assert {key: found.first[key] for key in ("chunk", "layer", "argument")} == {"chunk": 1, "layer": 0, "argument": 0}
    assert found.first["index"][0] == 0
    assert found.first["bits"][0] != found.first["bits"][1]


def test_replay_finds_a_kernel_that_contradicts_itself_and_no_other(tiny):
    replay = Replay(20)
    session, _ = opened(tiny, [replay], faults=[fault_in("merge", sometimes)])
    logits(session)
    assert {name for name, found in replay.kernels.items() if found.disagreed} == {"merge"}
    found = replay.kernels["merge"]
    # 20 calls, each of them 21 executions: every seventh of 420.
    assert (found.replays, found.disagreed) == (400, 60)
    assert found.first["index"] == [0, 0, 0]


def test_replay_of_a_stable_fault_agrees(tiny):
    replay = Replay(5)
    logits(opened(tiny, [replay], faults=[fault_in("merge", half_of_merge)])[0])
    assert replay.kernels["merge"].disagreed == 0


def test_first_divergence_names_the_call_and_says_its_inputs_were_equal(tiny):
    digests = Digests(inputs=True)
    session, _ = opened(tiny, [digests], vm=True, faults=[fault_in("merge", lambda k: sometimes(k, every=27))])
    logits(session)
    first = digests.take()
    logits(session)
    found = first_divergence(first, digests.take())
    assert (found["kernel"], found["inputs_equal"], found["outputs_equal"]) == ("merge", True, False)
    assert (found["chunk"], found["layer"]) == (1, 6)


def test_streams_of_a_sound_model_do_not_diverge(tiny):
    digests = Digests(inputs=True)
    session, _ = opened(tiny, [digests], vm=True)
    logits(session)
    first = digests.take()
    logits(session)
    second = digests.take()
    assert len(first) > 800
    assert first_divergence(first, second) is None
    assert first_divergence(first, second[:-1])["call"] == len(first) - 1


def test_nan_that_a_kernel_was_given_is_counted_and_not_held_against_it(tiny):
    seen = []
    shadow = shadow_of(lambda: seen[0])

    def nan(kernel):
        def faulty(*args):
            result = kernel(*args)
            values = args[8].numpy().copy()
            values[1, 2, 3] = np.nan
            args[8].copyfrom(values)
            return result

        return faulty

    session, seam = opened(tiny, [shadow], faults=[fault_in("prefill_paged", nan)])
    seen.append(seam)
    for _ in session.prefill(PLAN):
        pass
    found = shadow.kernels
    # From its third call on it is given NaN, and has to write some.
    assert (found["prefill_paged"].off, found["prefill_paged"].nan_outputs) == (2, 4)
    assert (found["merge"].off, found["merge"].nan_inputs > 0, found["merge"].nan_outputs > 0) == (0, True, True)


def test_vm_function_is_replaced_by_its_plain_twin(tiny, plain, bare):
    called = []

    def spy(name):
        return lambda *args: (called.append(name), plain(name)(*args))

    names = ["vm:linear1", "vm:take1", "vm:fused_multiply37_tanh1_multiply38"]
    session, _ = opened(tiny, plain={name: spy(name) for name in names})
    swapped = logits(session)
    assert {name: called.count(name) for name in names} == dict(zip(names, (24, 3, 6), strict=True))
    assert np.abs(swapped - bare).max() < 1e-4
    assert swapped.tobytes() != bare.tobytes()


BANDS = [
    (np.float32, 1 + 100 * 2**-23, 100 / BAND_UNITS["float32"]),
    (np.float32, 1 + 2**-10, 2**13 / BAND_UNITS["float32"]),
    (np.float16, 1 + 2**-9, 2 / BAND_UNITS["float16"]),
]


@pytest.mark.parametrize(("dtype", "value", "expected"), BANDS)
def test_distance_is_in_bands_of_the_largest_value(dtype, value, expected):
    right = np.array([1, 0.5, 0], dtype)
    ours = right.copy()
    ours[0] = value
    found = compared(ours, right, np.dtype(dtype).name)
    assert found.in_bands == pytest.approx(expected)
    assert found.index == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_on_one_side_alone_is_infinitely_far(value):
    right = np.array([1, 2], np.float32)
    ours = np.array([1, value], np.float32)
    assert compared(ours, right, "float32").in_bands == np.inf
    assert compared(right, ours, "float32").in_bands == np.inf
    assert compared(ours, ours.astype(np.float64), "float32").in_bands == 0


def test_rand_of_c_draws_anew_in_every_call():
    """What compiled-in races rest on."""
    libc = ctypes.CDLL(None)
    libc.srand(1)
    first = [libc.rand() for _ in range(3)]
    libc.srand(1)
    assert [libc.rand() for _ in range(3)] == first
    assert len(set(first)) == 3
