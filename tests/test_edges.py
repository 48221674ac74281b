"""Edges, plans around them, the built-in histories; and what boundary, history and poison say of observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import models
from driftgate.checks import boundary, history, poison
from driftgate.checks.band import band
from driftgate.checks.verdict import Verdict
from driftgate.model import Shape
from driftgate.outcome import InfraError, Outcome, UsageError
from driftgate.reach.edges import edges
from driftgate.reach.observations import Compared, Poisoned
from driftgate.reach.script import Script, parse
from driftgate.target import TargetSpec

SHAPE = Shape(
    layers=6, attention_layers=6, hidden=64, heads=4, kv_heads=2, head_dim=256, window=48, vocab=256, capacity=256
)
AVX512 = TargetSpec("llvm", "llvm", "cpu", 1, 1, 0, mcpu="skylake-avx512", num_cores=2)
AVX2 = replace(AVX512, mcpu="haswell")
METAL = TargetSpec("metal", "metal", "metal", 32, 1024, 32768)
CUDA = TargetSpec("cuda", "cuda", "cuda", 32, 1024, 49152, arch="sm_90")


def stream(count: int) -> tuple[int, ...]:
    return tuple(range(count))


# --- edges ------------------------------------------------------------------------------------------------------------


def test_edges_on_a_cpu_are_page_matrix_tile_chunk_and_window() -> None:
    assert edges(SHAPE, AVX512, "float32", 10) == {"page": 16, "matrix tile": 32, "chunk": 10, "window": 48}
    assert edges(SHAPE, AVX2, "float32", 10) == {"page": 16, "matrix tile": 8, "chunk": 10, "window": 48}


@pytest.mark.parametrize(
    ("spec", "dtype", "head_dim", "query", "key"),
    [
        (METAL, "float16", 256, 8, 16),
        (METAL, "float16", 512, 4, 8),
        (METAL, "float32", 256, 4, 8),
        (CUDA, "float16", 256, 8, 16),
        (CUDA, "float32", 256, 4, 16),
        (CUDA, "float32", 128, 8, 16),
    ],
)
def test_edges_on_a_gpu_have_the_tiles_of_attention(
    spec: TargetSpec, dtype: str, head_dim: int, query: int, key: int
) -> None:
    found = edges(replace(SHAPE, head_dim=head_dim), spec, dtype, 10)
    by_name = {name: length for names, length in found.items() for name in names.split(" and ")}
    assert by_name == {"page": 16, "query tile": query, "key tile": key, "chunk": 10, "window": 48}


@pytest.mark.parametrize(("heads", "kv_heads", "tokens"), [(4, 4, 16), (4, 2, 8), (6, 2, 5), (8, 2, 4), (8, 1, 2)])
def test_a_query_tile_holds_a_token_for_each_whole_group_of_heads(heads: int, kv_heads: int, tokens: int) -> None:
    found = edges(replace(SHAPE, heads=heads, kv_heads=kv_heads), METAL, "float16", 10)
    assert [length for names, length in found.items() if "query tile" in names] == [tokens]


def test_a_tile_of_one_token_is_no_edge() -> None:
    found = edges(replace(SHAPE, heads=32, kv_heads=1), METAL, "float16", 10)
    assert not any("query tile" in names for names in found)
    assert set(edges(SHAPE, AVX512, "float32", 1)) == {"page", "matrix tile", "window"}


@pytest.mark.parametrize(
    ("chunk", "window", "expected"),
    [
        (16, 48, {"page and chunk": 16, "matrix tile": 32, "window": 48}),
        (48, 48, {"page": 16, "matrix tile": 32, "chunk and window": 48}),
        (32, 32, {"page": 16, "matrix tile and chunk and window": 32}),
        (16, 16, {"page and chunk and window": 16, "matrix tile": 32}),
    ],
)
def test_edges_of_one_length_are_one_edge_with_all_their_names(
    chunk: int, window: int, expected: dict[str, int]
) -> None:
    assert edges(replace(SHAPE, window=window), AVX512, "float32", chunk) == expected


@pytest.mark.parametrize("spec", [AVX512, METAL, CUDA], ids=lambda spec: spec.name)
def test_a_model_without_a_window_has_no_edge_there(spec: TargetSpec) -> None:
    found = edges(replace(SHAPE, window=None), spec, "float16", 10)
    assert not any("window" in names for names in found)
    assert set(found.values()) < set(edges(SHAPE, spec, "float16", 10).values())


# --- plans around edges -----------------------------------------------------------------------------------------------

FOUND = {"page": 16, "matrix tile and window": 32, "chunk": 10}
IDS = tuple(range(1000, 1000 + boundary.longest(FOUND, 256)))


def test_the_longest_plan_is_some_of_the_longest_edge_and_never_more_than_the_cache() -> None:
    assert boundary.PERIODS >= 2
    assert boundary.longest(FOUND, 256) == len(IDS) == boundary.PERIODS * 32 + 3
    assert boundary.longest(FOUND, 60) == 60


@settings(deadline=None, derandomize=True)
@given(
    st.dictionaries(st.sampled_from(["page", "tile", "chunk", "window"]), st.integers(2, 40), min_size=1),
    st.integers(1, 45),
    st.one_of(st.none(), st.integers(1, 40)),
    st.integers(2, 150),
)
def test_plans_are_distinct_beginnings_of_the_prompt_with_no_chunk_over_the_window(
    found: dict[str, int], chunk: int, window: int | None, capacity: int
) -> None:
    ids = tuple(range(1000, 1000 + boundary.longest(found, capacity)))
    plans = boundary.plans(found, ids, chunk, window)
    assert len(ids) <= capacity
    for plan in plans:
        assert plan.ids == ids[: len(plan.ids)]
        assert sum(plan.chunks) == len(plan.ids) <= capacity
        assert min(plan.chunks) >= 1
        assert window is None or max(plan.chunks) <= window
        assert plan.name == ",".join(map(str, plan.chunks))
    assert len({plan.chunks for plan in plans}) == len({plan.name for plan in plans}) == len(plans)


@pytest.mark.parametrize("edge", FOUND)
@pytest.mark.parametrize("by", [-1, 0, 1])
def test_every_edge_is_met_by_a_chunk_by_a_past_and_by_a_whole_prompt(edge: str, by: int) -> None:
    length = FOUND[edge] + by
    plans = boundary.plans(FOUND, IDS, chunk=10, window=32)
    if length <= 32:
        assert any(plan.chunks[0] == length and len(plan.chunks) > 1 for plan in plans), "with more after it"
        assert any(plan.chunks[-1] == length and plan.starts[-1] == length for plan in plans), "onto as many"
    assert any(length in plan.starts[1:] for plan in plans)
    assert any(len(plan.ids) == length for plan in plans)


@settings(deadline=None, derandomize=True)
@given(st.integers(3, 40), st.integers(2, 45), st.one_of(st.none(), st.integers(2, 45)), st.sampled_from([-1, 0, 1]))
def test_any_edge_is_met_by_a_chunk_by_a_past_and_by_a_whole_prompt(
    edge: int, chunk: int, window: int | None, by: int
) -> None:
    found = {"edge": edge, "chunk": chunk, **({} if window is None else {"window": window})}
    plans = boundary.plans(found, tuple(range(boundary.longest(found, 1000))), chunk, window)
    length = edge + by
    if window is None or length <= window:
        assert any(plan.chunks[-1] == length and plan.starts[-1] == length for plan in plans)
    assert any(length in plan.starts[1:] for plan in plans)
    assert any(len(plan.ids) == length for plan in plans)


def test_chunks_that_are_no_multiple_of_the_edge_go_onto_each_past() -> None:
    """Of one token and of three, after a chunk at the edge; and of two after two edges and three tokens."""
    plans = {plan.chunks for plan in boundary.plans(FOUND, IDS, chunk=10, window=32)}
    assert {(n, 10, 1, 3) for n in (15, 16, 17, 31, 32, 9, 10, 11)} <= plans
    assert {(10, 10, 10, 5, 2), (10, 10, 3, 2)} <= plans


@settings(deadline=None, derandomize=True)
@given(st.integers(3, 12), st.integers(1, 45), st.one_of(st.none(), st.integers(2, 45)))
def test_periodic_chunks_meet_every_offset_of_an_edge_that_is_short_enough(
    edge: int, chunk: int, window: int | None
) -> None:
    found = {"edge": edge, "long": 50}
    most = boundary.longest(found, 1000)
    assume(edge * (edge - 1) <= most and (window is None or edge - 1 <= window))
    plans = boundary.plans(found, tuple(range(most)), chunk, window)
    (periodic,) = [p for p in plans if len(p.ids) == most and set(p.chunks[:-1]) == {edge - 1}]
    assert {start % edge for start in periodic.starts} == set(range(edge))
    # A chunk of one more than the edge moves on by one, a chunk of one less falls behind by one.
    for step in (edge - 1, edge + 1):
        if window is None or step <= window:
            (periodic,) = [p for p in plans if len(p.ids) == most and set(p.chunks[:-1]) == {step}]
            moved = [(b - a) % edge for a, b in zip(periodic.starts, periodic.starts[1:], strict=False)]
            assert set(moved) == {(step - edge) % edge}


# --- the built-in histories -------------------------------------------------------------------------------------------

WINDOWS = [None, 24, 32, 64, 512]
EVERY_KIND = {"batch", "decode", "fork", "popn", "remove"}


def scripts_of(chunk: int, window: int | None, capacity: int = 2048) -> dict[str, Script]:
    return {name: parse(name, text, stream, capacity) for name, text in history.texts(chunk, window).items()}


@pytest.mark.parametrize("window", WINDOWS)
def test_histories_parse_have_distinct_texts_and_cover_every_kind_of_step(window: int | None) -> None:
    scripts = scripts_of(8, window)
    assert len({script.text for script in scripts.values()}) == len(scripts)
    run = [script for script in scripts.values() if not history.left_out(script, window)]
    assert {kind for script in run for kind in script.kinds} == EVERY_KIND
    for name in ("popn", "fork", "batch", "removed", "decode"):
        assert any(script.name.startswith(name) for script in run), name


@pytest.mark.parametrize("window", WINDOWS)
def test_histories_go_past_the_window_where_there_is_one(window: int | None) -> None:
    scripts = scripts_of(8, window)
    past = [
        script.name
        for script in scripts.values()
        if window is not None and not history.left_out(script, window) and any(s + n > window for s, n in script.chunks)
    ]
    if window is None:
        assert set(scripts) == {"cold", *history.INSIDE}
    else:
        assert {"past-window", "window-popn", "window-batch"} <= set(past)


@pytest.mark.parametrize("window", [32, 64, 512])
def test_no_history_is_left_out_of_a_window_of_32_or_more(window: int) -> None:
    scripts = scripts_of(window // 3, window)
    assert [name for name, script in scripts.items() if history.left_out(script, window)] == []


@pytest.mark.parametrize("chunk", [1, 8, 10, 300])
def test_no_history_is_left_out_without_a_window(chunk: int) -> None:
    assert not any(history.left_out(script, None) for script in scripts_of(chunk, None).values())


@settings(deadline=None, derandomize=True)
@given(st.integers(3, 600).flatmap(lambda window: st.tuples(st.just(window), st.integers(1, window // 3))))
def test_a_cold_prefill_within_the_window_is_never_left_out(made: tuple[int, int]) -> None:
    window, chunk = made
    assert not history.left_out(scripts_of(chunk, window, 10_000)["cold"], window)


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("a+32 a+32", False),
        ("a+33", True),
        ("a+20,b+33", True),
        ("a+20 b=a b+12 a+12", False),
        ("a+20 b=a b+13", True),
        ("a+20 b=a a+13", True),
        ("a+20 a+13 b=a", False),
        ("a+20 b=a c+20 c+20", False),
    ],
)
def test_left_out_is_what_forks_and_goes_past_the_window_or_has_a_chunk_over_it(text: str, out: bool) -> None:
    assert history.left_out(parse("h", text, stream, 256), 32) is out


@pytest.mark.parametrize("name", models.names())
def test_histories_that_fit_the_cache_of_a_preset_are_of_every_kind(name: str) -> None:
    shape = models.find(name).shape
    kinds: set[str] = set()
    for plan in models.find(name).plans.values():
        for label, text in history.texts(max(plan.chunks), shape.window).items():
            try:
                script = parse(label, text, stream, shape.capacity)
            except UsageError:
                # Three windows side by side, or one, in a cache that is no longer: the check leaves it out as well.
                assert "window" in label
                continue
            kinds |= set(script.kinds) if not history.left_out(script, shape.window) else set()
    assert kinds == EVERY_KIND


def test_histories_that_only_prefill_are_not_what_was_asked_for() -> None:
    plain = parse("cold", "a+10 a+10", stream, 256)
    found = Compared("cold", 20, 2.0**-20, {}, 6)
    verdict = history.judge([found], [plain], 2.0**-20, {"cold": "driftgate gate gemma3-tiny"}, ["fork-page"])
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert verdict.figures["left_out"] == ["fork-page"]


# --- what the checks say ----------------------------------------------------------------------------------------------

FLOOR = 2.0**-20
"""A power of two, so that the arithmetic at the edge of a band is exact."""
WORST = {"position": 7, "vocabulary_index": 3, "values": [1.0, 2.0], "bits": ["0x3f800000", "0x4000000000000000"]}
NAMES = ("10,7", "16,10,1", "9")
COMMANDS = {name: f"driftgate gate gemma3-tiny --chunk {name}" for name in NAMES}
TEXTS = {"cold": "a+10 a+10", "popn": "a+20 a-9 a+9 a+1", "fork": "a+12,c+3 b=a@9 b+11 -a"}
SCRIPTS = [parse(name, text, stream, 256) for name, text in TEXTS.items()]
RERUNS = {name: f"driftgate gate gemma3-tiny --history '{text}'" for name, text in TEXTS.items()}


def compared(names: Sequence[str] = NAMES, merges: int = 6, **changed: Compared) -> list[Compared]:
    """Right observations, some of them put in place by ``changed`` (``n1=...`` is the second)."""
    found = [Compared(name, 10 * (i + 2), FLOOR, WORST, merges) for i, name in enumerate(names)]
    for key, one in changed.items():
        found[int(key[1:])] = one
    return found


def at_edges(observed: Sequence[Compared], floor: float = FLOOR) -> Verdict:
    return boundary.judge(observed, floor, FOUND, ["9"], COMMANDS)


def of_histories(observed: Sequence[Compared], floor: float = FLOOR, missed: Sequence[str] = ()) -> Verdict:
    return history.judge(observed, SCRIPTS, floor, RERUNS, missed)


def off(name: str, amount: float | None, positions: int = 20, **fields: Any) -> Compared:
    worst = {**WORST} if amount is not None else {"what": "logits holds NaN", "position": 3}
    return Compared(name, positions, amount, worst, 6, **fields)


JUDGES: Mapping[str, tuple[Callable[..., Verdict], Sequence[str]]] = {
    "boundary": (at_edges, NAMES),
    "history": (of_histories, tuple(TEXTS)),
}
both = pytest.mark.parametrize(("judge", "names"), JUDGES.values(), ids=JUDGES)


@both
def test_observations_within_the_band_pass(judge: Callable[..., Verdict], names: Sequence[str]) -> None:
    verdict = judge(compared(names, n1=off(names[1], 3 * FLOOR)))
    assert (verdict.outcome, verdict.evidence) == (Outcome.PASS, {})
    figures = verdict.figures
    assert (figures["positions"], figures["merge_calls"]) == (20 + 20 + 40, 18)
    assert figures["max_abs"] == 3 * FLOOR
    assert figures["band"] == band(FLOOR) == 8 * FLOOR
    assert (figures["noise_floor"], figures["band_factor"], figures["fault_hits"]) == (FLOOR, 8, 0)
    assert "80 positions" in verdict.message
    assert f"band {band(FLOOR):.2e}" in verdict.message


def test_a_passing_boundary_names_its_edges_and_a_passing_history_its_kinds() -> None:
    verdict = at_edges(compared())
    assert verdict.check == "boundary"
    assert verdict.message.startswith("3 plans around page 16, matrix tile and window 32, chunk 10: ")
    assert (verdict.figures["plans"], verdict.figures["edges"], verdict.figures["corrected"]) == (3, FOUND, 1)
    verdict = of_histories(compared(tuple(TEXTS)), missed=["far"])
    assert verdict.check == "history"
    assert verdict.message.startswith("3 histories (batch, decode, fork, popn, remove), each twice: ")
    assert (verdict.figures["histories"], verdict.figures["left_out"]) == (3, ["far"])
    assert verdict.figures["kinds"] == sorted(EVERY_KIND)


def test_edges_that_no_plan_could_meet_are_said_and_are_none_of_those_that_were_met() -> None:
    verdict = boundary.judge(compared(), FLOOR, FOUND, [], COMMANDS, {"window": 4096})
    assert verdict.outcome is Outcome.PASS
    assert verdict.message.endswith("; too long to be met: window 4096")
    assert (verdict.figures["edges"], verdict.figures["beyond"]) == (FOUND, {"window": 4096})
    assert at_edges(compared()).figures["beyond"] == {}


@both
def test_the_band_ends_exactly_where_it_says(judge: Callable[..., Verdict], names: Sequence[str]) -> None:
    assert judge(compared(names, n2=off(names[2], band(FLOOR)))).outcome is Outcome.PASS
    assert judge(compared(names, n2=off(names[2], band(FLOOR) * (1 + 2**-20)))).outcome is Outcome.DRIFT


@both
def test_one_that_is_outside_the_band_is_drift_with_its_place_and_the_command(
    judge: Callable[..., Verdict], names: Sequence[str]
) -> None:
    verdict = judge(compared(names, n1=off(names[1], 1.5)))
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message.startswith("1 of 3 ")
    assert f"{names[1]}: off by 1.50e+00 at position 7" in verdict.message
    assert {key: verdict.evidence[key] for key in WORST} == WORST
    assert verdict.evidence["reproduce"] == {**COMMANDS, **RERUNS}[names[1]]
    assert verdict.figures["max_abs"] == 1.5


@both
@pytest.mark.parametrize("what", ["logits holds NaN", "logits is all zero: degenerate output"])
def test_one_that_is_unusable_is_drift_and_says_why(
    judge: Callable[..., Verdict], names: Sequence[str], what: str
) -> None:
    spoilt = Compared(names[0], 20, None, {"what": what, "position": 3}, 6)
    verdict = judge(compared(names, n0=spoilt))
    assert verdict.outcome is Outcome.DRIFT
    assert f"{names[0]}: {what}" in verdict.message
    assert (verdict.evidence["what"], verdict.evidence["position"]) == (what, 3)
    assert verdict.evidence["reproduce"] == {**COMMANDS, **RERUNS}[names[0]]
    assert verdict.figures["max_abs"] == FLOOR, "of those that have a distance"


@both
@pytest.mark.parametrize("amount", [float("nan"), float("inf")])
def test_a_distance_that_is_no_number_is_drift(
    judge: Callable[..., Verdict], names: Sequence[str], amount: float
) -> None:
    assert judge(compared(names, n1=off(names[1], amount))).outcome is Outcome.DRIFT


@both
def test_where_all_are_unusable_there_is_no_distance(judge: Callable[..., Verdict], names: Sequence[str]) -> None:
    verdict = judge([off(name, None) for name in names])
    assert (verdict.outcome, verdict.figures["max_abs"]) == (Outcome.DRIFT, None)


@both
def test_drift_is_drift_whatever_was_merged(judge: Callable[..., Verdict], names: Sequence[str]) -> None:
    observed = compared(names, merges=0, n1=replace(off(names[1], 1.0), merge_calls=0))
    assert judge(observed).outcome is Outcome.DRIFT


@both
def test_observations_none_of_which_merged_are_not_exercised(
    judge: Callable[..., Verdict], names: Sequence[str]
) -> None:
    verdict = judge(compared(names, merges=0))
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert "merged" in verdict.message
    assert judge([]).outcome is Outcome.NOT_EXERCISED


@both
@pytest.mark.parametrize("floor", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_band_that_was_not_measured_lets_nothing_be_judged(
    judge: Callable[..., Verdict], names: Sequence[str], floor: float
) -> None:
    with pytest.raises(InfraError, match="noise floor"):
        judge(compared(names, n1=off(names[1], 100.0)), floor)


def test_of_several_wrong_plans_the_shortest_is_named_and_all_are_listed() -> None:
    verdict = at_edges([off("16,10,1", 2.0, 27), off("10,7", 1.0, 17), off("9", 0.0, 9)])
    assert verdict.message.startswith("2 of 3 plans; the shortest is 10,7: off by 1.00e+00")
    assert (verdict.evidence["plan"], verdict.evidence["wrong"]) == ("10,7", ["16,10,1", "10,7"])
    assert verdict.evidence["reproduce"] == COMMANDS["10,7"]


def test_a_history_that_is_another_the_second_time_is_drift_though_it_is_in_the_band() -> None:
    differs = {"index": [2, 5], "position": 22, "values": [1.0, 1.5], "bits": ["0x3f800000", "0x3fc00000"]}
    verdict = of_histories(compared(tuple(TEXTS), n1=off("popn", FLOOR, differs=differs)))
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message.startswith("1 of 3 histories; popn: the second time differs in bytes from the first (a+20 ")
    assert verdict.evidence == {"history": TEXTS["popn"], **differs, "reproduce": RERUNS["popn"]}


def test_a_wrong_history_is_named_before_one_that_does_not_repeat_and_its_steps_are_in_the_evidence() -> None:
    odd = off("cold", FLOOR, differs={"index": [0, 0], "position": 0})
    verdict = of_histories(compared(tuple(TEXTS), n0=odd, n2=off("fork", 2.0)))
    assert verdict.evidence["history"] == TEXTS["fork"]
    assert verdict.evidence["reproduce"] == RERUNS["fork"]
    assert "differs" not in verdict.message


# --- poison -----------------------------------------------------------------------------------------------------------

CLEAN = [Poisoned(name, where, 1000, None, 12) for where in ("default", "recycled") for name in ("nan", "large")]
DIFFERS = {
    "what": "bytes differ",
    "index": [4, 1],
    "position": 14,
    "values": [1.0, float("nan")],
    "bits": ["0x3f800000", "0x7fc00000"],
}


def test_runs_with_the_bytes_of_a_clean_one_pass_and_say_how_much_was_filled() -> None:
    verdict = poison.judge(CLEAN)
    assert (verdict.check, verdict.outcome, verdict.evidence) == ("poison", Outcome.PASS, {})
    assert verdict.message == "4 runs under nan, large (4,000 values) have the bytes of a clean one"
    assert verdict.figures == {
        "runs": 4,
        "poisons": ["nan", "large"],
        "filled": 4000,
        "merge_calls": 48,
        "fault_hits": 0,
    }


@pytest.mark.parametrize("at", range(4))
def test_one_run_that_differs_is_drift_with_its_poison_and_place(at: int) -> None:
    observed = [replace(one, differs=DIFFERS) if i == at else one for i, one in enumerate(CLEAN)]
    verdict = poison.judge(observed)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.message == (
        f"1 of 4 runs are not as without poison; first {CLEAN[at].where} under {CLEAN[at].name}: bytes differ "
        "at position 14"
    )
    assert verdict.evidence == {"poison": CLEAN[at].name, "where": CLEAN[at].where, **DIFFERS}


def test_a_run_that_differs_is_drift_whatever_was_filled_or_merged() -> None:
    observed = [replace(one, filled=0, merge_calls=0) for one in CLEAN]
    assert poison.judge([*observed, replace(CLEAN[0], differs=DIFFERS)]).outcome is Outcome.DRIFT


@pytest.mark.parametrize(
    "observed",
    [
        [],
        [replace(one, merge_calls=0) for one in CLEAN],
        [replace(CLEAN[0], filled=0), *CLEAN[1:]],
        [replace(one, filled=0) for one in CLEAN],
    ],
    ids=["nothing", "no merge", "one run with nothing filled", "nothing filled"],
)
def test_poison_that_met_nothing_proves_nothing(observed: list[Poisoned]) -> None:
    assert poison.judge(observed).outcome is Outcome.NOT_EXERCISED


def test_the_history_under_poison_takes_back_frees_and_uses_again() -> None:
    script = parse("recycled", poison.RECYCLED, stream, 128)
    assert {"popn", "remove", "fork", "decode"} <= set(script.kinds)
