"""Run a command and watch the memory of its whole process tree."""

from __future__ import annotations

import subprocess
import tempfile
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
    # A file, not a pipe: nobody reads while the command runs, and a full pipe would stop it.
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        root = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, _size(root))
            time.sleep(every)
        output.seek(0)
        out = output.read()
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
