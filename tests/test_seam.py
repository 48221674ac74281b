"""The seam counts, swaps and watches real kernels of the real cache, and leaves no trace when it is gone."""

import numpy as np
import pytest
import tvm_ffi

from driftgate.outcome import InfraError, UsageError
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


def test_vm_that_was_already_built_is_refused(tiny):
    """It holds the constructor that was there when it was built: nothing would pass the seam, and nothing say so."""
    from tvm_ffi import Shape

    session, seam = opened(tiny, Seam()), Seam()
    create = session.vm["create_tir_paged_kv_cache"]
    with pytest.raises(UsageError, match="the VM was built before the seam was installed"), seam.installed():
        create(Shape([1]), Shape([64]), Shape([64]), Shape([16]), Shape([0]))


def test_kernel_that_the_library_does_not_have_is_refused_with_those_it_has(tiny, monkeypatch):
    monkeypatch.delitem(KERNELS, 20)
    with pytest.raises(
        UsageError, match="no kernel 'tree_paged' to swap; it has append, compact_copy, copy_page"
    ) as error:
        monkeypatch.setattr(Seam, "_check_swaps", _as_if_known(Seam._check_swaps))
        opened(tiny, Seam({"tree_paged": always(lambda *args: None)}))
    assert "\n" not in str(error.value)


def _as_if_known(check):
    """A library without the paged tree kernel still knows the name of it."""

    def checked(self):
        KERNELS[20] = "tree_paged"
        check(self)

    return checked


def test_reference_that_does_not_fit_names_the_argument(tiny):
    """A library that calls merge with another LSE than its reference takes."""
    from collections import Counter

    from driftgate.kernels.hosted import hosted
    from driftgate.kernels.references import merge

    def other(config, replaced):
        kernel = hosted("merge", merge, Counter())
        return lambda v, s, v_other, s_other: kernel(v, s, v_other, v_other)

    seam = Seam({"merge": other})
    session = opened(tiny, seam)
    with pytest.raises(RuntimeError, match=r"argument 3 \(s_other\) has 3 dimensions, not 2"):
        logits(session, split(40, 10))
    assert isinstance(seam.error, InfraError)


def test_swapped_kernel_logs_the_nan_that_it_was_given():
    from collections import Counter

    import tvm

    from driftgate.kernels.hosted import hosted
    from driftgate.kernels.references import merge

    seen = Counter()
    arrays = [np.ones(shape, np.float32) for shape in ((2, 3, 4), (2, 3), (2, 3, 4), (2, 3))]
    arrays[2][0, 0, 0] = np.nan
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    hosted("merge", merge, seen)(*tensors)
    assert seen == {"merge": 1}
    assert np.isnan(tensors[0].numpy()).sum() == 1


def test_watch_knows_the_pool_and_the_lse_of_every_kernel():
    """Slots that nobody wrote may hold anything; an LSE of minus infinity is a class of its own."""
    import tvm

    from driftgate.kernels.signatures import SIGNATURES

    for name, signature in SIGNATURES.items():
        watch, args = Watch(), []
        for argument in signature:
            value = np.full((2,) * max(argument.dims, default=1), 0.5, np.float32)
            if argument.name == "pages":
                value[:] = np.nan
            elif argument.kind == "lse":
                value[:] = -np.inf
            args.append(tvm.runtime.tensor(value) if argument.kind != "number" else 1)
        watch._wrapped(name, lambda *_: None)(*args)
        expected = sum(2 ** argument.dims[0] for argument in signature if argument.kind == "lse")
        assert dict(watch.bad) == ({"lse_minus_inf": expected} if expected else {}), name
