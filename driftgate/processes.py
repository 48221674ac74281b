"""Run jobs in fresh processes and follow what they say."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from driftgate.job import Job
from driftgate.outcome import DriftgateError, InfraError, Outcome, UsageError

_LAST_BREATH = 10.0
"""Seconds between a process's last word and its end."""

OnEvent = Callable[[int, dict[str, Any]], bool]
"""``(job number, message)`` to whether all processes should go on."""


def run_jobs(jobs: Sequence[Job], on_event: OnEvent, timeout: float, at_once: int) -> None:
    """Run ``jobs``, ``at_once`` side by side; each message goes to ``on_event``, which may stop them all.

    Raises InfraError for a process that crashed, ended without a word or said nothing for ``timeout`` seconds,
    and the error that a process reported. Processes are ended before this returns, whichever way it returns.
    """
    with tempfile.TemporaryDirectory(prefix="driftgate-") as folder:
        waiting = list(enumerate(jobs))
        running: dict[int, _Process] = {}
        messages: queue.Queue[tuple[int, str | None]] = queue.Queue()
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number, job = waiting.pop(0)
                    running[number] = _Process(number, job, Path(folder), messages)
                if not _handle_next(running, messages, on_event):
                    return
                _end_silent(running, timeout)
        finally:
            for process in running.values():
                process.stop()


class _Process:
    def __init__(self, number: int, job: Job, folder: Path, messages: queue.Queue[tuple[int, str | None]]) -> None:
        path, self.stderr = folder / f"{number}.json", folder / f"{number}.err"
        job.write(path)
        with self.stderr.open("wb") as stderr:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "driftgate.worker", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                errors="replace",
                cwd=Path(__file__).parents[1],
            )
        self.last_heard = time.monotonic()
        self.finished = False
        threading.Thread(target=self._read, args=(number, messages), daemon=True).start()

    def _read(self, number: int, messages: queue.Queue[tuple[int, str | None]]) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            messages.put((number, line))
        messages.put((number, None))

    def stop(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def last_words(self) -> str:
        lines = self.stderr.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def _handle_next(
    running: dict[int, _Process], messages: queue.Queue[tuple[int, str | None]], on_event: OnEvent
) -> bool:
    try:
        number, line = messages.get(timeout=1.0)
    except queue.Empty:
        return True
    process = running[number]
    process.last_heard = time.monotonic()
    if line is None:
        _reap(process)
        del running[number]
        return True
    message = _message(line)
    if message is None:
        return True
    if message["event"] == "error":
        raise _reported(message)
    process.finished |= message["event"] == "done"
    return on_event(number, message)


def _message(line: str) -> dict[str, Any] | None:
    """The message in ``line``, or None: the worker sends what libraries print elsewhere, but a crash may print."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and isinstance(message.get("event"), str) else None


def _end_silent(running: dict[int, _Process], timeout: float) -> None:
    for process in running.values():
        if time.monotonic() - process.last_heard > timeout:
            raise InfraError(f"a process said nothing for {timeout:g} s and was ended; --timeout sets how long to wait")


def _reported(message: dict[str, Any]) -> DriftgateError:
    kind = UsageError if message["outcome"] == Outcome.USAGE.value else InfraError
    return kind(message["message"])


def _reap(process: _Process) -> None:
    try:
        # Its end of the pipe is closed, so it is about to end, unless it hangs on the way out.
        code = process.popen.wait(timeout=_LAST_BREATH)
    except subprocess.TimeoutExpired:
        raise InfraError(
            f"a process had no more to say but did not end within {_LAST_BREATH:g} s, and was ended"
        ) from None
    if code < 0:
        raise InfraError(f"a process was ended by signal {-code}; its last words: {process.last_words()}")
    if not process.finished:
        raise InfraError(f"a process ended early with code {code}; its last words: {process.last_words()}")
