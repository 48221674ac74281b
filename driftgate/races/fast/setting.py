"""Where the instrumented kernel stands: its memory, the words it was called with, and the findings it notes."""

from __future__ import annotations

from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.fast import frame as words
from driftgate.races.fast import shadow
from driftgate.races.fast.arena import Arena, kept, pointer, view
from driftgate.races.fast.defined import watched
from driftgate.races.fast.frame import Frame, constant
from driftgate.races.fast.regions import crossing, cut
from driftgate.races.fast.values import size_of
from driftgate.races.fast.within import Range
from driftgate.races.kernel import (
    LOCAL,
    SHARED,
    Kernel,
    Shuffle,
    Storage,
    Var,
    bytes_of,
    element_of,
    expressions,
    statements,
    walk,
)

WIDEN, UNGUARD, GUARD = 1 << 16, 2 << 16, 3 << 16
"""Added to a site: odd threads store one element further; the branch is always taken; one thread alone stores. Without
any of them a switch is the number of a barrier, from 1 on, that is not there."""


class Setting:
    """The memory of a kernel under the builder, and what every part of the instrumentation does with it."""

    def __init__(self, kernel: Kernel, switches: bool) -> None:
        if kernel.threads > shadow.MAX_THREADS or len(kernel.sites) > shadow.MAX_SITES:
            raise UsageError(
                f"kernel {kernel.name}: {kernel.threads} threads and {len(kernel.sites)} accesses, but the fast engine "
                f"takes at most {shadow.MAX_THREADS} and {shadow.MAX_SITES}"
            )
        self.kernel, self.switches = kernel, switches
        self.frame, self.arena = Frame(), Arena()
        self.items = cut(kernel.body)
        self.crossing = crossing(self.items)
        self.watched = watched(kernel)
        self.helpers = {name.name_hint: name for name in shadow.functions()}
        self.grains = {
            storage: min(bytes_of(b.dtype) for b in kernel.buffers if b.storage is storage)
            for storage in {b.storage: None for b in kernel.buffers}
        }
        self.offsets: dict[Storage | Var | Shuffle, int] = {}
        self.known: dict[Storage | Var | Shuffle, int] = {}
        self.uniform: dict[Var, Any] = {}
        self.loops: list[Any] = []
        self.ranges: dict[Var, Range] = {var: (0, extent - 1) for var, extent in kernel.block}
        """Of variables whose bounds are constant."""
        self.thread: Any = None
        self.now: Any = None
        self.device_now: Any = None
        self.start: Any = None
        self.doubtful: set[Var | Shuffle] = set()

    def enter(self, address: Any) -> None:
        from tvm.script.ir_builder import tirx as T

        self.words = view(address, "int64")
        self.table, self.control = pointer(self.word(words.TABLE), "int64"), view(self.word(words.CONTROL), "int64")
        self.table_words = view(self.word(words.TABLE), "int64")
        self.hits, self.starts = view(self.word(words.HITS), "int64"), view(self.word(words.STARTS), "int64")
        self.mutants = [T.bind(self.word(word)) for word in words.MUTANTS]
        self.formal = T.bind(self.word(words.FORMAL))
        self.base = T.bind(self.word(words.ARENA))
        dtypes = {b.dtype for b in self.kernel.buffers} | {"bool", "int32", "int64"}
        for stmt in statements(self.kernel.body):
            dtypes |= {part.dtype for expr in expressions(stmt) for part in walk(expr)}
        self.arena.declare(self.base, kept(dtypes))
        self.memory: dict[Storage, tuple[Any, Any, Any]] = {}
        """By storage: pointers to its shadow, its bytes, and the bytes before the epoch."""
        self.earlier: dict[tuple[Storage, str], Any] = {}
        self.sizes: dict[Storage, Any] = {}
        self.views: dict[tuple[Storage, str], Any] = {}
        for storage in {b.storage: None for b in self.kernel.buffers}:
            self.place_storage(storage)
        for var in self.kernel.scalars:
            self.uniform[var] = T.bind(_parameter(self.at(self.frame.add("value", var)), var.dtype))
        for var in self.crossing:
            self.offsets[var] = self.arena.take(size_of(var.dtype) * self.kernel.threads)
            self.known[var] = self.arena.take(self.kernel.threads)

    def place_storage(self, storage: Storage) -> None:
        from tvm.script.ir_builder import tirx as T

        threads = self.kernel.threads
        if storage.scope == LOCAL:
            self.offsets[storage] = self.arena.take((storage.bytes or 0) * threads)
            if storage in self.watched:
                self.known[storage] = self.arena.take(self.cells(storage) * threads)
            return
        if storage.scope == SHARED:
            self.offsets[storage] = self.arena.take((storage.bytes or 0) + 64)
            address, self.sizes[storage] = self.base + self.offsets[storage], constant(storage.bytes or 0)
        else:
            address = T.bind(self.at(self.frame.add("data", storage)))
            self.sizes[storage] = T.bind(self.at(self.frame.add("bytes", storage)))
        shadow_at = pointer(self.at(self.frame.add("shadow", storage)), "int64")
        before = T.bind(self.at(self.frame.add("before", storage)))
        self.memory[storage] = (shadow_at, pointer(address, "uint8"), pointer(before, "uint8"))
        for dtype in {element_of(b.dtype) for b in self.kernel.buffers if b.storage is storage}:
            self.views[storage, dtype] = view(address, dtype)
            self.earlier[storage, dtype] = view(before, dtype)

    def cells(self, storage: Storage) -> int:
        return (storage.bytes or 0) // self.grains[storage]

    # Words and findings

    def at(self, word: int) -> Any:
        from tvm import tirx

        return tirx.BufferLoad(self.words, [constant(word)])

    def word(self, name: str) -> Any:
        return self.at(Frame.named(name))

    def get(self, word: int) -> Any:
        from tvm import tirx

        return tirx.BufferLoad(self.control, [constant(word)])

    def set(self, word: int, value: Any) -> None:
        from tvm.script.ir_builder import tirx as T

        T.buffer_store(self.control, value, [constant(word)])

    def step(self, word: int) -> None:
        self.set(word, self.get(word) + constant(1))

    def hit(self, site: int) -> None:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        T.buffer_store(self.hits, tirx.BufferLoad(self.hits, [constant(site)]) + constant(1), [constant(site)])

    def switched(self, switch: int, condition: Any) -> Any:
        from tvm import tirx

        return tirx.Or(condition, self.on(switch)) if self.switches else condition

    def on(self, switch: int) -> Any:
        """Whether the caller chose ``switch``."""
        from tvm import tirx

        one, other = self.mutants
        return tirx.Or(one == constant(switch), other == constant(switch))

    def require(self, defined: Any, site: int) -> None:
        """Emit a finding where ``defined`` is false; nothing where it always holds."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        if defined is not None:
            with T.If(tirx.Not(defined)), T.Then():
                self.fault(shadow.UNDEFINED, site, constant(-1))

    def fault(self, kind: int, site: int, index: Any) -> None:
        record = self.now + constant(site << shadow.SITE) + self.thread
        zero = constant(0)
        self.call("note", self.table, constant(kind), record, record, index, zero, zero, zero)

    def call(self, helper: str, *arguments: Any) -> None:
        import tvm
        from tvm.script.ir_builder import tirx as T

        name = self.helpers[helper]
        T.evaluate(tvm.ir.Call(name, list(arguments), ret_ty=shadow.functions()[name].ret_type))


def as_constant(dtype: str, value: int) -> Any:
    """``value`` as a constant of ``dtype``."""
    from tvm import tirx

    return tirx.IntImm(dtype, value)


def cast(dtype: str, value: Any) -> Any:
    """``value`` as ``dtype``."""
    from tvm import tirx

    return value if str(value.ty) == dtype else tirx.Cast(dtype, value)


def _parameter(word: Any, dtype: str) -> Any:
    """A parameter out of its word: floats lie there as float32 or float64 bits."""
    from tvm import tirx
    from tvm.script.ir_builder import tirx as T

    if dtype.startswith("float"):
        bits = "int64" if dtype == "float64" else "int32"
        return T.reinterpret(dtype if dtype == "float64" else "float32", cast(bits, word))
    return tirx.Cast(dtype, word)
