"""`driftgate races` as its user sees it: exit codes, reports, files, and one line for what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import driftgate
from driftgate.cli import main
from driftgate.outcome import Outcome, UsageError
from driftgate.races import command
from driftgate.races import judge as judging
from driftgate.races.candidate import candidate
from driftgate.races.catalog import KERNELS as KERNEL_NAMES
from driftgate.races.catalog import Shape, build
from driftgate.races.fit import check_fit
from driftgate.races.inputs import setups
from driftgate.races.judge import Judged, judge
from driftgate.races.lowering import lower
from driftgate.races.request import request
from driftgate.target import TargetSpec
from fixtures.known_kernels import findings

SCHEMA = json.loads((Path(driftgate.__file__).parent / "report/schema.json").read_text())

CANDIDATES = """
from fixtures import merge_kernels
from driftgate.target import resolve

def corrected(heads, head_dim, dtype):
    return merge_kernels.corrected(heads, head_dim, dtype, resolve("metal"))

def unsynchronised(heads, head_dim, dtype):
    return merge_kernels.unsynchronised(heads, head_dim, dtype, resolve("metal"))

def unguarded(heads, head_dim, dtype):
    return merge_kernels.unguarded(heads, head_dim, dtype, resolve("metal"))

def as_shipped(heads, head_dim, dtype):
    return merge_kernels.as_shipped(heads, head_dim, dtype, resolve("metal"))

def asks(for_more):
    return None

def fails(heads):
    raise ValueError("no such number of heads")

def nothing():
    return 3

number = 3
"""

KERNELS = """
from tvm.script import tirx as T

def calls_out():
    @T.prim_func(s_tir=True)
    def kernel(v: T.handle, s: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        V = T.match_buffer(v, (64,), "float16")
        S = T.match_buffer(s, (64,), "float32")
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("b"):
                S[t] = T.call_extern("float32", "anything", V[t])
    return kernel

def wide():
    @T.prim_func(s_tir=True)
    def kernel(v: T.handle, s: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        V = T.match_buffer(v, (2048,), "float16")
        S = T.match_buffer(s, (2048,), "float32")
        for t in T.thread_binding(2048, thread="threadIdx.x"):
            with T.sblock("b"):
                S[t] = T.Cast("float32", V[t])
    return kernel

def serial():
    @T.prim_func(s_tir=True)
    def kernel(v: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        V = T.match_buffer(v, (64,), "float16")
        for t in range(64):
            V[t] = V[t] + T.float16(1)
    return kernel

def stranger():
    @T.prim_func(s_tir=True)
    def kernel(q: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        Q = T.match_buffer(q, (64,), "float16")
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("b"):
                Q[t] = Q[t] + T.float16(1)
    return kernel

def atomic():
    @T.prim_func(s_tir=True)
    def kernel(s: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        S = T.match_buffer(s, (64,), "float32")
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("b"):
                T.evaluate(T.call_intrin("float32", "tirx.atomic_add", T.address_of(S[t]), T.float32(1)))
    return kernel

def out_of_scope():
    from tvm import tirx

    V = tirx.decl_buffer((64,), "float16", name="V")
    store = tirx.BufferStore(V, tirx.const(1, "float16"), [tirx.Var("threadIdx.x", "int32")])
    return tirx.PrimFunc([tirx.Var("v", "handle")], store)

def wider():
    @T.prim_func(s_tir=True)
    def kernel(v: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        V = T.match_buffer(v, (3, 8, 64), "float32")
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("b"):
                V[0, 0, t] = V[0, 0, t] + T.float32(1)
    return kernel

def for_32():
    @T.prim_func(s_tir=True)
    def kernel(v: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        N = T.int32()
        V = T.match_buffer(v, (N, 8, 32), "float16")
        for b in T.thread_binding(N, thread="blockIdx.x"):
            for t in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("b"):
                    V[b, 0, t] = V[b, 0, t] + T.float16(1)
    return kernel

def for_128():
    @T.prim_func(s_tir=True)
    def kernel(v: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        V = T.match_buffer(v, (3, 8, 128), "float16")
        for t in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("b"):
                V[0, 0, t] = V[0, 0, t] + T.float16(1)
    return kernel

"""


RACY = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def kernel(v: T.handle):
    T.func_attr({"tirx.is_scheduled": True})
    V = T.match_buffer(v, (3, 8, 64), "float16")
    for t in T.thread_binding(64, thread="threadIdx.x"):
        with T.sblock("b"):
            V[0, 0, t] = V[0, 0, 63 - t]
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CANDIDATES)
    return path


def complaints(result: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(result)]


def races(out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and result of a command that gives a verdict; the result fits the schema."""
    code = main(["races", *words, "--out", str(out)])
    result = json.loads((out / "result.json").read_text())
    assert complaints(result) == []
    assert Outcome(result["verdict"]).exit_code == code
    return code, result


def rows(result: dict[str, Any], check: str = "races") -> list[dict[str, Any]]:
    return next(entry["rows"] for entry in result["checks"] if entry["check"] == check)


def test_the_merge_is_found_at_512_and_256_and_clean_at_128(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = races(out, "merge", "--head-dim", "512,256,128", "--dtype", "float16", "--explain")
    assert code == 1
    assert [(row["head_dim"], row["verdict"]) for row in rows(result)] == [
        (512, "known"),
        (256, "known"),
        (128, "pass"),
    ]
    reports = [[r for r in row["reports"] if r["grade"] == "defect"] for row in rows(result)]
    assert [len(found) for found in reports] == [1, 1, 0], "one report a defect"
    assert {k["name"] for k in result["known"]} == {"gpu-merge-race"}
    said = capsys.readouterr().out
    for words in (
        "merge: read-write, across warps, value-changing of S, at any warp width",
        "hidden at width 32",
        "_decode_kernels.py:",
        "a barrier before",
        "one thread alone should store",
        "concerned: metal 512 float16; metal 256 float16",
        "columns 128-511",
        "columns 0-383",
        "reached: loads 4/4, stores 2/2",
    ):
        assert words in said


@pytest.mark.parametrize(("warp", "code"), [("32", 0), ("1", 1)])
def test_128_is_clean_with_warps_of_32_and_nowhere_else(out: Path, warp: str, code: int) -> None:
    assert races(out, "merge", "--head-dim", "128", "--dtype", "float16", "--warp", warp)[0] == code


def test_targets_without_warps_are_judged_thread_by_thread(out: Path) -> None:
    code, result = races(out, "merge", "--head-dim", "64", "--dtype", "float16", "--target", "opencl,metal")
    assert code == 1
    assert [(r["target"], r["warp"], r["verdict"]) for r in rows(result)] == [
        ("opencl", 1, "known"),
        ("metal", 32, "pass"),
    ]


def test_both_engines_can_be_asked(out: Path) -> None:
    words = ("merge", "--head-dim", "512", "--dtype", "float16")
    (fast,), (slow,) = (rows(races(out, *words, "--engine", engine)[1]) for engine in ("fast", "reference"))
    assert (fast["class"], fast["sites"]) == (slow["class"], slow["sites"])
    assert (fast["engine"], slow["engine"]) == ("fast", "reference")


@pytest.mark.parametrize(
    ("name", "code", "kind"),
    [
        ("corrected", 0, ""),
        ("unsynchronised", 1, "read-write"),
        ("as_shipped", 1, "read-write"),
        ("unguarded", 0, ""),
    ],
)
def test_a_kernel_of_the_users_own(out: Path, file: Path, name: str, code: int, kind: str) -> None:
    words = ("merge", "--head-dim", "512", "--dtype", "float16", "--candidate", f"{file}:{name}")
    found, result = races(out, *words)
    (row,) = rows(result)
    assert (found, row["known"]) == (code, []), "no known issue covers a kernel of one's own"
    assert row["class"].startswith(kind) and bool(row["class"]) == bool(kind)


def test_the_corrected_merge_leans_on_the_practice_of_fences(out: Path, file: Path) -> None:
    words = ("merge", "--head-dim", "512", "--dtype", "float16", "--candidate", f"{file}:corrected")
    assert rows(races(out, *words)[1])[0]["fence_notes"] == ["S"]
    code, result = races(out, *words, "--fence", "formal")
    assert (code, rows(result)[0]["buffer"]) == (1, "S")
    code, result = races(out, *words, "--fence", "formal", "--target", "cuda")
    assert code == 1, "the formal policy is the user's, whatever the target"


def test_what_the_solver_says_is_run(out: Path) -> None:
    _, result = races(out, "merge", "--head-dim", "512,128", "--dtype", "float16", "--prove")
    racy, clean = (row["proof"] for row in rows(result))
    assert (racy["verdict"], racy["confirmed"]) == ("witness", True)
    assert (clean["verdict"], clean["confirmed"]) == ("proved", None)
    assert clean["assumptions"]


def test_the_generated_source_is_judged_where_asked(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = races(out, "merge", "--head-dim", "128", "--dtype", "float16", "--source")
    assert (code, [row["verdict"] for row in rows(result, "codegen")]) == (1, ["known"])
    assert "no barrier between line" in capsys.readouterr().out


def test_findings_as_sarif_point_into_the_source(out: Path, file: Path) -> None:
    races(out, "merge", "append", "--head-dim", "512", "--dtype", "float16")
    found = json.loads((out / "races.sarif").read_text())
    (run,) = found["runs"]
    assert found["version"] == "2.1.0"
    assert {result["ruleId"] for result in run["results"]} == {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {"read-write", "out-of-bounds-read"}
    for result in run["results"]:
        for place in (*result["locations"], *result["relatedLocations"]):
            physical = place["physicalLocation"]
            assert physical["region"]["startLine"] > 0
            assert not physical["artifactLocation"]["uri"].startswith("/")
    assert (out / "kernels/merge-metal-512-float16.py").read_text().count("def main_kernel") == 1


def uris(out: Path) -> set[str]:
    (run,) = json.loads((out / "races.sarif").read_text())["runs"]
    places = [p for result in run["results"] for p in (*result["locations"], *result["relatedLocations"])]
    return {place["physicalLocation"]["artifactLocation"]["uri"] for place in places}


@pytest.mark.parametrize(("at", "uri"), [(".", "kernels/own.py"), ("elsewhere", "own.py")])
def test_findings_in_a_kernel_of_ones_own_point_into_its_file(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, uri: str
) -> None:
    for folder in ("kernels", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "kernels/own.py").write_text(RACY)
    monkeypatch.chdir(tmp_path / at)
    words = ("merge", "--head-dim", "64", "--dtype", "float16", "--candidate", f"{tmp_path}/kernels/own.py:kernel")
    assert races(out, *words)[0] == 1
    assert uris(out) == {uri}


def test_findings_in_a_file_that_a_candidate_imports_point_there(out: Path, file: Path) -> None:
    races(out, "merge", "--head-dim", "512", "--dtype", "float16", "--candidate", f"{file}:as_shipped")
    assert uris(out) == {"merge_kernels.py"}


def sweep_of(out: Path, *kernels: str, **options: Any) -> Outcome:
    """A sweep over all kernels, cut down to ``kernels``."""
    asked = request([], head_dim="512", dtype="float16", out=str(out), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("driftgate.races.request.KERNELS", kernels)
        return command.run(asked, findings(), line=lambda text: None)


def test_a_sweep_passes_with_what_is_known_and_fails_with_anything_else(out: Path) -> None:
    assert sweep_of(out, "merge", "append", "rotary") is Outcome.PASS
    assert sweep_of(out, "merge", "rotary", strict=True) is Outcome.DRIFT
    asked = request([], head_dim="512", dtype="float16", out=str(out))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("driftgate.races.request.KERNELS", ("merge", "rotary"))
        assert command.run(asked, (), line=lambda text: None) is Outcome.DRIFT


def test_a_sweep_with_the_generated_source_knows_its_defects_too(out: Path) -> None:
    asked = {"head_dim": "128", "dtype": "float16", "source": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("driftgate.races.request.KERNELS", ("merge",))
        patch.setattr(command, "KERNELS", ("merge",))
        for strict, outcome in ((False, Outcome.PASS), (True, Outcome.DRIFT)):
            sweep = request([], out=str(out), strict=strict, **asked)
            assert command.run(sweep, findings(), line=lambda text: None) is outcome
            known = json.loads((out / "result.json").read_text())["known"]
            assert known == [{"name": "gpu-merge-race", "status": "fails", "figures": {"rows": 1}}]


def test_a_sweep_does_not_pass_over_a_kernel_that_it_cannot_read(
    out: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer TVM may have nodes that are not supported: that is no kernel which TVM does not build."""
    file.write_text(KERNELS)
    build = judging.build

    def newer(name: str, shape: Shape, spec: TargetSpec) -> Any:
        return candidate(f"{file}:atomic", shape, spec) if name == "rotary" else build(name, shape, spec)

    monkeypatch.setattr(judging, "build", newer)
    with pytest.raises(UsageError, match="kernel rotary: call atomic_add is not supported by the race detector"):
        sweep_of(out, "copy_page", "rotary")
    found = json.loads((out / "result.json").read_text())
    assert complaints(found) == []
    assert (found["verdict"], len(rows(found))) == ("usage", 1), "the row before it is kept"


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_every_kernel_of_the_cache_fits_its_own_inputs(name: str) -> None:
    (job,) = request([name], head_dim="64", kv_heads="2", dtype="float16").jobs
    function = build(name, job.shape, job.spec)
    for launch in lower(name, function, job.spec).launches:
        check_fit(name, job.shape, job.spec, function, setups(name, job.shape, launch.kernel)[0])


def test_a_size_without_all_its_numbers_has_to_be_a_multiple() -> None:
    (job,) = request(["copy_page"], head_dim="64", dtype="float16").jobs
    wide = build("copy_page", replace(job.shape, head_dim=80), job.spec)
    (launch,) = lower("copy_page", wide, job.spec).launches
    with pytest.raises(UsageError, match=r"pages of shape \(num_pages, 2, 1, 16, 80\) does not take the 6144 elements"):
        check_fit("copy_page", job.shape, job.spec, wide, setups("copy_page", job.shape, launch.kernel)[0])


def test_what_tvm_does_not_build_is_counted_and_no_pass(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = races(out, "prefill_paged", "--head-dim", "512,64", "--dtype", "float32")
    assert code == 0
    assert [row["head_dim"] for row in rows(result)] == [64]
    assert result["checks"][0]["figures"]["not_built"] == 1
    assert "not built: kernel prefill_paged at head_dim 512" in capsys.readouterr().out


def test_rows_are_on_disk_before_the_end(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(jobs: Any) -> Any:
        for job in jobs:
            if seen or (out / "result.json").exists():
                found = json.loads((out / "result.json").read_text())
                assert found["verdict"] != "pass"
                seen.append(sum(len(check["rows"]) for check in found["checks"] if check["check"] == "races"))
            yield judge(job)

    monkeypatch.setattr(command, "sweep", watched)
    assert races(out, "rotary", "--head-dim", "512,256,64", "--dtype", "float16")[0] == 0
    assert seen == [0, 1, 2]


def test_an_interrupted_sweep_keeps_its_rows_and_is_no_pass(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(jobs: Any) -> Any:
        yield judge(jobs[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "sweep", interrupted)
    assert main(["races", "rotary", "--head-dim", "512,256", "--dtype", "float16", "--out", str(out)]) == 130
    found = json.loads((out / "result.json").read_text())
    assert complaints(found) == []
    assert (found["verdict"], len(rows(found))) == ("infra", 1)


# What cannot be: one line, and no older result that says pass


BAD = {
    "an unknown kernel": (["nope"], "unknown kernel 'nope': there are merge, decode"),
    "a CPU": (["merge", "--target", "llvm"], "no threads to race on a CPU target; use metal, cuda"),
    "an unknown target": (["merge", "--target", "vulkan"], "unknown target 'vulkan'"),
    "a warp that is no power of two": (["merge", "--warp", "33"], "--warp 33: a warp has a power of two"),
    "a warp of nothing": (["merge", "--warp", "0"], "--warp is 0, but must be at least 1"),
    "a head_dim that is no number": (["merge", "--head-dim", "big"], "--head-dim takes a whole number, not 'big'"),
    "no head_dim": (["merge", "--head-dim", ","], "--head-dim takes a whole number"),
    "heads that do not divide": (["decode", "--heads", "3", "--kv-heads", "2"], "KV heads must divide query heads"),
    "a dtype": (["merge", "--dtype", "bfloat16"], "--dtype 'bfloat16': there are float32, float16"),
    "an engine": (["merge", "--engine", "slow"], "--engine 'slow': there are fast, reference"),
    "a fence": (["merge", "--fence", "strict"], "--fence 'strict': there are practical, formal"),
    "a candidate for nothing": (["--candidate", "a.py:b"], "name one of merge, decode"),
    "a candidate without a name": (["merge", "--head-dim", "64", "--candidate", "mine.py"], "write FILE.py:function"),
    "a candidate that is not there": (["merge", "--candidate", "nope.py:f"], "there is no file nope.py"),
    "a shape that TVM refuses": (
        ["prefill_paged", "--head-dim", "512", "--dtype", "float32"],
        "kernel prefill_paged at head_dim 512, 8 heads, 1 KV heads, float32 is not built for metal",
    ),
    "a head_dim too wide": (["merge", "--head-dim", "8192", "--dtype", "float16"], "kernel merge at head_dim 8192"),
}


@pytest.mark.parametrize(("words", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_is_one_line(
    out: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out.parent)
    out.mkdir()
    (out / "result.json").write_text('{"verdict": "pass"}')
    assert main(["races", *words, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1 and said.startswith("driftgate: ")
    assert not (out / "result.json").exists() or json.loads((out / "result.json").read_text())["verdict"] == "usage"


CANDIDATE_ERRORS = {
    "absent": "has no absent; it has as_shipped, asks, corrected",
    "asks": "asks for for_more; it is given heads",
    "fails": "fails: ValueError: no such number of heads",
    "nothing": "returns int, not a PrimFunc",
    "number": "number is int, neither a PrimFunc nor a function",
}


@pytest.mark.parametrize(("name", "message"), CANDIDATE_ERRORS.items(), ids=CANDIDATE_ERRORS)
def test_a_candidate_that_is_none(
    out: Path, file: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["races", "merge", "--head-dim", "512", "--candidate", f"{file}:{name}", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_candidate_that_does_not_import(
    out: Path, file: Path, text: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert main(["races", "merge", "--head-dim", "64", "--candidate", f"{file}:f", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"does not import: {error}" in said and said.count("\n") == 1


KERNEL_ERRORS = {
    "calls_out": "kernel merge: call call_extern is not supported by the race detector",
    "wide": "kernel merge",
    "serial": "kernel merge",
    "stranger": "no input is known for its buffer Q; there are S, S_other, V, V_other",
    "atomic": "kernel merge: call atomic_add is not supported by the race detector",
    "out_of_scope": "kernel merge does not lower for metal: ValueError: Invalid use of undefined variable threadIdx.x",
    "wider": "kernel merge: its buffer V is float32, but has to be float16",
    "for_32": "kernel merge: its buffer V of shape (N, 8, 32) does not take the 1536 elements of the input",
    "for_128": "kernel merge: its buffer V of shape (3, 8, 128) does not take the 1536 elements of the input",
}


@pytest.mark.parametrize(("name", "message"), KERNEL_ERRORS.items(), ids=KERNEL_ERRORS)
def test_a_candidate_that_cannot_be_judged(
    out: Path, file: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(KERNELS)
    words = ["races", "merge", "--head-dim", "64", "--dtype", "float16", "--candidate", f"{file}:{name}"]
    assert main([*words, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    if name == "wide":
        assert "2048" in said and "1024" in said


def test_an_older_pass_does_not_stand_in_for_what_was_refused(out: Path) -> None:
    assert races(out, "rotary", "--head-dim", "64", "--dtype", "float16")[0] == 0
    words = ["prefill_paged", "--head-dim", "512", "--dtype", "float32"]
    assert main(["races", *words, "--out", str(out)]) == 2
    found = json.loads((out / "result.json").read_text())
    assert complaints(found) == []
    assert found["verdict"] == "usage"


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["races", "rotary", "--out", str(tmp_path / "taken")]) == 2
    said = capsys.readouterr().err
    assert "taken cannot be written" in said and said.count("\n") == 1


def test_a_request_can_be_asked_for_again() -> None:
    asked = request(["merge"], head_dim="256", warp="64", fence="formal")
    assert asked.command == "driftgate races merge --head-dim 256 --warp 64 --fence formal"
    assert len(asked.jobs) == 2
    assert {job.warp for job in asked.jobs} == {64}


def test_the_kernel_of_a_row_is_the_one_that_was_judged(out: Path) -> None:
    (job,) = request(["merge"], head_dim="512", dtype="float16", out=str(out)).jobs
    judged = judge(job)
    assert isinstance(judged, Judged)
    assert judged.found and not replace(judged, reports=()).found
    with pytest.raises(UsageError):
        judge(replace(job, candidate="nope.py:f"))


def test_a_kernel_that_stores_nothing_is_no_pass(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = races(out, "merge", "--head-dim", "3", "--dtype", "float16")
    assert (code, [row["verdict"] for row in rows(result)]) == (4, ["not-exercised"])
    said = capsys.readouterr().out
    assert "1 in which no store ran" in said and "clean\n" not in said


@pytest.mark.parametrize(
    "text", ["def f():\n    raise GeneratorExit", "f = max", "class E(Exception):\n    def __str__(self): 1/0\nraise E"]
)
def test_what_a_candidate_raises_is_its_own(
    out: Path, file: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    words = ["races", "merge", "--head-dim", "512", "--dtype", "float16", "--candidate", f"{file}:f"]
    assert main([*words, "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_findings_that_cannot_be_written_are_no_pass(out: Path) -> None:
    (out / "races.sarif").mkdir(parents=True)
    assert main(["races", "rotary", "--head-dim", "64", "--dtype", "float16", "--out", str(out)]) == 2
