"""What each check says of hand-made observations: when it passes, when it must not, and what evidence it gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import driftgate
from driftgate.checks import chunking, reference, repeat, sentinel
from driftgate.checks.band import BAND_FACTOR, band
from driftgate.checks.verdict import Verdict
from driftgate.digest import digest
from driftgate.model import Shape
from driftgate.observe import Positions, Repeats, Run, Watched
from driftgate.outcome import InfraError, Outcome
from driftgate.plan import Plan

SHAPE = Shape(
    layers=10, attention_layers=10, hidden=4, heads=8, kv_heads=1, head_dim=512, window=64, vocab=5, capacity=512
)
PLAN = Plan("default", tuple(range(8)), (4, 4))
MERGES = PLAN.merge_calls(SHAPE.attention_layers), PLAN.rows_merged(SHAPE.attention_layers, SHAPE.heads)

Tensors = dict[str, np.ndarray]


# --- repeat -----------------------------------------------------------------------------------------------------------


def tensors(plan: Plan = PLAN) -> Tensors:
    """What one right prefill leaves behind, by the names under which the worker keeps it."""
    rng = np.random.default_rng(0)
    found: Tensors = {}
    for i, count in enumerate(plan.chunks):
        found[f"hidden{i}"] = rng.standard_normal((1, count, SHAPE.hidden)).astype(np.float32)
        found[f"logits{i}"] = rng.standard_normal(SHAPE.vocab).astype(np.float32)
    return found


def changed(name: str, index: tuple[int, ...], value: float) -> Tensors:
    found = tensors()
    found[name][index] = value
    return found


@pytest.fixture
def repeats(tmp_path: Path) -> Callable[..., Repeats]:
    """Observations of runs with the given tensors, kept on disk as the worker keeps them."""

    def make(
        *runs: Tensors, blocks: int = 1, plan: Plan = PLAN, merges: tuple[int, int] | None = None, keep: bool = True
    ) -> Repeats:
        expected = plan.merge_calls(SHAPE.attention_layers), plan.rows_merged(SHAPE.attention_layers, SHAPE.heads)
        seen, first = [], {}
        for number, found in enumerate(runs):
            block = number * blocks // len(runs)
            digests = tuple((digest(found[f"hidden{i}"]), digest(found[f"logits{i}"])) for i in range(len(plan.chunks)))
            if keep and (block not in first or digests != first[block]):
                first.setdefault(block, digests)
                np.savez(tmp_path / f"run{number}.npz", **found)
            seen.append(Run(number, block, digests, *(merges or expected)))
        return Repeats(len(runs), blocks, tuple(seen), tmp_path, 0)

    return make


def test_equal_runs_pass_and_print_the_bound(repeats: Callable[..., Repeats]) -> None:
    verdict = repeat.judge(repeats(*[tensors()] * 300, blocks=3), PLAN, SHAPE)
    assert (verdict.check, verdict.outcome, verdict.evidence) == ("repeat", Outcome.PASS, {})
    assert verdict.message == (
        "300 runs in 3 processes equal in every byte; failure rate below 0.99% at 95%, 1.52% at 99%"
    )
    assert verdict.figures == {
        "runs": 300,
        "runs_asked": 300,
        "blocks": 3,
        "disagreeing": 0,
        "distinct_results": 1,
        "merge_calls": 10,
        "merge_calls_expected": 10,
        "rows_merged": 320,
        "merge_calls_total": 3000,
        "rows_merged_total": 96000,
        "rate_low95": 0.0,
        "bound95": pytest.approx(0.00994, abs=1e-5),
        "bound99": pytest.approx(0.01523, abs=1e-5),
        "fault_hits": 0,
    }


@pytest.mark.parametrize("blocks", [1, 3], ids=["inside one process", "between processes"])
def test_one_run_that_differs_in_a_bit_is_drift_with_its_place(repeats: Callable[..., Repeats], blocks: int) -> None:
    odd = tensors()
    odd["hidden1"].view(np.uint32)[0, 2, 3] ^= 1
    odd["logits1"].view(np.uint32)[4] ^= 1 << 31
    verdict = repeat.judge(repeats(tensors(), tensors(), odd, blocks=blocks), PLAN, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    right = tensors()
    assert verdict.evidence["runs"] == [0, 2]
    assert verdict.evidence["blocks"] == [0, blocks - 1]
    hidden, logits = verdict.evidence["hidden"], verdict.evidence["logits"]
    # Chunk 1 starts at position 4.
    assert (hidden["chunk"], hidden["position"], hidden["dimension"], hidden["index"]) == (1, 6, 3, [0, 2, 3])
    assert hidden["values"] == [float(right["hidden1"][0, 2, 3]), float(odd["hidden1"][0, 2, 3])]
    assert hidden["bits"] == [f"0x{int(a['hidden1'].view(np.uint32)[0, 2, 3]):08x}" for a in (right, odd)]
    assert (logits["chunk"], logits["position"], logits["vocabulary_index"]) == (1, 7, 4)
    assert logits["values"] == [float(right["logits1"][4]), -float(right["logits1"][4])]
    assert logits["bits"] == [f"0x{int(a['logits1'].view(np.uint32)[4]):08x}" for a in (right, odd)]
    assert verdict.message.startswith(
        "1 of 3 runs differ in bytes from the others; first between runs 0 and 2 at chunk 1"
    )
    assert (verdict.figures["disagreeing"], verdict.figures["distinct_results"]) == (1, 2)
    assert 0 < verdict.figures["rate_low95"] < 1 / 3 < verdict.figures["bound95"] < verdict.figures["bound99"]


@pytest.mark.parametrize(("name", "position"), [("hidden0", 1), ("logits0", 3), ("logits1", 7), ("hidden1", 5)])
def test_a_difference_in_any_tensor_of_any_chunk_is_drift(
    repeats: Callable[..., Repeats], name: str, position: int
) -> None:
    odd = tensors()
    odd[name].view(np.uint32)[(0, 1, 0) if name.startswith("hidden") else (0,)] ^= 1
    verdict = repeat.judge(repeats(tensors(), odd), PLAN, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    entry = verdict.evidence[name[:-1]]
    assert (entry["chunk"], entry["position"]) == (int(name[-1]), position)


def test_minus_zero_is_not_zero(repeats: Callable[..., Repeats]) -> None:
    runs = changed("logits0", (2,), 0.0), changed("logits0", (2,), -0.0)
    verdict = repeat.judge(repeats(*runs), PLAN, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.evidence["logits"]["bits"] == ["0x00000000", "0x80000000"]


def test_a_bad_first_run_does_not_condemn_the_others(repeats: Callable[..., Repeats]) -> None:
    verdict = repeat.judge(repeats(changed("logits0", (0,), 9.0), *[tensors()] * 99), PLAN, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.figures["disagreeing"] == 1
    assert verdict.evidence["runs"] == [0, 1]


def test_every_run_off_on_its_own_is_counted(repeats: Callable[..., Repeats]) -> None:
    runs = [tensors(), tensors(), *(changed("logits1", (0,), float(i)) for i in range(5, 8))]
    verdict = repeat.judge(repeats(*runs), PLAN, SHAPE)
    assert (verdict.figures["disagreeing"], verdict.figures["distinct_results"]) == (3, 4)


@pytest.mark.parametrize(
    ("name", "index", "value", "what"),
    [
        ("hidden0", (0, 0, 0), np.nan, "hidden of chunk 0 holds NaN"),
        ("logits0", (4,), np.inf, "logits of chunk 0 holds infinity"),
        ("logits1", (0,), -np.inf, "logits of chunk 1 holds infinity"),
        ("hidden1", ..., 0.0, "hidden of chunk 1 is all zero: degenerate output"),
        ("logits1", ..., 2.5, "logits of chunk 1 is all equal: degenerate output"),
    ],
)
def test_runs_alike_in_a_worthless_result_are_drift(
    repeats: Callable[..., Repeats], name: str, index: Any, value: float, what: str
) -> None:
    verdict = repeat.judge(repeats(*[changed(name, index, value)] * 20), PLAN, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message == f"all 20 runs alike, but {what}"
    assert (verdict.evidence["what"], verdict.evidence["chunk"]) == (what, int(name[-1]))


def test_a_worthless_result_is_drift_even_where_no_merge_ran(repeats: Callable[..., Repeats]) -> None:
    verdict = repeat.judge(repeats(*[changed("logits0", (0,), np.nan)] * 2, merges=(0, 0)), PLAN, SHAPE)
    assert verdict.outcome is Outcome.DRIFT


def test_a_library_without_hidden_states_is_judged_by_its_logits(repeats: Callable[..., Repeats]) -> None:
    bare = {name: np.empty(0, np.float32) if "hidden" in name else array for name, array in tensors().items()}
    assert repeat.judge(repeats(bare, bare), PLAN, SHAPE).outcome is Outcome.PASS
    odd = {**bare, "logits1": bare["logits1"] + 1}
    verdict = repeat.judge(repeats(bare, odd), PLAN, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    assert "hidden" not in verdict.evidence
    assert "chunk 1, position 7" in verdict.message


@pytest.mark.parametrize("merges", [(0, 0), (9, MERGES[1]), (11, MERGES[1]), (10, MERGES[1] - 1), (20, 640)])
def test_another_number_of_merges_than_the_plans_is_not_exercised(
    repeats: Callable[..., Repeats], merges: tuple[int, int]
) -> None:
    verdict = repeat.judge(repeats(tensors(), tensors(), merges=merges), PLAN, SHAPE)
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert f"run 0 merged {merges[0]} times ({merges[1]} rows)" in verdict.message
    assert "has to merge 10 times (320 rows)" in verdict.message


def test_one_run_that_merged_less_is_enough(repeats: Callable[..., Repeats]) -> None:
    observed = repeats(*[tensors()] * 3)
    runs = (*observed.runs[:2], replace(observed.runs[2], merge_calls=0, rows_merged=0))
    verdict = repeat.judge(replace(observed, runs=runs), PLAN, SHAPE)
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert verdict.message.startswith("run 2 merged 0 times")


@pytest.mark.parametrize("chunks", [(8,), (7, 1), (1,) * 8])
def test_a_plan_that_never_merges_is_not_exercised(repeats: Callable[..., Repeats], chunks: tuple[int, ...]) -> None:
    plan = Plan("p", PLAN.ids, chunks)
    verdict = repeat.judge(repeats(*[tensors(plan)] * 2, plan=plan), plan, SHAPE)
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert "merge never runs: take more tokens or shorter chunks" in verdict.message


def test_drift_is_drift_whatever_was_merged(repeats: Callable[..., Repeats]) -> None:
    observed = repeats(tensors(), changed("logits0", (0,), 1.0), merges=(0, 0))
    assert repeat.judge(observed, PLAN, SHAPE).outcome is Outcome.DRIFT


def test_fewer_runs_than_asked_for_that_agree_are_no_pass(repeats: Callable[..., Repeats]) -> None:
    observed = replace(repeats(*[tensors()] * 3), asked=300)
    assert repeat.judge(observed, PLAN, SHAPE).outcome is not Outcome.PASS


def test_equal_digests_of_values_that_nobody_saw_are_no_pass(repeats: Callable[..., Repeats]) -> None:
    assert repeat.judge(repeats(tensors(), tensors(), keep=False), PLAN, SHAPE).outcome is not Outcome.PASS


def test_drift_without_kept_tensors_says_so(repeats: Callable[..., Repeats]) -> None:
    observed = repeats(tensors(), changed("logits0", (0,), 1.0), keep=False)
    verdict = repeat.judge(observed, PLAN, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message.endswith("no tensors of two differing runs were kept")


# --- reference --------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(7)
EXACT = RNG.standard_normal((len(PLAN.ids), SHAPE.vocab))
FLOOR = 2.0**-20
"""A power of two, so that the arithmetic at the edge of a band is exact."""


def off_by(array: np.ndarray, amount: float, place: tuple[int, int] = (5, 2)) -> np.ndarray:
    """``array`` with one value moved by exactly ``amount``."""
    found = np.round(array * 2**10) / 2**10
    found[place] += amount
    return found


EXACT = off_by(EXACT, 0.0)
ROUNDED = off_by(EXACT, FLOOR)


def positions(folder: Path, logits: np.ndarray, plan: Plan = PLAN, merges: int | None = None) -> Positions:
    file = folder / f"{plan.name}.npy"
    np.save(file, logits)
    calls = plan.merge_calls(SHAPE.attention_layers) if merges is None else merges
    return Positions(plan, file, calls, calls * 32, 0)


def judged(folder: Path, logits: np.ndarray, merges: int | None = None, expected: int = 10) -> Verdict:
    return reference.judge(positions(folder, logits, merges=merges), EXACT, ROUNDED, expected)


def test_logits_within_the_band_pass(tmp_path: Path) -> None:
    verdict = judged(tmp_path, off_by(EXACT, 3 * FLOOR))
    assert (verdict.check, verdict.outcome, verdict.evidence) == ("reference", Outcome.PASS, {})
    assert verdict.figures["max_abs"] == 3 * FLOOR
    assert verdict.figures["max_abs_same_dtype"] == 2 * FLOOR
    assert verdict.figures["noise_floor"] == FLOOR
    assert verdict.figures["band"] == 8 * FLOOR
    assert (verdict.figures["positions"], verdict.figures["merge_calls"]) == (8, 10)
    assert (verdict.figures["top1_agreement"], verdict.figures["top5_overlap"]) == (1, 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_band_ends_exactly_where_it_says(tmp_path: Path, sign: int) -> None:
    edge = sign * band(FLOOR)
    assert judged(tmp_path, off_by(EXACT, edge)).outcome is Outcome.PASS
    assert judged(tmp_path, off_by(EXACT, edge * (1 + 2**-20))).outcome is Outcome.DRIFT


@pytest.mark.parametrize("place", [(0, 0), (5, 2), (7, 4)])
def test_one_value_off_at_any_position_is_drift_with_its_place(tmp_path: Path, place: tuple[int, int]) -> None:
    logits = off_by(EXACT, 1.0, place).astype(np.float32)
    verdict = judged(tmp_path, logits)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message.endswith(f"worst at position {place[0]}, vocabulary index {place[1]}")
    assert (verdict.evidence["position"], verdict.evidence["vocabulary_index"]) == place
    assert verdict.evidence["values"] == [float(logits[place]), float(EXACT[place])]
    assert verdict.evidence["bits"] == [
        f"0x{int(logits.view(np.uint32)[place]):08x}",
        f"0x{int(EXACT.view(np.uint64)[place]):016x}",
    ]


WORTHLESS = {
    "a NaN": (lambda a: off_by(a, np.nan), "logits holds NaN"),
    "an infinity": (lambda a: off_by(a, np.inf), "logits holds infinity"),
    "zeros": (np.zeros_like, "logits is all zero: degenerate output"),
    "one value": (np.ones_like, "logits is all equal: degenerate output"),
    "nothing": (lambda a: a[:0], "logits is empty"),
}


@pytest.mark.parametrize(("spoil", "what"), WORTHLESS.values(), ids=WORTHLESS)
def test_worthless_logits_are_drift_before_anything_else(
    tmp_path: Path, spoil: Callable[[np.ndarray], np.ndarray], what: str
) -> None:
    verdict = judged(tmp_path, spoil(EXACT), merges=0)
    assert (verdict.outcome, verdict.message) == (Outcome.DRIFT, what)
    assert verdict.evidence["what"] == what


@pytest.mark.parametrize(
    "keep", [(slice(0, 7),), (slice(0, 1),), (slice(None), slice(0, 4)), (slice(None), slice(0, 1))]
)
def test_logits_of_another_shape_are_drift_not_broadcast(tmp_path: Path, keep: tuple[slice, ...]) -> None:
    verdict = judged(tmp_path, EXACT[keep])
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message == f"logits are {list(EXACT[keep].shape)}, but the reference has [8, 5]"


@pytest.mark.parametrize(("merges", "expected"), [(0, 0), (0, 10), (9, 10), (11, 10), (10, 0)])
def test_right_logits_without_the_merges_are_not_exercised(tmp_path: Path, merges: int, expected: int) -> None:
    verdict = judged(tmp_path, EXACT, merges, expected)
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert verdict.message.startswith(f"{merges} merges ran where the plan has {expected}")
    assert judged(tmp_path, off_by(EXACT, 1.0), merges, expected).outcome is Outcome.DRIFT


def test_a_noise_floor_is_the_largest_error_of_rounding() -> None:
    assert reference.noise_floor(EXACT, ROUNDED) == FLOOR
    assert reference.noise_floor(EXACT, off_by(EXACT, -3 * FLOOR, (0, 0))) == 3 * FLOOR


@pytest.mark.parametrize("which", [0, 1], ids=["float64", "dtype under test"])
@pytest.mark.parametrize(("spoil", "what"), WORTHLESS.values(), ids=WORTHLESS)
def test_a_worthless_reference_is_infra_never_a_verdict(
    tmp_path: Path, which: int, spoil: Callable[[np.ndarray], np.ndarray], what: str
) -> None:
    pair = [EXACT, ROUNDED]
    pair[which] = spoil(pair[which])
    with pytest.raises(InfraError, match=r"^HuggingFace: the .*reference.* (holds|is) " + what.split()[2]):
        reference.noise_floor(*pair)
    with pytest.raises(InfraError):  # even if the logits are worthless in the same way
        reference.judge(positions(tmp_path, spoil(EXACT)), pair[0], pair[1], 10)


def test_a_noise_floor_of_zero_was_not_measured(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="the noise floor was not measured"):
        reference.noise_floor(EXACT, EXACT.copy())
    with pytest.raises(InfraError):
        reference.judge(positions(tmp_path, EXACT), EXACT, EXACT.copy(), 10)


@settings(deadline=None, derandomize=True)
@given(st.floats(-64, 64), st.sampled_from([2.0**-24, 2.0**-10, 1.0]))
def test_pass_means_within_the_band_and_nothing_else_does(
    tmp_path_factory: pytest.TempPathFactory, floors: float, floor: float
) -> None:
    logits = off_by(EXACT, floors * floor)
    observed = positions(tmp_path_factory.getbasetemp(), logits)
    verdict = reference.judge(observed, EXACT, off_by(EXACT, floor), 10)
    within = bool(np.abs(logits - EXACT).max() <= 8 * floor)
    assert verdict.outcome is (Outcome.PASS if within else Outcome.DRIFT)


# --- chunking ---------------------------------------------------------------------------------------------------------


def with_chunks(name: str, *chunks: int) -> Plan:
    return Plan(name, PLAN.ids, chunks)


ONE_SHOT, TAIL, SINGLE = with_chunks("one-shot", 8), with_chunks("tail", 7, 1), with_chunks("one-token", *[1] * 8)


def observe(folder: Path, *pairs: tuple[Plan, np.ndarray], merges: Sequence[int | None] = ()) -> list[Positions]:
    counts = list(merges) or [None] * len(pairs)
    return [positions(folder, logits, plan, n) for (plan, logits), n in zip(pairs, counts, strict=True)]


def test_chunkings_within_the_band_pass(tmp_path: Path) -> None:
    observed = observe(tmp_path, (PLAN, EXACT), (ONE_SHOT, off_by(EXACT, FLOOR)), (SINGLE, off_by(EXACT, -2 * FLOOR)))
    verdict = chunking.judge(observed, FLOOR, SHAPE)
    assert (verdict.check, verdict.outcome, verdict.evidence) == ("chunking", Outcome.PASS, {})
    assert verdict.figures["chunkings"] == {
        "default": {"chunks": 2, "merge_calls": 10},
        "one-shot": {"chunks": 1, "merge_calls": 0, "max_abs": FLOOR},
        "one-token": {"chunks": 8, "merge_calls": 0, "max_abs": 2 * FLOOR},
    }
    assert verdict.figures["max_abs"] == 2 * FLOOR
    assert (verdict.figures["positions"], verdict.figures["band"]) == (8, 8 * FLOOR)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_band_between_chunkings_ends_exactly_where_it_says(tmp_path: Path, sign: int) -> None:
    for factor, outcome in [(1.0, Outcome.PASS), (1 + 2**-20, Outcome.DRIFT)]:
        observed = observe(tmp_path, (PLAN, EXACT), (ONE_SHOT, off_by(EXACT, sign * band(FLOOR) * factor)))
        assert chunking.judge(observed, FLOOR, SHAPE).outcome is outcome


def test_a_chunking_that_differs_is_named_with_its_worst_place(tmp_path: Path) -> None:
    worst = off_by(EXACT, 2.0, (6, 1))
    observed = observe(tmp_path, (PLAN, EXACT), (ONE_SHOT, off_by(EXACT, 1.0)), (TAIL, worst), (SINGLE, EXACT))
    verdict = chunking.judge(observed, FLOOR, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message.endswith("tail against default")
    assert verdict.evidence == {
        "chunking": "tail",
        "against": "default",
        "chunks": [7, 1],
        "position": 6,
        "vocabulary_index": 1,
        "values": [float(worst[6, 1]), float(EXACT[6, 1])],
        "bits": [f"0x{int(a.view(np.uint64)[6, 1]):016x}" for a in (worst, EXACT)],
    }


@pytest.mark.parametrize("which", [0, 1], ids=["the plan's own", "another"])
@pytest.mark.parametrize(("spoil", "what"), WORTHLESS.values(), ids=WORTHLESS)
def test_worthless_logits_of_any_chunking_are_drift(
    tmp_path: Path, which: int, spoil: Callable[[np.ndarray], np.ndarray], what: str
) -> None:
    arrays = [EXACT, EXACT]
    arrays[which] = spoil(EXACT)
    verdict = chunking.judge(observe(tmp_path, *zip((PLAN, ONE_SHOT), arrays, strict=True)), FLOOR, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.evidence["chunking"] == ("default", "one-shot")[which]
    assert verdict.message == what.replace("logits", f"logits of chunking {verdict.evidence['chunking']}")


def test_chunkings_alike_in_nans_are_drift(tmp_path: Path) -> None:
    bad = off_by(EXACT, np.nan)
    verdict = chunking.judge(observe(tmp_path, (PLAN, bad), (ONE_SHOT, bad), merges=[0, 0]), FLOOR, SHAPE)
    assert verdict.outcome is Outcome.DRIFT


@pytest.mark.parametrize("keep", [(slice(0, 7),), (slice(0, 1),), (slice(None), slice(0, 1))])
def test_a_chunking_of_another_shape_is_drift_not_broadcast(tmp_path: Path, keep: tuple[slice, ...]) -> None:
    verdict = chunking.judge(observe(tmp_path, (PLAN, EXACT), (ONE_SHOT, EXACT[keep])), FLOOR, SHAPE)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message == f"chunking one-shot gives {list(EXACT[keep].shape)}, default gives [8, 5]"


@pytest.mark.parametrize(
    ("merges", "named"),
    [([9, 0], "default"), ([10, 1], "one-shot"), ([0, 0], "default"), ([20, 20], "default, one-shot")],
)
def test_merges_that_a_chunking_does_not_have_are_not_exercised(tmp_path: Path, merges: list[int], named: str) -> None:
    verdict = chunking.judge(observe(tmp_path, (PLAN, EXACT), (ONE_SHOT, EXACT), merges=merges), FLOOR, SHAPE)
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert verdict.message.endswith(f"as the plans have it: {named}")


def test_chunkings_none_of_which_merges_are_not_exercised(tmp_path: Path) -> None:
    observed = observe(tmp_path, (ONE_SHOT, EXACT), (SINGLE, EXACT), (TAIL, EXACT))
    verdict = chunking.judge(observed, FLOOR, SHAPE)
    assert (verdict.outcome, verdict.message[-5:]) == (Outcome.NOT_EXERCISED, ": all")


@pytest.mark.parametrize("floor", [np.nan, np.inf])
def test_a_band_without_an_end_lets_nothing_pass(tmp_path: Path, floor: float) -> None:
    observed = observe(tmp_path, (PLAN, EXACT), (ONE_SHOT, off_by(EXACT, 100.0)))
    try:
        verdict = chunking.judge(observed, floor, SHAPE)
    except InfraError:
        return
    assert verdict.outcome is not Outcome.PASS


def test_a_single_chunking_compares_nothing(tmp_path: Path) -> None:
    verdict = chunking.judge(observe(tmp_path, (PLAN, EXACT)), FLOOR, SHAPE)
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert verdict.figures["max_abs"] is None


def test_a_drift_between_chunkings_stands_whatever_was_merged(tmp_path: Path) -> None:
    observed = observe(tmp_path, (PLAN, EXACT), (ONE_SHOT, off_by(EXACT, 1.0)), merges=[0, 0])
    assert chunking.judge(observed, FLOOR, SHAPE).outcome is Outcome.DRIFT


@pytest.mark.parametrize(
    ("chunks", "window", "expected"),
    [
        (
            (16, 16, 16),
            64,
            {"default": (16,) * 3, "one-shot": (48,), "odd": (13, 13, 13, 9), "tail": (47, 1), "one-token": (1,) * 48},
        ),
        ((16, 16), 17, {"default": (16, 16), "odd": (13, 13, 6), "tail": (16, 15, 1), "one-token": (1,) * 32}),
        (
            (8, 8),
            None,
            {"default": (8, 8), "one-shot": (16,), "odd": (7, 7, 2), "tail": (15, 1), "one-token": (1,) * 16},
        ),
        ((2,), 64, {"default": (2,), "odd": (1, 1)}),
        ((1,), 64, {"default": (1,)}),
    ],
)
def test_chunkings_of_a_prompt(
    chunks: tuple[int, ...], window: int | None, expected: dict[str, tuple[int, ...]]
) -> None:
    plans = chunking.chunkings(Plan("default", tuple(range(sum(chunks))), chunks), window)
    assert {plan.name: plan.chunks for plan in plans} == expected


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.one_of(st.none(), st.integers(1, 80)))
def test_chunkings_are_distinct_cover_the_prompt_and_start_with_the_plan(
    lengths: list[int], window: int | None
) -> None:
    plan = Plan("default", tuple(range(sum(lengths))), tuple(lengths))
    plans = chunking.chunkings(plan, window)
    assert plans[0] is plan
    assert all(p.ids == plan.ids and min(p.chunks) >= 1 for p in plans)
    assert len({p.chunks for p in plans}) == len(plans) == len({p.name for p in plans})
    for other in plans[1:]:
        if window is not None and other.name != "odd":
            assert max(other.chunks) <= max(window - 1, 1)
        if other.name == "odd":
            assert max(other.chunks) <= max(plan.chunks)


# --- sentinel ---------------------------------------------------------------------------------------------------------

CLEAN = Watched(
    runs=10,
    merge_calls=200,
    rows_merged=6400,
    kernel_calls={"merge": 200, "append": 300},
    vm_calls=8550,
    values=515_837,
    bad={},
    first=None,
    fault_hits=0,
)
FIRST = {"run": 3, "chunk": 1, "call": "merge", "tensor": "argument 0", "index": [2, 0, 7], "value": "nan"}


def test_finite_values_pass() -> None:
    verdict = sentinel.judge(CLEAN)
    assert (verdict.check, verdict.outcome, verdict.evidence) == ("sentinel", Outcome.PASS, {})
    assert verdict.message == "all finite: 515837 values in 500 kernel calls and 8550 VM calls of 10 prefills"
    assert verdict.figures["merge_calls"] == 200
    assert "first" not in verdict.figures


@pytest.mark.parametrize("bad", [{"nan": 1}, {"inf": 4}, {"lse_minus_inf": 2}, {"nan": 1, "inf": 4}])
def test_a_value_that_is_not_finite_is_drift_with_its_place(bad: dict[str, int]) -> None:
    verdict = sentinel.judge(replace(CLEAN, bad=bad, first=FIRST))
    assert (verdict.outcome, verdict.evidence) == (Outcome.DRIFT, FIRST)
    counts = ", ".join(f"{n} {kind}" for kind, n in bad.items())
    assert verdict.message == f"{counts}; first nan in run 3, chunk 1, merge, argument 0 at [2, 0, 7]"


@pytest.mark.parametrize(
    "unseen",
    [
        {"values": 0},
        {"vm_calls": 0},
        {"kernel_calls": {"append": 300}},
        {"kernel_calls": {"merge": 0}},
        {"kernel_calls": {}},
    ],
)
def test_a_sentinel_that_saw_no_merge_proves_nothing(unseen: dict[str, Any]) -> None:
    assert sentinel.judge(replace(CLEAN, **unseen)).outcome is Outcome.NOT_EXERCISED
    assert sentinel.judge(replace(CLEAN, **unseen, bad={"nan": 1}, first=FIRST)).outcome is Outcome.DRIFT


# --- the band ---------------------------------------------------------------------------------------------------------


def test_the_band_is_at_most_eight_noise_floors() -> None:
    assert 1 < BAND_FACTOR <= 8
    assert band(FLOOR) == BAND_FACTOR * FLOOR
    assert reference.BAND_FACTOR is chunking.BAND_FACTOR is BAND_FACTOR


def test_the_band_is_defined_once_and_nothing_overrides_it() -> None:
    root = Path(driftgate.__file__).parents[1]
    rooms = [root / room for room in ("driftgate", "models", "suites", "fixtures")]
    files = [file for room in rooms for file in sorted(room.rglob("*.py"))]
    assigned = [
        file.relative_to(root).as_posix()
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Name) and node.id == "BAND_FACTOR" and isinstance(node.ctx, ast.Store)
    ]
    assert assigned == ["driftgate/checks/band.py"]
    for file in (root / "driftgate/checks").glob("*.py"):
        assert not re.search(r"\b[ar]tol\b|isclose|allclose", file.read_text()), (
            f"{file.name} has a tolerance of its own"
        )
