"""What the instrumented kernel is called with: an array of int64 words: addresses, sizes, parameters, switches."""

from __future__ import annotations

from typing import Any

from driftgate.races.kernel import Storage, Var

Word = tuple[str, Storage | Var | str]
TABLE, HITS, CONTROL, STARTS, ARENA = "table", "hits", "control", "starts", "arena"
MUTANTS = ("mutant", "second mutant")
FORMAL = "formal"
NAMED = (TABLE, HITS, CONTROL, STARTS, ARENA, *MUTANTS, FORMAL)

NOW, DEVICE_EPOCH, START, LONGEST, BLOCK = range(5)
"""Words of the control array: epoch of shared memory, epoch of device memory, epoch at which the block began, most
epochs of any block, blocks begun."""


class Frame:
    """Assigns words to what the kernel needs."""

    def __init__(self) -> None:
        self.words: list[Word] = [("named", name) for name in NAMED]

    def add(self, kind: str, item: Storage | Var) -> int:
        """The word of ``item``: its ``data``, ``before`` or ``shadow`` address, its ``bytes``, or its ``value``."""
        self.words.append((kind, item))
        return len(self.words) - 1

    @staticmethod
    def named(name: str) -> int:
        return NAMED.index(name)


def constant(value: int) -> Any:
    """``value`` as an int64 of TIR."""
    from tvm import tirx

    return tirx.IntImm("int64", value)
