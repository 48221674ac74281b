"""Run a command and watch the memory of its whole process tree."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Measured:
    """A finished command."""

    code: int
    seconds: float
    peak: int
    """Largest sum over the tree, in bytes: proportional set sizes where the system tells them, else resident sizes."""
    out: str


def measure(command: Sequence[str], env: dict[str, str], every: float = 0.5) -> Measured:
    """Run ``command`` with ``env``, looking at its tree every ``every`` seconds."""
    start, peak = time.perf_counter(), 0
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, _size(root))
            time.sleep(every)
        assert process.stdout is not None
        out = process.stdout.read()
    return Measured(process.returncode, time.perf_counter() - start, peak, out)


def _size(root: psutil.Process) -> int:
    total = 0
    try:
        for process in [root, *root.children(recursive=True)]:
            memory = process.memory_full_info()
            # Shared libraries are mapped by every process of the tree, and count once.
            total += getattr(memory, "pss", 0) or memory.rss
    except psutil.Error:
        return 0
    return total
