"""The seam counts, swaps and watches real kernels of the real cache, and leaves no trace when it is gone."""

import numpy as np
import pytest
import tvm_ffi

from driftgate.plan import Plan, split
from driftgate.runtime import open_session
from driftgate.seam import CONSTRUCTOR, KERNELS, MergeCounter, Seam, always
from driftgate.watch import Watch

IDS = tuple(range(100, 140))


def opened(tiny, seam):
    import tvm

    return open_session(tiny.library, tiny.params, tvm.cpu(), tiny.dtype, tiny.capacity, seam)


def logits(session, chunks):
    return np.concatenate([session.all_logits(chunk) for chunk in session.prefill(Plan("t", IDS, chunks))])


@pytest.mark.parametrize("chunks", [split(40, 40), split(40, 10), (13, 1, 26), (1,) * 40, (39, 1)])
def test_merges_are_counted_exactly_as_the_plan_has_them(tiny, chunks):
    counter, seam = MergeCounter(), Seam()
    counter.attach(seam)
    logits(opened(tiny, seam), chunks)
    plan = Plan("t", IDS, chunks)
    assert counter.take() == (plan.merge_calls(10), plan.rows_merged(10, 8))


def test_every_kernel_of_the_cache_passes_the_seam(tiny):
    seam = Seam()
    opened(tiny, seam)
    assert set(seam.kernels) == set(KERNELS.values())


def test_constructor_is_restored(tiny):
    before = tvm_ffi.get_global_func(CONSTRUCTOR)
    opened(tiny, Seam())
    assert tvm_ffi.get_global_func(CONSTRUCTOR).same_as(before)


def test_swapped_kernel_runs_in_place_of_the_library_s(tiny):
    calls = []

    def zero(v, s, v_other, s_other):
        calls.append(v.shape)
        v.copyfrom(np.zeros(v.shape, np.float32))

    swapped = logits(opened(tiny, Seam({"merge": always(zero)})), split(40, 10))
    assert len(calls) == 30
    assert np.abs(swapped - logits(opened(tiny, Seam()), split(40, 10)))[10:].max() > 0.1


def through(name, kernel):
    def call(*args):
        return kernel(*args)

    return call


def test_wrapping_changes_no_byte(tiny):
    seam = Seam()
    seam.wrap(set(KERNELS.values()), through)
    assert logits(opened(tiny, seam), split(40, 10)).tobytes() == logits(opened(tiny, Seam()), split(40, 10)).tobytes()


def test_watch_sees_vm_calls_and_kernels_and_finds_nothing_on_a_clean_run(tiny):
    seam, watch = Seam(), Watch()
    watch.attach(seam)
    session = opened(tiny, seam)
    session.vm.set_instrument(watch.instrument)
    logits(session, split(40, 10))
    report = watch.report()
    assert report["first"] is None
    assert report["kernel_calls"] == {
        "rotary": 20,
        "append": 20,
        "prefill_ragged": 40,
        "prefill_paged": 6,
        "prefill_sliding": 24,
        "merge": 30,
    }
    assert report["vm_calls"] > 100


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "nan"), (np.inf, "inf")])
def test_watch_names_the_kernel_that_made_the_first_bad_value(tiny, value, kind):
    def spoil(name, kernel):
        def spoiled(*args):
            kernel(*args)
            array = args[8].numpy().copy()
            array[2, 3, 5] = value
            args[8].copyfrom(array)

        return spoiled

    seam, watch = Seam(), Watch()
    seam.wrap({"prefill_paged"}, spoil)
    watch.attach(seam)
    session = opened(tiny, seam)
    session.vm.set_instrument(watch.instrument)
    for number, chunk in enumerate(session.prefill(Plan("t", IDS, split(40, 20)))):
        watch.end_chunk(number, chunk.logits)
    assert watch.first is not None
    assert (watch.first["call"], watch.first["chunk"], watch.first["index"]) == ("prefill_paged", 1, [2, 3, 5])
    assert watch.bad[kind]


def test_watch_flags_a_log_sum_exp_of_minus_infinity():
    watch = Watch()

    class Lse:
        dtype = "float32"
        shape = (1, 2)

        @staticmethod
        def numpy():
            return np.float32([[0.0, -np.inf]])

    watch._wrapped("merge", lambda *args: None)(Lse(), Lse(), Lse(), Lse())
    assert watch.bad["lse_minus_inf"] == 2
