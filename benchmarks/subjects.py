"""Subjects and sessions of the presets, in this process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import models
from driftgate.runtime import Session, open_session
from driftgate.seam import Seam
from driftgate.subject import Subject, ready
from driftgate.target import resolve


def subject(name: str) -> Subject:
    """The preset ``name`` on the CPU, compiled or found compiled."""
    model = models.find(name)
    work = Path(tempfile.mkdtemp(prefix="driftgate-bench-"))
    return ready(model, resolve("llvm"), "float32", model.arrays(0), (), None, work, 600.0)


def session(made: Subject, seam: Seam | None = None) -> Session:
    import tvm

    device: Any = tvm.cpu()
    return open_session(made.library, made.params, device, made.dtype, made.capacity, seam or Seam())
