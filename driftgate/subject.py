"""A model made ready to run: compiled, its parameters on disk, its corrections and planted fault decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftgate.job import Job
from driftgate.model import Model
from driftgate.target import TargetSpec


@dataclass(frozen=True)
class Subject:
    """What every observation runs on."""

    model: Model
    target: TargetSpec
    dtype: str
    library: Path
    params: Path
    capacity: int
    """Tokens that the cache holds."""
    swaps: Mapping[str, Mapping[str, str]]
    """Corrected kernels by name: the library and function of each."""
    fault: Mapping[str, Any] | None
    work: Path
    """Folder for what the processes leave behind."""
    timeout: float
    sys_path: tuple[str, ...] = ()

    def job(self, task: dict[str, Any], threads: int) -> Job:
        return Job(
            library=str(self.library),
            params=str(self.params),
            target=dataclasses.asdict(self.target),
            dtype=self.dtype,
            capacity=self.capacity,
            task=task,
            swaps={name: dict(swap) for name, swap in self.swaps.items()},
            fault=dict(self.fault) if self.fault is not None else None,
            threads=threads,
            sys_path=list(self.sys_path),
        )
