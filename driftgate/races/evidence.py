"""What an engine is given, and what it saw: conflicts between threads, faults of single accesses, and what was run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

READ_WRITE, WRITE_WRITE = "read-write", "write-write"
OUT_OF_BOUNDS_READ, OUT_OF_BOUNDS_WRITE = "out-of-bounds read", "out-of-bounds write"
UNINITIALISED, DIVERGENT = "uninitialised read", "divergent barrier"
GLOBAL_FENCE = ("metal", "opencl", "webgpu")
"""Targets whose language has a barrier of shared scope that is formally no fence of device memory."""


@dataclass(frozen=True)
class Setup:
    """One launch of a kernel."""

    arrays: Mapping[str, np.ndarray]
    """By the name of the kernel's buffer; one dimension, of the buffer's element dtype."""
    scalars: Mapping[str, int | float]
    """By the name of the kernel's parameter."""
    poisoned: frozenset[str] = frozenset()
    """Arrays whose content is undefined before the launch: reading it before writing it is a fault."""
    formal: bool = False
    """A barrier of shared scope then orders no access to device memory."""


@dataclass(frozen=True)
class Access:
    """One thread's access to a byte that another thread accesses as well."""

    site: int
    thread: int
    """Linear index in the block: x + X * (y + Y * z)."""
    block: int
    """Linear index in the grid, x fastest."""
    write: bool


@dataclass(frozen=True)
class Conflict:
    """Two accesses to the same bytes, one of them a write, that nothing orders. One entry for a pair of sites."""

    kind: str
    """``read-write`` or ``write-write``."""
    first: Access
    """The access at the site with the smaller number."""
    second: Access
    storage: str
    byte: int
    """Offset in the storage."""
    epoch: int
    """Barriers that the block had passed."""
    distance: int
    """Largest ``thread ^ thread`` of any such pair, 0 between blocks. Two threads lie in different warps of width W (a
    power of two) exactly if theirs is at least W: the pair is hidden at widths above the distance."""
    same_statement: bool
    """Some pair wrote in one instruction of one warp, whose lanes nothing orders at any width."""
    between_blocks: bool
    changing: bool
    """Some write left other bytes than it found: for write-write, other than those of the other thread."""
    count: int = 1


@dataclass(frozen=True)
class Fault:
    """An access, or a barrier, that is wrong by itself. One entry for a site."""

    kind: str
    site: int
    thread: int
    block: int
    index: int
    """Element that was accessed, -1 for a divergent barrier."""
    count: int = 1


@dataclass(frozen=True)
class Evidence:
    """One launch as an engine saw it."""

    conflicts: tuple[Conflict, ...]
    faults: tuple[Fault, ...]
    hits: np.ndarray
    """int64, by site: how often a thread executed it."""
    epochs: int
    """Largest number of barrier epochs of a block."""
    blocks: int
    """Blocks that ran."""
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The arrays after the launch."""
