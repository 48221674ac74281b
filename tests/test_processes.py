"""Jobs in fresh processes: what they say is passed on, and how they end is never overlooked."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from driftgate import processes
from driftgate.job import Job, plan_from_json, plan_to_json
from driftgate.outcome import DriftgateError, InfraError, UsageError
from driftgate.plan import Plan
from driftgate.processes import run_jobs

PRELUDE = """
import json, os, signal, sys, time
def emit(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)
"""


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen]:
    """Makes every process run the ``script`` of its task in place of the worker; lists the processes."""
    started: list[subprocess.Popen] = []

    def popen(command: list[str], **details: Any) -> subprocess.Popen:
        assert command[:3] == [sys.executable, "-m", "driftgate.worker"]
        script = Job.read(Path(command[3])).task["script"]
        process = subprocess.Popen([sys.executable, "-c", PRELUDE + script], **details)
        started.append(process)
        return process

    double = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(processes, "subprocess", double)
    return started


def job(script: str) -> Job:
    rest: dict[str, Any] = dict.fromkeys(field.name for field in fields(Job))
    return Job(**rest | {"target": {"name": "llvm"}, "task": {"kind": "k", "script": script}, "sys_path": []})


def run(*scripts: str, timeout: float = 30, at_once: int = 4, stop_at: str = "") -> list[tuple[int, dict[str, Any]]]:
    heard: list[tuple[int, dict[str, Any]]] = []

    def on_event(number: int, message: dict[str, Any]) -> bool:
        heard.append((number, message))
        return message["event"] != stop_at

    run_jobs([job(script) for script in scripts], on_event, timeout, at_once)
    return heard


def all_ended(spawned: list[subprocess.Popen]) -> bool:
    return all(process.poll() is not None and not psutil.pid_exists(process.pid) for process in spawned)


def test_messages_arrive_in_order_with_the_number_of_their_job(spawned: list[subprocess.Popen]) -> None:
    script = "emit('run', k={}); emit('run', k={} + 1); emit('done')"
    heard = run(script.format(10, 10), script.format(20, 20))
    for number, k in ((0, 10), (1, 20)):
        assert [m for n, m in heard if n == number] == [
            {"event": "run", "k": k},
            {"event": "run", "k": k + 1},
            {"event": "done"},
        ]
    assert all_ended(spawned)


def test_no_job_is_no_process(spawned: list[subprocess.Popen]) -> None:
    assert run() == []
    assert spawned == []


@pytest.mark.parametrize("at_once", [1, 2])
def test_no_more_run_side_by_side_than_allowed(spawned: list[subprocess.Popen], at_once: int) -> None:
    script = "emit('from', t=time.monotonic()); time.sleep(0.2); emit('to', t=time.monotonic()); emit('done')"
    heard = run(*[script] * 4, at_once=at_once)
    edges = sorted((m["t"], 1 if m["event"] == "from" else -1) for _, m in heard if "t" in m)
    running = most = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    assert len(edges) == 8
    assert most <= at_once


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "^a process was ended by signal 11; its last words: it printed nothing$",
        ),
        ("emit('run'); os.kill(os.getpid(), signal.SIGKILL)", "^a process was ended by signal 9;"),
        ("emit('done'); os.kill(os.getpid(), signal.SIGABRT)", "^a process was ended by signal 6;"),
        (
            "print('pages of trace\\nout of memory', file=sys.stderr, flush=True); os.abort()",
            "ended by signal 6; its last words: out of memory$",
        ),
        ("emit('run')", "^a process ended early with code 0; its last words: it printed nothing$"),
        ("sys.exit(7)", "^a process ended early with code 7;"),
        ("raise RuntimeError('no library')", "ended early with code 1; its last words: RuntimeError: no library$"),
        ("sys.stderr.buffer.write(b'\\xff\\xfe broken'); sys.exit(1)", "its last words: .* broken$"),
    ],
)
def test_a_process_that_dies_is_infra_with_its_last_words(
    spawned: list[subprocess.Popen], script: str, message: str
) -> None:
    with pytest.raises(InfraError, match=message) as caught:
        run(script)
    assert "\n" not in str(caught.value)
    assert all_ended(spawned)


def test_one_crash_ends_the_others(spawned: list[subprocess.Popen]) -> None:
    began = time.monotonic()
    with pytest.raises(InfraError, match="signal 11"):
        run("emit('ready'); time.sleep(60)", "time.sleep(0.3); os.kill(os.getpid(), signal.SIGSEGV)")
    assert time.monotonic() - began < 20
    assert len(spawned) == 2
    assert all_ended(spawned)


@pytest.mark.parametrize("script", ["time.sleep(60)", "emit('ready'); time.sleep(60)"])
def test_silence_is_infra_and_the_process_is_ended(spawned: list[subprocess.Popen], script: str) -> None:
    began = time.monotonic()
    with pytest.raises(InfraError, match=r"^a process said nothing for 0\.5 s and was ended; --timeout sets how long"):
        run(script, timeout=0.5)
    assert time.monotonic() - began < 20
    assert all_ended(spawned)


def test_a_process_that_keeps_talking_may_take_longer_than_the_timeout(spawned: list[subprocess.Popen]) -> None:
    # Gaps of more than a second, after which the silence is measured.
    heard = run("for _ in range(2):\n emit('run'); time.sleep(1.2)\nemit('done')", timeout=2)
    assert len(heard) == 3


@pytest.mark.parametrize(
    ("outcome", "error"), [("usage", UsageError), ("infra", InfraError), ("drift", InfraError), ("pass", InfraError)]
)
def test_a_reported_error_is_raised_as_what_it_was(
    spawned: list[subprocess.Popen], outcome: str, error: type[DriftgateError]
) -> None:
    with pytest.raises(error, match=r"^weights of m: w holds 1 values$") as caught:
        run(f"emit('error', outcome={outcome!r}, message='weights of m: w holds 1 values'); time.sleep(60)")
    assert type(caught.value) is error
    assert all_ended(spawned)


def test_stopping_ends_every_process_and_starts_no_other(spawned: list[subprocess.Popen]) -> None:
    began = time.monotonic()
    waiting = "emit('ready'); time.sleep(60)"
    heard = run(waiting, "time.sleep(0.3); emit('run'); emit('run'); time.sleep(60)", waiting, at_once=2, stop_at="run")
    assert [m["event"] for _, m in heard if m["event"] == "run"] == ["run"]  # nothing is heard after the stop
    assert time.monotonic() - began < 20
    assert len(spawned) == 2
    assert all_ended(spawned)


def test_an_exception_of_the_listener_ends_every_process(spawned: list[subprocess.Popen]) -> None:
    def on_event(number: int, message: dict[str, Any]) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("emit('ready'); time.sleep(60)")] * 2, on_event, 30, 2)
    assert all_ended(spawned)


def test_text_that_a_library_prints_is_not_a_message(spawned: list[subprocess.Popen]) -> None:
    heard = run("print('Loading library...'); print('{half a'); print(); emit('done')")
    assert heard == [(0, {"event": "done"})]


@pytest.mark.parametrize("text", ["42", "null", "[]", "{}", '{"a": 1}', '"event"', '{"event": []}'])
def test_json_that_a_library_prints_is_not_a_message(spawned: list[subprocess.Popen], text: str) -> None:
    assert run(f"print({text!r}); emit('done')") == [(0, {"event": "done"})]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bytes_that_a_library_prints_are_not_a_message(spawned: list[subprocess.Popen]) -> None:
    assert run("os.write(1, b'\\xff\\n'); emit('done')", timeout=2) == [(0, {"event": "done"})]


def test_the_real_worker_reports_what_it_cannot_do() -> None:
    with pytest.raises(InfraError, match=r"^KeyError: 'k'$"):
        run_jobs([job("")], lambda number, message: True, 120, 1)


def test_a_job_and_its_plan_survive_the_way_to_the_process(tmp_path: Path) -> None:
    plan = Plan("default", (5, 6, 7), (2, 1))
    task = {"kind": "repeat", "plan": plan_to_json(plan)}
    swaps = {"merge": {"library": "m.so", "function": "f"}}
    sent = replace(job(""), task=task, swaps=swaps, fault={"entry": "a:b", "rate": None}, threads=2, dtype="float16")
    sent.write(tmp_path / "job.json")
    got = Job.read(tmp_path / "job.json")
    assert plan_from_json(got.task["plan"]) == plan
    assert {**vars(got), "task": None} == {**vars(sent), "task": None}
