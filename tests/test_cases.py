"""Recorded cases: all are there and well formed, each comes out as recorded, and none could pass without its defect."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driftgate import case as command
from driftgate.kernels.corrections import CORRECTIONS
from driftgate.options import EVERY_CHECK
from driftgate.outcome import Outcome, UsageError
from driftgate.target import resolve
from fixtures.bench import Bench
from fixtures.case_runs import RUNS
from fixtures.cases import BY_LETTER, FAILS, KNOWN, PASS, STALE, Case, cases, find, of_check
from fixtures.cases import run as run_case
from fixtures.known import issues
from tests.conftest import Ran, clean_environment

CASES = {case.name: case for case in cases()}
ISSUES = {issue.name: issue for issue in issues()}

REPORTED = {
    "merge-race-512": "CTS",
    "merge-one-writer": "C",
    "merge-alias": "C",
    "cpu-sliding-nan": "NB",
    "chunk-over-window": "KBH",
    "inline-rope-theta": "KH",
    "periodic-nan": "BN",
    "window-plus-tail": "KH",
    "one-pass-over-window": "BNK",
    "window-off-by-one": "BH",
    "qlen-not-klen": "H",
    "empty-merge": "NS",
    "lse-base": "SK",
    "lse-stride": "S",
    "stale-page": "XNP",
    "warm-vs-cold": "PR",
    "first-vs-later": "R",
    "threadgroup-memory": "L",
    "opencl-shared": "L",
    "dispatch-limit": "LH",
    "half-overflow": "ND",
    "tanh-gelu-overflow": "ND",
    "tree-oob": "C",
    "append-oob": "C",
    "gqa-groups": "HL",
}
"""What public reports have, and the checks that each belongs to. driftgate's own finds come on top."""
ALONE = {"OMP_NUM_THREADS": "1", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
"""On a busy machine the threads of HuggingFace wait for each other, and those of TVM spin on when a process is done."""


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """``driftgate case`` in a folder that is its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "driftgate.cli", "case", *words],
        cwd=folder,
        env={**clean_environment(), **ALONE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], folder: Path) -> Ran:
    out, err = process.communicate()
    return Ran(process.returncode, out, err, folder / "driftgate-out")


def ran(folder: Path, *words: str) -> Ran:
    return finished(started(folder, *words), folder)


@pytest.fixture(scope="module", autouse=True)
def all_started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Ran] | None]:
    """All cases, run beside the tests that come before those that want them; None where no test here does."""
    if not any("everything" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    folder = tmp_path_factory.mktemp("cases")
    process = started(folder, "--target", "llvm")
    try:
        yield lambda: finished(process, folder)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def everything(all_started: Callable[[], Ran]) -> Ran:
    return all_started()


def rows(done: Ran) -> dict[str, dict[str, Any]]:
    return {row["case"]: row for row in json.loads((done.folder / "cases.json").read_text())["cases"]}


# --- what is recorded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "letters"), REPORTED.items(), ids=REPORTED)
def test_every_reported_case_is_recorded_with_its_letters(name: str, letters: str) -> None:
    assert CASES[name].letters == letters


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_case_is_whole(case: Case) -> None:
    for text in (case.kind, case.origin, case.input, case.right):
        assert text.strip()
        assert "\n" not in text
    assert set(case.letters) <= set(BY_LETTER)
    assert len(set(case.letters)) == len(case.letters) > 0
    assert case.how in RUNS
    # What the file gives is what the runner takes.
    inspect.signature(RUNS[case.how]).bind(None, **case.run)
    assert case.run.get("shown_by", "chunk-window") in CORRECTIONS
    assert case.known is None or case.known in ISSUES
    assert not (case.planted and case.known), "a planted fault is no upstream defect"
    assert case.check in EVERY_CHECK


def test_every_case_is_run_by_the_suite_of_one_check() -> None:
    run_by = [case.name for check in EVERY_CHECK for case in of_check(check)]
    assert sorted(run_by) == sorted(CASES)
    suites = Path(__file__).parents[1] / "suites"
    for case in CASES.values():
        suite = {"isolate": "isolation"}.get(case.check, case.check)
        assert f'of_check("{case.check}")' in (suites / f"test_{suite}.py").read_text()


def test_the_case_of_a_known_issue_is_there_and_shows_that_issue() -> None:
    shown = {issue.case: issue for issue in ISSUES.values() if issue.case}
    assert len(shown) >= 5
    for name, issue in shown.items():
        assert CASES[name].known == issue.name
        assert CASES[name].run.get("shown_by") == issue.fix or "shown_by" not in CASES[name].run


def test_a_case_is_found_by_its_name_and_by_its_known_issue() -> None:
    assert [case.name for case in find("periodic-nan")] == ["periodic-nan"]
    assert [case.name for case in find("cpu-sliding-nan")] == ["cpu-sliding-nan", "cpu-sliding-rows"]
    assert [case.name for case in find("chunk-over-window")] == ["chunk-over-window", "one-pass-over-window"]
    assert [case.name for case in find("gpu-merge-race")] == ["merge-race-512"]
    with pytest.raises(UsageError, match=r"known issue 'yarn-ramp' has no case of its own: RoPE with YaRN"):
        find("yarn-ramp")


# --- some of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "statuses"),
    [
        (["empty-merge-both"], 1, {"empty-merge-both": "known"}),
        (["empty-merge", "--strict"], 0, {"empty-merge": "pass"}),
        (
            ["empty-merge", "merge-both-empty", "empty-merge"],
            1,
            {"empty-merge": "pass", "empty-merge-both": "known"},
        ),
    ],
    ids=["a known one", "a passing one, strictly", "a known issue, and a case twice"],
)
def test_a_case_that_is_named_runs_alone_and_counts(
    tmp_path: Path, words: list[str], code: int, statuses: dict[str, str]
) -> None:
    done = ran(tmp_path, *words, "--target", "llvm")
    assert done.code == code, done.out + done.err
    assert {name: row["status"] for name, row in rows(done).items()} == statuses


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], f"unknown case 'nonsense'; the cases are {', '.join(CASES)}"),
        (["empty-merge", "yarn-ramp"], "known issue 'yarn-ramp' has no case of its own"),
        (["empty-merge", "--target", "abacus"], "choose one of llvm, metal"),
        (["empty-merge", "--out", "file/out"], "--out file/out cannot be written: Not a directory"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_code_2(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "file").write_text("")
    done = ran(tmp_path, "--target", "llvm", *words)
    (line,) = done.err.strip().splitlines()
    assert (done.code, done.out) == (2, "")
    assert said in line
    assert not done.folder.exists()


def test_a_target_without_a_device_is_infra(tmp_path: Path) -> None:
    if sys.platform == "darwin":
        pytest.skip("this machine may have a Metal device")
    done = ran(tmp_path, "empty-merge", "--target", "metal")
    assert done.code == 3
    assert "target metal cannot run here" in done.err


def test_a_list_describes_every_case_and_runs_none(tmp_path: Path) -> None:
    done = ran(tmp_path, "--list")
    assert (done.code, done.err) == (0, "")
    assert not list(tmp_path.iterdir())
    for case in CASES.values():
        known = f", known: {case.known}" if case.known else ""
        assert f"{case.name} ({case.letters}{known}): {case.kind}\n" in done.out
        assert f"  input: {case.input}\n  right: {case.right}\n" in done.out


def test_a_list_of_one_is_that_one(tmp_path: Path) -> None:
    done = ran(tmp_path, "periodic-nan", "--list")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["periodic-nan", "from", "input:", "right:"]


# --- what counts ------------------------------------------------------------------------------------------------------

OUTCOMES = [
    (["pass"], False, False, Outcome.PASS),
    (["pass", "known", "stale"], False, False, Outcome.PASS),
    (["pass", "known"], False, True, Outcome.DRIFT),
    (["pass", "known"], True, False, Outcome.DRIFT),
    (["pass", "stale"], False, True, Outcome.DRIFT),
    (["pass", "stale"], True, False, Outcome.PASS),
    (["pass", "fails", "pass"], False, False, Outcome.DRIFT),
    (["pass", UsageError("broken")], False, False, Outcome.USAGE),
]


@pytest.mark.parametrize(("statuses", "named", "strict", "expected"), OUTCOMES)
def test_the_outcome_is_that_of_the_worst_case_and_every_case_is_written_down(
    tmp_path: Path, statuses: list[str | UsageError], named: bool, strict: bool, expected: Outcome
) -> None:
    made = [recorded(name=f"case-{i}") for i in range(len(statuses))]
    coming: Iterator[str | UsageError] = iter(statuses)

    def run_one(case: Case, bench: object) -> Any:
        status = next(coming)
        if isinstance(status, UsageError):
            raise status
        return row_of(case, status)

    said: list[str] = []
    out = tmp_path / "out"
    outcome = command.run(made, named, "llvm", out, strict, run_one, lambda spec, work: None, said.append)
    assert outcome is expected
    result = json.loads((out / "cases.json").read_text())
    assert result["verdict"] == expected.value
    assert [row["case"] for row in result["cases"]] == [case.name for case in made]
    assert [row["status"] for row in result["cases"]] == ["usage" if isinstance(s, UsageError) else s for s in statuses]
    assert len(said) == len(made) + 1


def row_of(case: Case, status: str) -> Any:
    from fixtures.cases import Row

    return Row(case.name, case.check, status, "as it was told", {"figure": float("nan")}, case.known)


# --- cases that are not as recorded -----------------------------------------------------------------------------------


def recorded(name: str = "made-here", letters: str = "K", how: str = "plans", **fields: Any) -> Case:
    return Case(name, "of this test", "nowhere", "as given", "as expected", letters, how, **fields)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    import torch

    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in ALONE.items():
            patch.setenv(key, value)
        torch.set_num_threads(1)
        yield Bench(resolve("llvm"), tmp_path_factory.mktemp("bench"))
        torch.set_num_threads(threads)


OVER = {"model": "gemma3-tiny", "chunks": ["33"], "stock": True}
FORKED = "a+20 b=a a+20"
RACY = {"kernels": ["merge"], "dtypes": ["float16"], "reports": "read-write", "buffers": ["S"]}
ONE_WRITER = CASES["merge-one-writer"]

WRONG = {
    "a plan that is wrong": (recorded(run=OVER), FAILS, "chunks 33: off by"),
    "a plan of a known defect": (recorded(run=OVER, known="chunk-over-window"), KNOWN, "chunks 33: off by"),
    "a plan of a known defect that is right": (
        recorded(run={**OVER, "chunks": ["10,10"]}, known="chunk-over-window"),
        STALE,
        "20 positions of 1",
    ),
    "a correction that does not help": (
        recorded(run={**OVER, "shown_by": "cpu-sliding-prefill"}, known="chunk-over-window"),
        FAILS,
        "cpu-sliding-prefill does not make it right",
    ),
    "a history that is wrong": (
        recorded(how="histories", run={"model": "gemma3-tiny", "scripts": ["a+20 a+5", FORKED]}),
        FAILS,
        f"1 of 2; {FORKED}: off by",
    ),
    "a history that is wrong without what is to blame": (
        recorded(
            how="histories", run={"model": "gemma3-tiny", "scripts": [FORKED], "plain": FORKED}, known="fork-window"
        ),
        FAILS,
        f"{FORKED} is wrong as well",
    ),
    "a fault that nobody catches": (
        recorded(how="fault", planted=True, run={"model": "gemma3-tiny", "name": "stale-page"}),
        FAILS,
        "off by",
    ),
    "a tree that is wrong": (
        recorded(how="tree", run={"model": "gemma4-tiny", "plan": "kernels", "shown_by": "cpu-tree-order"}),
        FAILS,
        "Expected 16 arguments",
    ),
    "a race": (recorded(how="races", run={**RACY, "head_dims": [512]}), FAILS, "read-write in 1 of 1 kernels"),
    "a race that is gone": (
        recorded(how="races", run={**RACY, "head_dims": [128]}, known="gpu-merge-race"),
        STALE,
        "read-write in 0 of 1 kernels",
    ),
    "a race that is not reported everywhere": (
        recorded(how="races", run={**RACY, "head_dims": [512, 128]}, known="gpu-merge-race"),
        FAILS,
        "1 of 2 not reported",
    ),
    "a race where there should be none": (
        recorded(how="races", run={**RACY, "head_dims": [512], "clean": [256]}, known="gpu-merge-race"),
        FAILS,
        "reported where there is none: merge 256 float16",
    ),
    "a candidate with another report": (
        recorded(how="candidate", planted=True, run={**ONE_WRITER.run, "labels": ["read-write, across warps"]}),
        FAILS,
        "write-write, across warps, same value",
    ),
    "a candidate that should have none": (
        recorded(how="candidate", planted=True, run={**ONE_WRITER.run, "labels": []}),
        FAILS,
        "write-write, across warps, same value",
    ),
    "a pair that is refused": (
        recorded(how="fits", run={"target": "metal", "fitting": ["512 float32"]}),
        FAILS,
        "512 float32 does not fit",
    ),
    "a pair that is not refused": (
        recorded(how="fits", run={"target": "metal", "refused": ["256 float32"]}, known="prefill-512-float32"),
        FAILS,
        "256 float32 is not refused",
    ),
    "threads that no kernel takes": (
        recorded(how="threads", run={**CASES["dispatch-limit"].run, "allowed": 1024}),
        PASS,
        "within the limit",
    ),
    "a merge of nothing": (
        recorded(how="empty-merge", run={"both": True, "lse_of_none": float("-inf")}),
        FAILS,
        "TVM's kernel: both empty",
    ),
    "a merge that is right": (
        recorded(how="empty-merge", run={"both": False, "lse_of_none": float("-inf")}, known="merge-both-empty"),
        STALE,
        "TVM's kernel: right",
    ),
    "rows that see nothing": (
        recorded(how="masked-rows", run={"calls": [[64, 16, 16, 16]]}),
        FAILS,
        "1 of 1 calls wrong",
    ),
    "rows that all see something": (
        recorded(how="masked-rows", run={"calls": [[64, 64, 40, 8]]}, known="cpu-sliding-nan"),
        STALE,
        "0 of 1 calls wrong",
    ),
    "scores below the floor": (
        recorded(how="large-scores", run={"head_dim": 256, "norm": 400.0, "dtype": "float32", "sign": -1.0}),
        FAILS,
        "prefill_ragged wrong in",
    ),
}


@pytest.mark.parametrize(("case", "status", "said"), WRONG.values(), ids=WRONG)
def test_a_case_that_is_not_as_recorded_does_not_pass(bench: Bench, case: Case, status: str, said: str) -> None:
    row = run_case(case, bench)
    assert row.status == status, row.message
    assert said in row.message


def test_an_issue_that_is_not_listed_excuses_nothing(bench: Bench) -> None:
    case = recorded(how="empty-merge", run={"both": True, "lse_of_none": float("-inf")}, known="merge-both-empty")
    assert run_case(case, bench).status == KNOWN
    assert run_case(replace(case, known="no-such-issue"), bench).status == FAILS


def test_what_breaks_on_the_way_is_neither_a_pass_nor_a_known_defect(bench: Bench) -> None:
    with pytest.raises(UsageError, match="no-model"):
        run_case(recorded(run={"model": "no-model", "chunks": ["10,10"]}, known="chunk-over-window"), bench)


def test_a_correction_of_another_target_is_not_tried(bench: Bench) -> None:
    row = run_case(recorded(run={**OVER, "shown_by": "merge-single-writer"}, known="chunk-over-window"), bench)
    assert row.status == KNOWN
    assert "corrected_passes" not in row.figures


# --- all of them ------------------------------------------------------------------------------------------------------


def test_all_cases_pass_or_are_known_and_the_command_passes(everything: Ran) -> None:
    assert everything.code == 0, everything.out + everything.err
    result = json.loads((everything.folder / "cases.json").read_text())
    assert (result["schema"], result["verdict"], result["target"]) == ("driftgate-cases/1", "pass", "llvm")
    assert result["versions"]["tvm"].startswith("0.27")
    assert [row["case"] for row in result["cases"]] == list(CASES)
    known = sum(case.known is not None for case in CASES.values())
    assert f"{len(CASES)} cases: {known} known, {len(CASES) - known} pass; verdict: pass" in everything.out


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_case_comes_out_as_it_is_recorded(everything: Ran, case: Case) -> None:
    row = rows(everything)[case.name]
    assert row["status"] == (KNOWN if case.known else PASS), row["message"]
    assert (row["check"], row["known"]) == (case.check, case.known)
    assert row["message"]
    assert row["figures"]
    (line,) = [line for line in everything.out.splitlines() if line.split()[:1] == [case.name]]
    assert line.split()[1:3] == [case.letters, row["status"]]


@pytest.mark.parametrize("name", [case.name for case in CASES.values() if "shown_by" in case.run])
def test_a_known_case_is_far_outside_the_band_and_inside_it_with_its_correction(everything: Ran, name: str) -> None:
    figures = rows(everything)[name]["figures"]
    if "band" in figures:
        assert figures["corrected_passes"] is True
        assert figures["corrected_max_abs"] <= figures["band"]
        # None: all that was wrong is NaN.
        assert figures["max_abs"] is None or figures["max_abs"] > 10 * figures["band"]
    else:
        assert figures["error"]
