"""What a fresh process is asked to do, and what it answers: the messages between ``observe`` and ``worker``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from driftgate.plan import Plan

NO_RUN = -1
"""Run number of a prefill that is not one of the N identical ones."""


@dataclass(frozen=True)
class Job:
    """One process: what it opens, and the one task that it performs there."""

    library: str
    params: str
    target: dict[str, Any]
    dtype: str
    capacity: int
    task: dict[str, Any]
    """``kind`` is a key of ``worker.tasks()``, the rest its arguments."""
    swaps: dict[str, dict[str, Any]]
    """Kernel or ``vm:NAME`` to what replaces it: see ``kernels.replacements`` and, for a VM function, ``plain``."""
    plain: str | None
    """A library of plain VM functions under the same names (see ``kernels.vm_calls``), where there is one."""
    fault: dict[str, Any] | None
    """``entry`` (``module:function``) and its arguments: the engine knows no fault by name."""
    threads: int
    whole_window: bool
    """Create the cache with ``support_sliding_window = 1``: a window over all layers, RoPE applied inline."""
    sequences: int
    """That the cache is made for."""
    exchange_trees: bool
    """See ``seam.Seam``."""
    softcap: float | None
    """Cap of the attention scores, if the model has one."""
    sync: str
    """``none``; ``call``: wait for the device after every VM call; ``kernel``: around every cache kernel as well."""
    seed: int
    """Of C's rand in this process."""
    sys_path: list[str]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        return cls(**json.loads(path.read_text()))


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """``plan`` as JSON takes it."""
    return asdict(plan)


def plan_from_json(data: dict[str, Any]) -> Plan:
    """The plan that ``plan_to_json`` made ``data`` of."""
    return Plan(data["name"], tuple(data["ids"]), tuple(data["chunks"]), tuple(data.get("ways", ())))
