"""What the launches reached: nothing is said of a statement that never ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftgate.races.evidence import Evidence
from driftgate.races.kernel import LOCAL, For, Kernel, Stmt, While, has_barrier, statements


@dataclass(frozen=True)
class Coverage:
    """Over all launches of a kernel."""

    loads: tuple[int, int]
    """Loads from memory that threads share: (reached, all)."""
    stores: tuple[int, int]
    barriers: tuple[int, int]
    epochs: int
    """Most barrier epochs of a block."""
    blocks: int
    tiles: int
    """Rounds of the outermost loop with a barrier, over all blocks; as many as blocks where there is none."""
    unreached: tuple[int, ...]
    """Sites of stores that never ran."""

    @property
    def text(self) -> str:
        """One line."""
        parts = [
            f"{name} {have}/{of}"
            for name, (have, of) in (("loads", self.loads), ("stores", self.stores), ("barriers", self.barriers))
            if of
        ]
        return ", ".join([*parts, f"{self.epochs} epochs", f"{self.blocks} blocks", f"{self.tiles} tiles"])


def coverage(kernel: Kernel, evidences: Sequence[Evidence]) -> Coverage:
    """Add up what ``evidences``, all of ``kernel``, reached."""
    hits = sum((e.hits for e in evidences[1:]), start=evidences[0].hits)

    def reached(kind: str) -> tuple[int, int]:
        numbers = [s.number for s in kernel.sites if s.kind == kind and (s.buffer is None or s.buffer.scope != LOCAL)]
        return sum(bool(hits[n]) for n in numbers), len(numbers)

    unreached = [store.site for store in kernel.stores if not hits[store.site]]
    blocks = sum(e.blocks for e in evidences)
    first = _first_barrier_of_a_loop(kernel.body)
    return Coverage(
        reached("load"),
        reached("store"),
        reached("barrier"),
        max(e.epochs for e in evidences),
        blocks,
        blocks if first is None else int(hits[first]),
        tuple(sorted(unreached)),
    )


def _first_barrier_of_a_loop(body: Stmt) -> int | None:
    for stmt in statements(body):
        if isinstance(stmt, For | While) and has_barrier(stmt):
            return next(s.site for s in statements(stmt) if type(s).__name__ == "Barrier")  # type: ignore[attr-defined]
    return None
