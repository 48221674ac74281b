"""A model made ready to run: compiled, its parameters on disk, its corrections and planted fault decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftgate.job import Job
from driftgate.model import Arrays, Model
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
    whole_window: bool = False
    """Whether the cache has one window over all layers, see ``job.Job``."""

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
            whole_window=self.whole_window,
            # Faults live outside the engine, beside it in the checkout.
            sys_path=[str(Path(__file__).parents[1])],
        )


def ready(
    model: Model,
    target: TargetSpec,
    dtype: str,
    arrays: Arrays,
    corrections: Sequence[str],
    fault: Mapping[str, Any] | None,
    work: Path,
    timeout: float,
) -> Subject:
    """Compile ``model``, or find it compiled, build its corrections, and put its weights where processes read them."""
    from driftgate.compile import model_library
    from driftgate.kernels.corrections import swap

    return Subject(
        model=model,
        target=target,
        dtype=dtype,
        library=model_library(model, target, dtype),
        params=_params(model, dtype, arrays, work),
        capacity=model.shape.capacity,
        swaps=dict(swap(name, model.shape, target, dtype) for name in corrections),
        fault=fault,
        work=work,
        timeout=timeout,
    )


def rounded(arrays: Arrays, dtype: str) -> Arrays:
    """float32 arrays with the values that ``dtype`` has: what both sides of a comparison are then given."""
    return arrays if dtype == "float32" else {name: a.astype(dtype).astype(a.dtype) for name, a in arrays.items()}


def _params(model: Model, dtype: str, arrays: Arrays, work: Path) -> Path:
    if model.arrays_file is not None and dtype == "float32":
        return model.arrays_file()
    from safetensors.numpy import save_file

    work.mkdir(parents=True, exist_ok=True)
    path = work / f"{model.name}.safetensors"
    save_file(dict(arrays), path)
    return path
