"""Findings that are known upstream defects: the caller hands them in, and a row that shows no other is ``known``."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from blake3 import blake3

from driftgate.races.catalog import source_of


@dataclass(frozen=True)
class KnownFinding:
    """What one known issue says about one kernel."""

    issue: str
    kernel: str
    kinds: tuple[str, ...]
    """Kinds of reports, or what of a device's limits is exceeded."""
    buffer: str
    """Name of the buffer; empty for limits."""
    targets: tuple[str, ...]
    head_dims: tuple[int, ...]
    """Where it shows; empty for all."""
    digest: str
    """Of the source from which TVM builds the kernel (see `digest`): another source is another kernel."""

    def covers(self, kernel: str, target: str, head_dim: int, kind: str, buffer: str) -> bool:
        """Whether a finding of the catalog's ``kernel`` on ``target`` is this one."""
        return (
            (self.kernel, self.buffer) == (kernel, buffer)
            and kind in self.kinds
            and target in self.targets
            and (not self.head_dims or head_dim in self.head_dims)
            and digest(kernel) == self.digest
        )


def digest(kernel: str) -> str:
    """16 hex digits of the Python source from which the installed TVM builds ``kernel``.

    One digest covers every head_dim, dtype and target of a kernel, and any edit of it ends the match.
    """
    return blake3(inspect.getsource(source_of(kernel)).encode()).hexdigest()[:16]
