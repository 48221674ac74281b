"""The fast engine: a kernel with its shadow memory, compiled for the CPU by TVM, and what it saw."""

from __future__ import annotations

from typing import Any

import numpy as np

from driftgate.outcome import InfraError, UsageError
from driftgate.races.evidence import (
    DIVERGENT,
    OUT_OF_BOUNDS_READ,
    OUT_OF_BOUNDS_WRITE,
    READ_WRITE,
    UNINITIALISED,
    WRITE_WRITE,
    Access,
    Conflict,
    Evidence,
    Fault,
    Setup,
)
from driftgate.races.fast import frame as words
from driftgate.races.fast import shadow
from driftgate.races.fast.instrument import instrument
from driftgate.races.grid import blocks_of
from driftgate.races.kernel import GLOBAL, Kernel, Storage, Var

_FAULTS = {
    shadow.OOB_READ: OUT_OF_BOUNDS_READ,
    shadow.OOB_WRITE: OUT_OF_BOUNDS_WRITE,
    shadow.UNDEFINED: UNINITIALISED,
    shadow.DIVERGED: DIVERGENT,
}
_PADDING = 64
"""Bytes behind an array: a vector read that does not fit goes to its begin, and may be longer than the array."""


def run(kernel: Kernel, setup: Setup) -> Evidence:
    """One launch of ``kernel``, all blocks, in order. For several launches make a `Program` once."""
    return Program(kernel).run(setup)


class Program:
    """A kernel compiled with its shadow memory. Compilation takes a fraction of a second; raises UsageError for what
    the engine does not know."""

    def __init__(self, kernel: Kernel, switches: bool = False) -> None:
        self.kernel = kernel
        self._made = instrument(kernel, switches)
        self._call = _compile(kernel.name, self._made.function)

    def run(self, setup: Setup, switch: int = 0, second: int = 0) -> Evidence:
        """One launch, all blocks. ``switch`` takes out one barrier, guard or index, ``second`` another: see
        `setting`.

        Raises UsageError where ``setup`` lacks an argument or has one of another dtype.
        """
        kernel, made = self.kernel, self._made
        arrays = {b.storage: _padded(kernel, b.name, b.storage.name, setup, b.dtype) for b in kernel.pointers}
        blocks = blocks_of(kernel, setup.scalars)
        memory: dict[str, np.ndarray] = {
            words.TABLE: np.zeros(shadow.HEAD + shadow.ROW * shadow.ROWS, np.int64),
            words.HITS: np.zeros(len(kernel.sites), np.int64),
            words.CONTROL: np.zeros(8, np.int64),
            words.STARTS: np.zeros(blocks + 1, np.int64),
            words.ARENA: np.zeros(made.arena_bytes + _PADDING, np.uint8),
        }
        shadows = {s: self._shadow(s, arrays.get(s), setup) for s in made.grains if s.scope != "local"}
        before = {s: np.zeros(cells.shape[0] * made.grains[s], np.uint8) for s, cells in shadows.items()}
        frame = np.zeros(len(made.frame.words), np.int64)
        for number, (kind, item) in enumerate(made.frame.words):
            frame[number] = self._word(kind, item, setup, (switch, second), memory, arrays, shadows, before)
        self._call(frame.ctypes.data)
        return self._evidence(memory, {s: a.view(np.uint8)[:-_PADDING].view(a.dtype) for s, a in arrays.items()})

    def _word(
        self,
        kind: str,
        item: Any,
        setup: Setup,
        switches: tuple[int, int],
        memory: dict[str, np.ndarray],
        arrays: dict[Storage, np.ndarray],
        shadows: dict[Storage, np.ndarray],
        before: dict[Storage, np.ndarray],
    ) -> int:
        match kind, item:
            case "named", _ if item in words.MUTANTS:
                return switches[words.MUTANTS.index(item)]
            case "named", words.FORMAL:
                return int(setup.formal)
            case "named", _:
                return int(memory[item].ctypes.data)
            case "data", _:
                return int(arrays[item].ctypes.data)
            case "bytes", _:
                return int(arrays[item].nbytes - _PADDING)
            case "shadow", _:
                return int(shadows[item].ctypes.data)
            case "before", _:
                return int(before[item].ctypes.data)
        return _scalar(self.kernel.name, item, setup)

    def _shadow(self, storage: Storage, array: np.ndarray | None, setup: Setup) -> np.ndarray:
        size = storage.bytes if array is None else array.nbytes - _PADDING
        slots = shadow.GLOBAL_SLOTS if storage.scope == GLOBAL else shadow.SHARED_SLOTS
        cells = np.zeros((-(-(size or 0) // self._made.grains[storage]) + _PADDING, slots), np.int64)
        if storage.scope == GLOBAL and storage.name not in setup.poisoned:
            cells[:, 0] = 1
        return cells

    def _evidence(self, memory: dict[str, np.ndarray], arrays: dict[Storage, np.ndarray]) -> Evidence:
        table, control, starts = memory[words.TABLE], memory[words.CONTROL], memory[words.STARTS]
        if table[1] or control[words.NOW] >= shadow.MAX_EPOCHS:
            raise InfraError(f"kernel {self.kernel.name}: more findings or barriers than the fast engine can hold")
        conflicts, faults = [], []
        begun = starts[: control[words.BLOCK]]
        for row in table[shadow.HEAD :].reshape(-1, shadow.ROW)[: table[0]].tolist():
            if row[0] == shadow.DIVIDED:
                raise UsageError(
                    f"kernel {self.kernel.name}: an integer is divided by 0 in {row[3]} places of a launch"
                )
            if row[0] in _FAULTS:
                thread, block, _, site = _who(row[4], begun)
                faults.append(Fault(_FAULTS[row[0]], site, thread, block, row[6], row[3]))
            else:
                conflicts.append(self._conflict(row, begun))
        return Evidence(
            tuple(_merged(conflicts)),
            tuple(sorted(faults, key=lambda f: (f.site, f.kind))),
            memory[words.HITS],
            int(control[words.LONGEST]),
            int(control[words.BLOCK]),
            {s.name: array for s, array in arrays.items()},
        )

    def _conflict(self, row: list[int], begun: np.ndarray) -> Conflict:
        between = row[0] >= shadow.BETWEEN_BLOCKS
        kind = row[0] - shadow.BETWEEN_BLOCKS if between else row[0]
        sides = []
        for number, record in enumerate(row[4:6]):
            thread, block, epoch, site = _who(record, begun)
            write = kind == shadow.TWO_WRITES or (kind == shadow.READ_THEN_WRITE) == (number == 1)
            sides.append((Access(site, thread, block, write), epoch))
        epoch = sides[1][1]
        first, second = sorted((side for side, _ in sides), key=lambda a: (a.site, a.write))
        buffer = self.kernel.sites[first.site].buffer
        assert buffer is not None
        byte = row[6] * self._made.grains[buffer.storage]
        return Conflict(
            WRITE_WRITE if kind == shadow.TWO_WRITES else READ_WRITE,
            first,
            second,
            buffer.storage.name,
            byte,
            epoch,
            row[7],
            bool(row[9]),
            between,
            bool(row[8]),
            row[3],
        )


def _merged(conflicts: list[Conflict]) -> list[Conflict]:
    """One conflict for a pair of sites and kind: which access came first does not matter."""
    from dataclasses import replace

    found: dict[tuple[str, int, int, bool], Conflict] = {}
    for c in conflicts:
        key = c.kind, c.first.site, c.second.site, c.between_blocks
        if key in found:
            other = found[key]
            shown = c if c.distance > other.distance else other
            found[key] = replace(
                shown,
                same_statement=c.same_statement or other.same_statement,
                changing=c.changing or other.changing,
                count=c.count + other.count,
            )
        else:
            found[key] = c
    return [found[key] for key in sorted(found)]


def _who(record: int, begun: np.ndarray) -> tuple[int, int, int, int]:
    """Thread, block, epoch within the block, and site of a record."""
    epoch = record >> shadow.EPOCH
    block = int(np.searchsorted(begun, epoch, side="right")) - 1
    site = (record >> shadow.SITE) & (shadow.MAX_SITES - 1)
    return record & (shadow.MAX_THREADS - 1), block, epoch - int(begun[block]), site


def _compile(name: str, function: Any) -> Any:
    import tvm
    from tvm import tirx
    from tvm.tirx.build import codegen_build

    from driftgate.runtime import first_line

    target = tvm.target.Target({"kind": "llvm", "opt-level": 2}, host="llvm")
    module = tvm.IRModule({tvm.ir.GlobalVar("main"): function, **shadow.functions()})
    try:
        passes = [
            tirx.transform.BindTarget(target),
            tirx.transform.AnnotateEntryFunc(),
            tirx.transform.MakePackedAPI(),
            tirx.transform.LowerTVMBuiltin(),
            tirx.transform.LowerIntrin(),
        ]
        built = codegen_build(tvm.ir.transform.Sequential(passes)(module), target)
        return built["main"]
    except Exception as error:
        raise InfraError(f"kernel {name}: TVM does not compile its instrumented form: {first_line(error)}") from error


def _padded(kernel: Kernel, name: str, storage: str, setup: Setup, dtype: str) -> np.ndarray:
    if storage not in setup.arrays:
        raise UsageError(f"kernel {kernel.name}: there is no array for buffer {name}")
    array = setup.arrays[storage]
    from driftgate.races.kernel import element_of

    if array.dtype != element_of(dtype) or array.ndim != 1:
        raise UsageError(
            f"kernel {kernel.name}: buffer {name} takes {element_of(dtype)} in one dimension, "
            f"not {array.dtype} in {array.ndim}"
        )
    held = np.zeros(array.size + _PADDING // array.itemsize, array.dtype)
    held[: array.size] = array
    return held


def _scalar(name: str, var: Var, setup: Setup) -> int:
    if var.name not in setup.scalars:
        raise UsageError(f"kernel {name}: there is no value for parameter {var.name}")
    value = setup.scalars[var.name]
    if var.dtype == "float64":
        return int(np.float64(value).view(np.int64))
    if var.dtype.startswith("float"):
        return int(np.float32(value).view(np.int32))
    return int(value)
