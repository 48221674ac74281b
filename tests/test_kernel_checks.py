"""Checks races, limits and codegen of a gate: verdicts from judged kernels, what is known, how a suite is asked for."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driftgate import options, run
from driftgate.checks import kernels
from driftgate.checks.verdict import Verdict
from driftgate.cli import main
from driftgate.gate import Gate
from driftgate.outcome import Outcome
from driftgate.races.catalog import KERNELS, Shape
from driftgate.races.judge import Job, Judged, judge
from driftgate.races.limits import Excess
from driftgate.races.rows import CODEGEN, LIMITS, RACES
from driftgate.target import resolve
from fixtures.gate import gate_for, preset
from tests.conftest import clean_environment

ROOT = Path(__file__).parents[1]
CHECKS: dict[str, Callable[[Gate], Verdict]] = {RACES: run.races, LIMITS: run.limits, CODEGEN: run.codegen}
EXCESS = Excess("bytes of shared memory", 40_000, 32_768, "the figure of target metal")


@pytest.fixture(scope="module")
def few() -> list[Judged]:
    """Two kernels of the model: merge, which has the upstream race, and one that is clean."""
    shape = Shape(512, 8, 1, "float16")
    metal = resolve("metal")
    return [judge(Job(name, shape, metal, metal.warp_width)) for name in ("merge", "rotary")]


@pytest.fixture
def opened(tmp_path: Path, few: list[Judged]) -> Callable[..., Gate]:
    def make(*checks: str, judged: list[Judged] = few, **flags: str) -> Gate:
        asked = {"target": "llvm", "out": str(tmp_path), "checks": ",".join(checks), **flags}
        gate = gate_for(options.resolve(asked, {}, {}, preset))
        gate.__dict__["kernels"] = judged
        return gate

    return make


def read(gate: Gate) -> dict[str, Any]:
    return dict(json.loads(gate.result.path.read_text()))


@pytest.mark.parametrize(("check", "names"), [(RACES, ["gpu-merge-race"]), (LIMITS, []), (CODEGEN, ["gpu-merge-race"])])
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_known_is_written_down_by_each_check_and_fails_none(
    opened: Callable[..., Gate], check: str, names: list[str], strict: bool
) -> None:
    gate = opened(check, **({"strict": "true"} if strict else {}))
    verdict = gate.record(CHECKS[check](gate))
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures["judged_for"] == "metal", "the gate's own target is no GPU"
    assert (verdict.figures["rows"], verdict.figures["known"]) == (2, len(names))
    gate.close()
    assert [known["name"] for known in read(gate)["known"]] == names
    assert gate.result.outcome is (Outcome.DRIFT if strict and names else Outcome.PASS)


def test_a_defect_in_several_checks_has_one_entry(opened: Callable[..., Gate]) -> None:
    gate = opened(*CHECKS)
    for check in CHECKS.values():
        gate.record(check(gate))
    assert read(gate)["known"] == [{"name": "gpu-merge-race", "status": "fails", "figures": {"rows": 2}}]


def test_a_known_limit_is_written_down(opened: Callable[..., Gate], few: list[Judged]) -> None:
    shape = replace(few[0].job.shape, dtype="float32")
    decode = replace(few[1], job=replace(few[1].job, kernel="decode", shape=shape), excesses=(EXCESS,))
    gate = opened(LIMITS, judged=[decode])
    assert gate.record(run.limits(gate)).outcome is Outcome.PASS
    assert [known["name"] for known in read(gate)["known"]] == ["decode-shared-memory"]


@pytest.mark.parametrize("check", [RACES, CODEGEN])
def test_what_is_not_known_is_drift_and_its_command_shows_it(
    opened: Callable[..., Gate], check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = opened(check)
    gate.known_kernels = tuple
    verdict = gate.record(CHECKS[check](gate))
    assert (verdict.outcome, verdict.figures["drift"]) == (Outcome.DRIFT, 1)
    assert read(gate)["known"] == []
    command = verdict.evidence["reproduce"]
    source = " --source" if check == CODEGEN else ""
    shape = "--head-dim 512 --heads 8 --kv-heads 1 --dtype float16"
    assert command == f"driftgate races merge --target metal {shape}{source}"
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == Outcome.DRIFT.exit_code
    (entry,) = (c for c in json.loads(Path("driftgate-out/result.json").read_text())["checks"] if c["check"] == check)
    assert [row["kernel"] for row in entry["rows"] if row["verdict"] != "pass"] == ["merge"]


def test_the_command_names_the_first_kernel_that_is_bad(few: list[Judged]) -> None:
    merge, rotary = few
    verdict = kernels.limits([merge, replace(rotary, excesses=(EXCESS,))], ())
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.evidence["reproduce"].startswith("driftgate races rotary --target metal ")
    assert kernels.limits(few, ()).outcome is Outcome.PASS


def test_no_kernel_at_all_is_not_exercised_and_the_gate_says_how_to_run_it(
    opened: Callable[..., Gate], few: list[Judged]
) -> None:
    gate = opened(RACES, judged=[Judged(few[0].job, refused="TVM does not build it")])
    verdict = gate.record(run.races(gate))
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert verdict.evidence["reproduce"].startswith("driftgate gate gemma4-tiny --target llvm")


@pytest.mark.parametrize(("target", "lowered_for", "warp"), [("llvm", "metal", 32), ("webgpu", "webgpu", 1)])
def test_all_kernels_of_the_models_shape_are_judged_once(
    opened: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch, target: str, lowered_for: str, warp: int
) -> None:
    asked: list[Job] = []

    def sweep(jobs: list[Job]) -> list[Judged]:
        asked.extend(jobs)
        return [Judged(job) for job in reversed(jobs)]

    monkeypatch.setattr("driftgate.races.sweep.sweep", sweep)
    gate = opened(RACES, LIMITS, target=target, dtype="float32" if target == "llvm" else "float16")
    del gate.__dict__["kernels"]
    assert gate.kernels == gate.kernels
    assert [job.kernel for job in asked] == [name for name in KERNELS if not name.endswith("_mla")]
    shape = gate.model.shape
    assert {(job.shape, job.spec.name, job.warp) for job in asked} == {
        (Shape(shape.head_dim, shape.heads, shape.kv_heads, "float16"), lowered_for, warp)
    }
    assert [judged.job for judged in gate.kernels] == asked


def test_a_gate_judges_kernels_only_where_it_is_asked_to() -> None:
    assert tuple(CHECKS) == options.KERNEL_CHECKS
    assert not set(options.KERNEL_CHECKS) & set(options.CHECKS)
    assert set(options.KERNEL_CHECKS) < set(options.EVERY_CHECK)


def test_naming_their_suites_alone_asks_for_them(tmp_path: Path) -> None:
    """Without a GPU and without compiling the model, which would take a minute and an empty cache."""
    suites = [str(ROOT / f"suites/test_{check}.py") for check in CHECKS]
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *suites, f"--driftgate-out={tmp_path}/out"]
    environment = clean_environment() | {"DRIFTGATE_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert sorted(check["check"] for check in found["checks"]) == sorted(CHECKS)
    assert {check["figures"]["judged_for"] for check in found["checks"]} == {"metal"}
    assert "gpu-merge-race" in {known["name"] for known in found["known"]}
    assert not list((tmp_path / "cache").rglob("*.so"))
