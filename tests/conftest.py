"""What the engine's own tests share: the command line as its users call it, and one library of the tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())

    def check(self, name: str) -> dict[str, Any]:
        (entry,) = [check for check in self.result["checks"] if check["check"] == name]
        return entry


@pytest.fixture
def run(tmp_path):
    """Run a command from another folder than the checkout: ``run("gate", "--runs", "3")``."""

    def command(
        *words: str, program: tuple[str, ...] = ("-m", "driftgate.cli"), cwd: Path = tmp_path, **env: str
    ) -> Ran:
        out = tmp_path / "out"
        done = subprocess.run(
            [sys.executable, *program, *words],
            cwd=cwd,
            env={**clean_environment(), "DRIFTGATE_OUT": str(out), "DRIFTGATE_TARGET": "llvm", **env},
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr, out)

    return command


def clean_environment() -> dict[str, str]:
    """The environment without what would change a gate's options, and with the checkout importable."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DRIFTGATE_") or name == "DRIFTGATE_CACHE"
    }
    return {**kept, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The subject of ``gemma4-tiny`` on the CPU, compiled once for all tests."""
    import models
    from driftgate.subject import ready
    from driftgate.target import resolve

    model = models.find("gemma4-tiny")
    work = tmp_path_factory.mktemp("tiny")
    return ready(model, resolve("llvm"), "float32", model.arrays(0), (), None, work, 300.0)
