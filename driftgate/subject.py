"""A model made ready to run: compiled, its parameters on disk, its corrections and planted fault decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from driftgate.job import Job
from driftgate.model import Arrays, Model
from driftgate.target import TargetSpec

SEEDS_APART = 1000
"""Processes that a seed has numbers for before they are the next seed's."""


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
    swaps: Mapping[str, Mapping[str, Any]]
    """What replaces kernels, by name; see ``job.Job``."""
    fault: Mapping[str, Any] | None
    work: Path
    """Folder for what the processes leave behind."""
    timeout: float
    whole_window: bool = False
    """Whether the cache has one window over all layers, see ``job.Job``."""
    plain: Path | None = None
    """Library of plain VM functions, once isolation has had it made."""
    exchange_trees: bool = False
    sync: str = "none"
    seeds: Iterator[int] = field(default_factory=count)
    """One for each process, so that no two draw the same numbers and the next run draws them again."""

    def job(self, task: dict[str, Any], threads: int, sequences: int = 1) -> Job:
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
            plain=str(self.plain) if self.plain else None,
            sequences=sequences,
            exchange_trees=self.exchange_trees,
            softcap=self.model.shape.softcap,
            sync=self.sync,
            seed=next(self.seeds),
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
    library: Path | None = None,
    seed: int = 0,
) -> Subject:
    """Compile ``model``, or find it compiled, build its corrections, and put its weights where processes read them.

    ``library`` is taken in place of compiling one.
    """
    from driftgate.compile import model_library

    subject = Subject(
        model=model,
        target=target,
        dtype=dtype,
        library=library or model_library(model, target, dtype),
        params=_params(model, dtype, arrays, work),
        capacity=model.shape.capacity,
        swaps={},
        fault=fault,
        work=work,
        timeout=timeout,
        seeds=count(seed * SEEDS_APART),
    )
    return corrected(subject, corrections)


def corrected(subject: Subject, corrections: Sequence[str]) -> Subject:
    """``subject`` with these corrections in place of those that it had."""
    from driftgate.kernels.corrections import TREE_ORDER, swaps

    made: dict[str, Any] = {}
    for name in corrections:
        made |= swaps(name, subject.model.shape, subject.target, subject.dtype)
    return dataclasses.replace(subject, swaps=made, exchange_trees=TREE_ORDER in corrections)


def rounded(arrays: Arrays, dtype: str) -> Arrays:
    """float32 arrays with the values that ``dtype`` has: what both sides of a comparison are then given."""
    return arrays if dtype == "float32" else {name: a.astype(dtype).astype(a.dtype) for name, a in arrays.items()}


def _params(model: Model, dtype: str, arrays: Arrays, work: Path) -> Path:
    if model.arrays_file is not None and dtype == "float32":
        return model.arrays_file()
    from safetensors.numpy import save_file

    work.mkdir(parents=True, exist_ok=True)
    path = work / f"{model.slug}.safetensors"
    save_file(dict(arrays), path)
    return path
