"""result.json: written after every check, whole or not at all, never a pass before its time, and as documented."""

from __future__ import annotations

import json
import math
import re
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import driftgate
from driftgate import options
from driftgate.checks import boundary, chunking, history, isolate, kernels, poison, reference, repeat, sentinel
from driftgate.checks.verdict import Verdict
from driftgate.cli import main
from driftgate.isolation.observations import (
    NONE,
    OFF_REFERENCE,
    UNSTABLE,
    Confirmation,
    Findings,
    Rate,
    Row,
    Swapped,
    Swept,
    Symptom,
)
from driftgate.model import Shape
from driftgate.observe import Positions, Repeats, Run, Watched
from driftgate.outcome import Outcome, UsageError, worst
from driftgate.plan import Plan
from driftgate.races.catalog import Shape as CacheShape
from driftgate.races.coverage import Coverage
from driftgate.races.judge import Job, Judged, Report, judge
from driftgate.races.known import KnownFinding, digest
from driftgate.races.limits import Excess
from driftgate.reach.observations import Compared, Poisoned
from driftgate.reach.script import parse
from driftgate.report.result import SCHEMA, Known, ResultFile, clean
from driftgate.target import resolve
from fixtures.gate import gate_for, preset

ROOT = Path(driftgate.__file__).parents[1]
SCHEMA_FILE = ROOT / "driftgate/report/schema.json"
DOCUMENT = (ROOT / "docs/result.md").read_text(encoding="utf-8")

JSON_SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(JSON_SCHEMA)

REPRODUCE = {"reproduce": "driftgate gate gemma4-tiny --checks repeat"}


def complaints(result: dict[str, Any]) -> list[str]:
    found = VALIDATOR.iter_errors(result)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}"[:300] for error in found]


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The header that a gate writes, of a gate that was opened but runs nothing."""
    flags = {"target": "llvm", "out": str(tmp_path_factory.mktemp("out")), "fault": "nan-row:0.5"}
    return gate_for(options.resolve(flags, {}, {}, preset)).result.header


@pytest.fixture
def result(tmp_path: Path, header: dict[str, Any]) -> ResultFile:
    return ResultFile(tmp_path / "out", header, ("repeat", "reference"))


def read(result: ResultFile) -> dict[str, Any]:
    """What is on disk, which has to fit the schema at all times."""
    found = json.loads(result.path.read_text(), parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert complaints(found) == []
    return found


# --- verdicts of every check, in every state --------------------------------------------------------------------------

PLAN = Plan("default", (1, 2, 3, 4), (2, 2))
SHAPE = Shape(layers=1, attention_layers=1, hidden=2, heads=2, kv_heads=1, head_dim=8, window=8, vocab=3, capacity=16)
GOOD = np.arange(12, dtype=np.float32).reshape(4, 3)
EXACT = GOOD.astype(np.float64)
ROUNDED = GOOD + np.float32(2**-10)
WITH_NAN = np.where(GOOD == 7, np.nan, GOOD)


def _repeat(folder: Path, *results: np.ndarray, merges: tuple[int, int] = (1, 4)) -> Verdict:
    runs = []
    for number, found in enumerate(results):
        halves = {f"{kind}{chunk}": found[2 * chunk] for kind in ("hidden", "logits") for chunk in (0, 1)}
        np.savez(folder / f"run{number}.npz", **halves)
        digests = tuple((str(found[2 * chunk]),) * 2 for chunk in (0, 1))
        runs.append(Run(number, 0, digests, *merges))
    return repeat.judge(Repeats(len(runs), 1, tuple(runs), folder, 3), PLAN, SHAPE)


def _positions(folder: Path, logits: np.ndarray, plan: Plan = PLAN, merges: int = 1) -> Positions:
    np.save(folder / f"{plan.name}.npy", logits)
    return Positions(plan, folder / f"{plan.name}.npy", merges, 4 * merges, 0)


def _chunking(folder: Path, logits: np.ndarray, merges: int = 1) -> Verdict:
    other = _positions(folder, logits, Plan("one-shot", PLAN.ids, (4,)), 0)
    return chunking.judge([_positions(folder, GOOD, merges=merges), other], 2**-10, SHAPE)


def _reference(folder: Path, logits: np.ndarray, merges: int = 1) -> Verdict:
    return reference.judge(_positions(folder, logits, merges=merges), EXACT, ROUNDED, 1)


def _isolate(kind: str, culprits: tuple[str, ...], max_abs: float | None = 0.5) -> Verdict:
    row = Row("merge", 20, 1000, 3, 20, 1, 0.5, 9.0, 1, 1, {"run": 0, "chunk": 1, "layer": 2, "call": 3})
    symptom = Symptom(kind, Rate(int(kind == UNSTABLE), 30), max_abs, 0.1, 31)
    alone = Swapped(culprits, "numpy", Rate(0, 30))
    swaps = Confirmation(Rate(9, 30), alone, p_value=0.001, prefills=64) if culprits else None
    return isolate.judge(Findings(symptom, Swept({"merge": row}, (), ("merge",), 1), culprits, swaps))


STATES = {"passes": "clean", "passes with what is known": "known", "drifts": "new", "is not exercised": "refused"}
JOB = Job("merge", CacheShape(512, 8, 1, "float16"), resolve("metal"), 32)
ACCESS = {
    "site": 0,
    "access": "load",
    "line": 22,
    "file": "kernel.py",
    "source_line": 5,
    "text": "a = S[0]",
}
RACE = Report("read-write", "defect", "read-write, across warps", "at any warp width", "S", (ACCESS,), "", 3, 0, True)
EXCESS = Excess("bytes of shared memory", 40_000, 32_768, "the figure of target metal")


def _kernels(check: str, state: str, folder: Path) -> Verdict:
    """A verdict on one kernel: clean, with something that is known or new, or not built."""
    if state == "refused":
        judged = Judged(JOB, refused="TVM does not build it")
    else:
        found = state != "clean"
        reports, excesses = (RACE,) * found, (EXCESS,) * found
        judged = Judged(JOB, "", reports, excesses, Coverage((4, 4), (2, 2), (0, 0), 1, 3, 3, ()), threads=1024)
    known = [
        KnownFinding("it", "merge", ("read-write", EXCESS.what), buffer, ("metal",), (), digest("merge"))
        for buffer in ("S", "")
        if state == "known"
    ]
    if check == "codegen":
        word = {"clean": "pass", "known": "known", "new": "drift", "refused": "refused"}[state]
        row = {"kernel": "merge", "target": "metal", "head_dim": 512, "dtype": "float16", "verdict": word}
        return kernels.codegen([row | {"findings": ["no barrier"], "lines": [[3, "S[0] = 1"]]}], [judged])
    return getattr(kernels, check)([judged], known)


COMPARED = Compared("2,2", 4, 1e-3, {"position": 1, "vocabulary_index": 2, "values": [1.0, 1.1]}, 4)
POISONED = Poisoned("nan", "default", 99, None, 4)
SCRIPT = parse("cold", "a+4 a-1 a+2", range, 64)


def _boundary(**changes: Any) -> Verdict:
    found = replace(COMPARED, **changes)
    return boundary.judge([found], 2**-10, {"page and window": 16}, ["2,2"], {"2,2": REPRODUCE["reproduce"]})


def _history(**changes: Any) -> Verdict:
    found = replace(COMPARED, name="cold", **changes)
    return history.judge([found], [SCRIPT], 2**-10, {"cold": REPRODUCE["reproduce"]}, ["past-window"])


WATCHED = Watched(1, 1, 4, {"merge": 1}, 5, 99, {}, None, 0)
FIRST = {"run": 0, "chunk": 1, "call": "merge", "tensor": "LSE", "index": [0], "value": "-inf"}

VERDICTS: dict[str, Callable[[Path], Verdict]] = {
    "repeat passes": lambda d: _repeat(d, GOOD, GOOD),
    "repeat drifts": lambda d: _repeat(d, GOOD, GOOD, GOOD[::-1]),
    "repeat drifts into NaN": lambda d: _repeat(d, GOOD, WITH_NAN[::-1]),
    "repeat is all NaN": lambda d: _repeat(d, GOOD * np.nan, GOOD * np.nan),
    "repeat is not exercised": lambda d: _repeat(d, GOOD, GOOD, merges=(0, 0)),
    "chunking passes": lambda d: _chunking(d, GOOD),
    "chunking drifts": lambda d: _chunking(d, GOOD + 1),
    "chunking drifts without bound": lambda d: _chunking(d, GOOD.astype(np.float64) * -1e308),
    "chunking has a NaN": lambda d: _chunking(d, WITH_NAN),
    "chunking has another shape": lambda d: _chunking(d, GOOD[:3]),
    "chunking is not exercised": lambda d: _chunking(d, GOOD, merges=0),
    "chunking has one plan": lambda d: chunking.judge([_positions(d, GOOD)], 2**-10, SHAPE),
    "reference passes": lambda d: _reference(d, GOOD),
    "reference drifts": lambda d: _reference(d, GOOD + 1),
    "reference has a NaN": lambda d: _reference(d, WITH_NAN),
    "reference has another shape": lambda d: _reference(d, GOOD[:3]),
    "reference is not exercised": lambda d: _reference(d, GOOD, merges=0),
    "sentinel passes": lambda d: sentinel.judge(WATCHED),
    "sentinel drifts": lambda d: sentinel.judge(replace(WATCHED, bad={"lse_minus_inf": 1}, first=FIRST)),
    "sentinel is not exercised": lambda d: sentinel.judge(replace(WATCHED, kernel_calls={})),
    "boundary passes": lambda d: _boundary(),
    "boundary drifts": lambda d: _boundary(max_abs=0.5),
    "boundary has a NaN": lambda d: _boundary(max_abs=None, worst={"what": "logits holds NaN", "position": 3}),
    "boundary is not exercised": lambda d: _boundary(merge_calls=0),
    "history passes": lambda d: _history(),
    "history drifts": lambda d: _history(max_abs=0.5),
    "history drifts the second time": lambda d: _history(differs={"what": "bytes differ", "position": 2}),
    "history is not exercised": lambda d: _history(merge_calls=0),
    "poison passes": lambda d: poison.judge([POISONED]),
    "poison drifts": lambda d: poison.judge([replace(POISONED, differs={"what": "bytes differ", "position": 2})]),
    "poison is not exercised": lambda d: poison.judge([replace(POISONED, filled=0)]),
    "isolate drifts": lambda d: _isolate(UNSTABLE, ("merge",)),
    "isolate drifts and names nobody": lambda d: _isolate(OFF_REFERENCE, (), max_abs=None),
    "isolate is not exercised": lambda d: _isolate(NONE, ()),
    **{
        f"{check} {word}": partial(_kernels, check, state)
        for check in options.KERNEL_CHECKS
        for word, state in STATES.items()
    },
    "an error is infra": lambda d: Verdict("repeat", Outcome.INFRA, "a process was ended by signal 11"),
    "an error is usage": lambda d: Verdict("reference", Outcome.USAGE, "weights of m: w holds 1 values"),
}


def as_recorded(verdict: Verdict) -> Verdict:
    """``verdict`` as the gate writes it down."""
    return verdict if verdict.outcome is Outcome.PASS else replace(verdict, evidence={**verdict.evidence, **REPRODUCE})


@pytest.mark.parametrize("make", VERDICTS.values(), ids=VERDICTS)
def test_every_verdict_fits_the_schema(tmp_path: Path, header: dict[str, Any], make: Callable[[Path], Verdict]) -> None:
    with np.errstate(all="ignore"):
        verdict = as_recorded(make(tmp_path))
    result = ResultFile(tmp_path, header, (verdict.check,))
    result.add(verdict)
    (entry,) = read(result)["checks"]
    found = verdict.check, verdict.outcome.value, verdict.message
    assert (entry["check"], entry["verdict"], entry["message"]) == found
    assert set(entry["figures"]) <= set(JSON_SCHEMA["$defs"][verdict.check]["properties"]), "not in schema and document"


def test_the_states_above_are_all_there_are() -> None:
    words = {"passes": Outcome.PASS, "not exercised": Outcome.NOT_EXERCISED, "drifts": Outcome.DRIFT}
    for check in options.EVERY_CHECK:
        for word in words:
            if (check, word) == ("isolate", "passes"):
                continue  # it never does
            assert any(name.startswith(check) and word in name for name in VERDICTS), f"{check} {word}"


# --- when it is written -----------------------------------------------------------------------------------------------


def passed(check: str) -> Verdict:
    figures: dict[str, dict[str, Any]] = {
        "repeat": dict(runs=9, runs_asked=9, blocks=3, disagreeing=0, distinct_results=1, merge_calls=20,
                       merge_calls_expected=20, rows_merged=9, merge_calls_total=180, rows_merged_total=81,
                       rate_low95=0.0, bound95=0.3, bound99=0.4, fault_hits=0),
        "reference": dict(positions=9, noise_floor=1e-6, band_factor=8.0, band=8e-6, merge_calls=20, fault_hits=0,
                          max_abs=1e-6, max_abs_same_dtype=1e-6, max_abs_in_spread=1e-6, kl_mean=0.0, kl_p999=0.0,
                          top1_agreement=1.0, top5_overlap=1.0, ulp_histogram={"<=0": 9}),
    }  # fmt: skip
    return Verdict(check, Outcome.PASS, "fine", figures[check])


def failed(check: str, outcome: Outcome) -> Verdict:
    return Verdict(check, outcome, "not fine", passed(check).figures, REPRODUCE)


def test_the_file_is_there_before_anything_ran_and_after_every_check(result: ResultFile) -> None:
    result.open()
    empty = read(result)
    assert (empty["verdict"], empty["complete"], empty["checks"], empty["known"]) == ("infra", False, [], [])
    result.add(passed("repeat"))
    assert [entry["check"] for entry in read(result)["checks"]] == ["repeat"]
    assert (read(result)["verdict"], read(result)["complete"]) == ("infra", False)
    assert result.missing == ("reference",)
    result.add_known(Known("defect", "fails", {"nans": 3}))
    assert read(result)["known"] == [{"name": "defect", "status": "fails", "figures": {"nans": 3}}]
    assert read(result)["verdict"] == "infra"
    result.add(passed("reference"))
    assert (read(result)["verdict"], read(result)["complete"], result.missing) == ("pass", True, ())


def test_an_older_result_does_not_survive_the_start_of_a_run(result: ResultFile) -> None:
    for check in result.expected:
        result.folder.mkdir(exist_ok=True)
        result.add(passed(check))
    assert read(result)["verdict"] == "pass"
    again = ResultFile(result.folder, result.header, result.expected)
    again.open()
    assert read(again)["verdict"] == "infra"


@pytest.mark.parametrize("at", ["writing", "moving"])
def test_a_write_that_fails_leaves_the_file_before_it(
    result: ResultFile, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    result.open()
    before = result.path.read_bytes()
    write_text = Path.write_text

    def half(path: Path, text: str, *args: Any, **kwargs: Any) -> int:
        write_text(path, text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    def no_move(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    if at == "writing":
        monkeypatch.setattr(Path, "write_text", half)
    else:
        monkeypatch.setattr(Path, "replace", no_move)
    result.add(passed("repeat"))
    monkeypatch.undo()
    assert result.path.read_bytes() == before
    # A verdict that cannot be written down is not given.
    assert result.outcome is Outcome.USAGE
    assert result.error is not None
    assert "can no longer be written: No space left" in result.error[1]


def test_a_reader_never_sees_half_a_file(result: ResultFile) -> None:
    result.open()
    done = threading.Event()
    seen: list[Any] = []

    def reader() -> None:
        while not done.is_set():
            try:
                seen.append(len(json.loads(result.path.read_text())["known"]))
            except Exception as error:
                seen.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    for number in range(80):
        result.add_known(Known(f"defect {number}", "stale", {"n": number}))
    done.set()
    thread.join()
    assert len(seen) > 5
    assert [found for found in seen if isinstance(found, Exception)] == []
    assert seen == sorted(seen)


def test_nothing_is_left_beside_it(result: ResultFile) -> None:
    result.open()
    result.add(passed("repeat"))
    assert [path.name for path in result.folder.iterdir()] == ["result.json"]


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_folder_that_cannot_be_written_is_usage(tmp_path: Path, header: dict[str, Any], below: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"^--out .*file.* cannot be written: .+$") as caught:
        ResultFile(tmp_path / "file" / below, header, ("repeat",)).open()
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "in the way"


# --- what it says -----------------------------------------------------------------------------------------------------

OUTCOMES = st.sampled_from(Outcome)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.one_of(st.none(), OUTCOMES), min_size=1, max_size=4), st.one_of(st.none(), OUTCOMES))
def test_only_all_checks_passed_without_an_error_is_a_pass(found: list[Outcome | None], error: Outcome | None) -> None:
    result = ResultFile(Path(), {"model": {"name": "m"}}, tuple(map(str, range(len(found)))))
    result.verdicts = [Verdict(str(i), outcome, "m") for i, outcome in enumerate(found) if outcome]
    result.error = (error, "m") if error else None
    given_up = None in found
    expected = [o for o in found if o] + [Outcome.INFRA] * given_up + ([error] if error else [])
    assert result.outcome is worst(expected)
    assert (result.outcome is Outcome.PASS) == (set(found) == {Outcome.PASS} and error in (None, Outcome.PASS))
    assert result.as_dict()["complete"] == (not given_up and error is None)
    assert result.as_dict()["verdict"] == result.outcome.value


def test_no_check_at_all_is_not_a_pass() -> None:
    assert ResultFile(Path(), {}, ()).outcome is Outcome.NOT_EXERCISED


@pytest.mark.parametrize("first", [Outcome.DRIFT, Outcome.PASS, Outcome.NOT_EXERCISED])
def test_an_interrupted_run_keeps_what_it_proved(result: ResultFile, first: Outcome) -> None:
    result.open()
    result.add(passed("repeat") if first is Outcome.PASS else failed("repeat", first))
    result.fail(Outcome.INFRA, "interrupted")
    assert read(result)["verdict"] == ("drift" if first is Outcome.DRIFT else "infra")
    assert (read(result)["complete"], read(result)["error"]) == (False, "interrupted")


def test_an_error_after_all_checks_passed_is_no_pass(result: ResultFile) -> None:
    result.open()
    for check in result.expected:
        result.add(passed(check))
    result.fail(Outcome.INFRA, "a suite cannot be collected")
    assert (read(result)["verdict"], read(result)["complete"]) == ("infra", False)


def test_the_first_error_stands(result: ResultFile) -> None:
    result.open()
    result.fail(Outcome.INFRA, "the cause")
    result.fail(Outcome.USAGE, "a consequence")
    assert (read(result)["error"], read(result)["verdict"]) == ("the cause", "infra")


def test_a_second_verdict_of_a_check_is_refused(result: ResultFile) -> None:
    result.open()
    result.add(failed("repeat", Outcome.DRIFT))
    with pytest.raises(ValueError, match="check repeat has a verdict already"):
        result.add(passed("repeat"))
    assert [entry["verdict"] for entry in read(result)["checks"]] == ["drift"]


@pytest.mark.parametrize("status", ["fails", "stale"])
@pytest.mark.parametrize("strict", [False, True])
def test_known_issues_count_only_if_strict(result: ResultFile, status: str, strict: bool) -> None:
    result.strict = strict
    result.open()
    for check in result.expected:
        result.add(passed(check))
    assert read(result)["verdict"] == "pass"  # strict alone changes nothing
    result.add_known(Known("defect", status, {}))
    assert read(result)["verdict"] == ("drift" if strict else "pass")


def test_a_defect_that_shows_again_has_one_entry(result: ResultFile) -> None:
    result.open()
    for name, rows in (("one", 1), ("two", 1), ("one", 2)):
        result.add_known(Known(name, "fails", {"rows": rows}))
    assert [(k["name"], k["figures"]["rows"]) for k in read(result)["known"]] == [("one", 2), ("two", 1)]


def test_the_header_is_written_as_it_is(result: ResultFile, header: dict[str, Any]) -> None:
    result.seconds = 1.23456
    result.open()
    found = read(result)
    assert found["schema"] == SCHEMA == JSON_SCHEMA["properties"]["schema"]["const"] == JSON_SCHEMA["title"]
    assert found["seconds"] == 1.235
    assert {key: found[key] for key in header} == clean(header)
    assert found["plan"]["fault"]["name"] == "nan-row"
    assert sum(found["plan"]["chunks"]) == found["plan"]["tokens"] == len(found["plan"]["ids"])


# --- the result of `driftgate races` ----------------------------------------------------------------------------------


def of_races(folder: Path, *words: str) -> dict[str, Any]:
    main(["races", *words, "--out", str(folder)])
    return read(ResultFile(folder, {}, ()))


def test_races_of_a_kernel_are_a_result_without_target_and_plan(tmp_path: Path, header: dict[str, Any]) -> None:
    found = of_races(tmp_path, "merge", "--head-dim", "512", "--dtype", "float16", "--target", "metal,cuda", "--source")
    assert (found["verdict"], found["complete"], found["error"]) == ("drift", True, None)
    assert found["command"] == "driftgate races merge --target metal,cuda --head-dim 512 --dtype float16"
    assert not {"target", "plan"} & set(found)
    for check in found["checks"]:
        assert {row["target"] for row in check["rows"]} == {"metal", "cuda"}
    assert complaints({**found, **header}) == [], "with both it is a gate's"
    a_gates = {"target": header["target"]}, {"plan": header["plan"]}, {"command": header["command"]}, {"model": {}}
    for change in a_gates:
        assert complaints({**found, **change}) != [], change
    assert complaints({**found, "checks": [{**found["checks"][0], "rows": []}]}) != []
    row = {**found["checks"][0]["rows"][0], "verdict": "fine"}
    assert complaints({**found, "checks": [{**found["checks"][0], "rows": [row]}]}) != []


def test_races_that_were_refused_are_a_result(tmp_path: Path) -> None:
    found = of_races(tmp_path, "prefill_paged", "--head-dim", "512", "--dtype", "float32")
    assert (found["verdict"], found["complete"]) == ("usage", False)
    assert "is not built for metal" in found["error"]
    assert {check["verdict"] for check in found["checks"]} == {"not-exercised"}


def test_races_that_were_interrupted_are_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(jobs: Any) -> Iterator[Judged]:
        yield judge(jobs[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("driftgate.races.command.sweep", interrupted)
    found = of_races(tmp_path, "merge", "--head-dim", "128,512", "--dtype", "float16")
    assert (found["verdict"], found["complete"], found["error"]) == ("infra", False, "the run was interrupted")
    assert [row["head_dim"] for row in found["checks"][0]["rows"]] == [128]


# --- values that JSON has no word for ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (np.float64("nan"), "nan"),
        ({"a": [1, (math.nan, {"b": math.inf})]}, {"a": [1, ["nan", {"b": "inf"}]]}),
        ({3: True, "s": "nan"}, {"3": True, "s": "nan"}),
        ((x for x in (1, math.nan)), [1, "nan"]),
        ([None, 0.5, -0.0, "text"], [None, 0.5, -0.0, "text"]),
    ],
)
def test_what_json_cannot_say_is_put_into_words(value: Any, expected: Any) -> None:
    assert clean(value) == expected


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@settings(deadline=None, derandomize=True)
@given(JSON_VALUES)
def test_any_figures_become_strict_json_and_stay_what_they_are(value: Any) -> None:
    cleaned = clean(value)
    assert json.loads(json.dumps(cleaned, allow_nan=False)) == cleaned
    assert clean(cleaned) == cleaned


def test_figures_that_are_not_finite_reach_the_file_as_text(result: ResultFile) -> None:
    result.open()
    verdict = passed("reference")
    result.add(replace(verdict, figures={**verdict.figures, "max_abs_in_spread": math.inf, "kl_mean": math.nan}))
    figures = read(result)["checks"][0]["figures"]
    assert (figures["max_abs_in_spread"], figures["kl_mean"]) == ("inf", "nan")


# --- the schema -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(header: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A pass with everything in it."""
    result = ResultFile(tmp_path_factory.mktemp("whole"), header, ("repeat", "reference"))
    for check in result.expected:
        result.add(passed(check))
    result.add_known(Known("defect", "fails", {"nans": 3}))
    return read(result)


def _set(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *path, last = place.split("/")

    def change(found: Any) -> None:
        for part in path:
            found = found[int(part) if part.isdigit() else part]
        if value is ...:
            del found[last]
        else:
            found[last] = value

    return change


REQUIRED = {
    "repeat": ("runs", "blocks", "disagreeing", "merge_calls", "rows_merged", "bound95", "bound99"),
    "reference": ("max_abs", "noise_floor", "band", "kl_mean", "top1_agreement", "positions"),
}

WRONG: dict[str, Any] = {
    # A place of a good result, and what is wrong to find there (...: nothing).
    **{f"{key}": ... for key in JSON_SCHEMA["required"]},
    **{f"checks/0/{key}": ... for key in ("check", "model", "verdict", "message", "figures", "evidence")},
    **{f"checks/0/figures/{key}": ... for key in REQUIRED["repeat"]},
    **{f"checks/1/figures/{key}": ... for key in REQUIRED["reference"]},
    **{f"known/0/{key}": ... for key in ("name", "status", "figures")},
    **{room: ... for room in ("target", "plan")},
    **{f"{room}/name": ... for room in ("model", "target", "plan")},
    "extra": 1,
    "checks/0/extra": 1,
    "known/0/extra": 1,
    "schema": "driftgate-result/2",
    "verdict": "fail",
    "complete": False,
    "error": "something",
    "checks": [],
    "seconds": -1,
    "known/0/status": "passes",
    "checks/0/verdict": "drift",
    "checks/1/verdict": "infra",
    "checks/0/figures/disagreeing": 1,
    "checks/0/figures/runs": 0,
    "checks/0/figures/merge_calls": 0,
    "checks/0/figures/bound95": 1.5,
    "checks/1/figures/positions": 0,
    "checks/1/figures/merge_calls": 0,
    "checks/1/figures/max_abs": "nan",
    "checks/1/figures/noise_floor": 0,
    "checks/1/figures/top1_agreement": -0.1,
    "plan/chunks": [16, 0],
    "target/dtype": "bfloat16",
}


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(JSON_SCHEMA)


@pytest.mark.parametrize(("place", "value"), WRONG.items(), ids=lambda value: repr(value)[:40])
def test_the_schema_refuses_what_is_wrong(whole: dict[str, Any], place: str, value: Any) -> None:
    changed = json.loads(json.dumps(whole))
    assert complaints(changed) == []
    _set(place, value)(changed)
    assert complaints(changed) != []


def test_a_failing_check_without_its_reproduction_is_refused(whole: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(whole)) | {"verdict": "drift"}
    changed["checks"][0] |= {"verdict": "drift", "evidence": REPRODUCE}
    assert complaints(changed) == []
    changed["checks"][0]["evidence"] = {}
    assert complaints(changed) != []


def test_a_reference_that_drifted_may_lack_what_was_not_computed(whole: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(whole)) | {"verdict": "drift"}
    changed["checks"][1] |= {"verdict": "drift", "evidence": REPRODUCE}
    for name in ("max_abs", "kl_mean", "top1_agreement"):
        del changed["checks"][1]["figures"][name]
    assert complaints(changed) == []


def test_the_schema_and_the_program_know_the_same_words() -> None:
    assert set(JSON_SCHEMA["$defs"]["verdict"]["enum"]) == {outcome.value for outcome in Outcome}
    assert set(options.EVERY_CHECK) <= set(JSON_SCHEMA["$defs"])


def test_the_schema_is_shipped_with_the_package() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert any(SCHEMA_FILE in (ROOT / "driftgate").glob(pattern) for pattern in data["driftgate"])


# --- the document -----------------------------------------------------------------------------------------------------


def sections(document: str) -> Iterator[tuple[str, list[str]]]:
    """Heading and the names in the first column of the tables below it."""
    for part in re.split(r"^##+ ", document, flags=re.MULTILINE)[1:]:
        yield part.splitlines()[0].replace("`", ""), re.findall(r"^\| `([^`]+)` \|", part, flags=re.MULTILINE)


DEFS = JSON_SCHEMA["$defs"]


@pytest.mark.parametrize(
    ("heading", "properties"),
    [
        ("Top level", JSON_SCHEMA["properties"]),
        ("Verdicts and exit codes", DEFS["verdict"]["enum"]),
        *[(name, DEFS[name]["properties"]) for name in ("model", "target", "plan", "known")],
        ("versions", DEFS["versions"]["required"]),
        ("checks", DEFS["check"]["properties"]),
        ("Evidence", DEFS["evidence"]["properties"]),
        *[(f"Figures of {check}", DEFS[check]["properties"]) for check in options.EVERY_CHECK],
        ("Rows of isolate", DEFS["row"]["properties"]),
        *[(f"Rows of {check}", DEFS[f"{check}_row"]["properties"]) for check in options.KERNEL_CHECKS],
        ("reports", DEFS["report"]["properties"]),
    ],
)
def test_the_document_explains_every_field_of_the_schema_and_no_other(heading: str, properties: Any) -> None:
    documented = dict(sections(DOCUMENT))[heading]
    assert sorted(documented) == sorted(properties)


def test_the_document_has_the_real_exit_codes() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d) \|", DOCUMENT, flags=re.MULTILINE)
    assert {Outcome(word): int(code) for word, code in rows} == {o: o.exit_code for o in Outcome}


def test_the_example_of_the_document_is_a_result() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    found = json.loads(example)
    assert complaints(found) == []
    assert found["schema"] == SCHEMA
    assert set(found["checks"][0]["figures"]) == set(DEFS["repeat"]["properties"])
