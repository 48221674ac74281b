"""A kernel as a function for the CPU that runs its threads one after another between barriers and watches each access.

Barriers, and shuffles, cut the body into items (see `regions`); each item loops over the threads of the block. What a
thread keeps lives in the arena: an array with one entry a thread. Every access to memory that threads share goes
through `shadow`. Switches, chosen when the function is called, take one barrier, guard or index out of the kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.fast import frame as words
from driftgate.races.fast import shadow
from driftgate.races.fast.arena import Arena, kept, pointer, view
from driftgate.races.fast.defined import watched
from driftgate.races.fast.frame import Frame, constant
from driftgate.races.fast.regions import Branch, Exchange, Item, Loop, Region, crossing, cut
from driftgate.races.fast.values import Place, Value, Values, both, size_of
from driftgate.races.kernel import (
    GLOBAL,
    LOCAL,
    SHARED,
    Barrier,
    Bind,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Seq,
    Shuffle,
    Stmt,
    Storage,
    Store,
    Var,
    While,
    bytes_of,
    element_of,
    expressions,
    lanes_of,
    statements,
    walk,
)

WIDEN, UNGUARD, GUARD = 1 << 16, 2 << 16, 3 << 16
"""Added to a site: odd threads store one element further; the branch is always taken; one thread alone stores. Without
any of them a switch is the number of a barrier, from 1 on, that is not there."""

_PRIMES = (40503, 30011, 52837, 11299, 61979, 7919, 20903)


@dataclass(frozen=True)
class Instrumented:
    """The function, and what it has to be called with."""

    function: Any
    frame: Frame
    arena_bytes: int
    grains: dict[Storage, int]
    """Bytes of a cell of shadow memory."""


def instrument(kernel: Kernel, switches: bool = False) -> Instrumented:
    """The instrumented function of ``kernel``; with ``switches`` its stores and branches can be switched as well.

    Raises UsageError where the kernel is too large for the shadow's records, or holds what the engine does not know.
    """
    return _Instrument(kernel, switches).build()


class _Instrument:
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
        self.values = Values(kernel.name, self.load, self.variable, self.exchanged, self.scratch, self.require)
        self.uniform: dict[Var, Any] = {}
        self.loops: list[Any] = []
        self.thread: Any = None
        self.now: Any = None
        self.device_now: Any = None
        self.doubtful: set[Var | Shuffle] = set()

    # The function around the body

    def build(self) -> Instrumented:
        from tvm.script.ir_builder import IRBuilder
        from tvm.script.ir_builder import tirx as T

        with IRBuilder() as builder, T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main"})
            self.enter(T.arg("frame", T.int64()))
            self.blocks()
        return Instrumented(builder.get(), self.frame, self.arena.bytes, self.grains)

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

    def blocks(self) -> None:
        from tvm.script.ir_builder import tirx as T

        with contextlib.ExitStack() as stack:
            for var, extent in reversed(self.kernel.grid):
                count = self.values.value(extent).tir
                self.uniform[var] = stack.enter_context(T.serial(_as(var.dtype, 0), count))
            self.step(words.NOW)
            self.set(words.START, self.get(words.NOW))
            self.set(words.DEVICE_EPOCH, self.get(words.NOW))
            T.buffer_store(self.starts, self.get(words.NOW), [self.get(words.BLOCK)])
            self.step(words.BLOCK)
            for storage in self.watched:
                size = self.cells(storage) * self.kernel.threads
                with T.serial(constant(0), constant(size)) as n:
                    self.arena.store(constant(self.known[storage]) + n, T.uint8(0), "uint8")
            self.emit(self.items)
            length = T.bind(self.get(words.NOW) - self.get(words.START) + 1)
            with T.If(length > self.get(words.LONGEST)), T.Then():
                self.set(words.LONGEST, length)

    # Items

    def emit(self, items: tuple[Item, ...]) -> None:
        for item in items:
            self.values.bound = {}
            match item:
                case Barrier():
                    self.barrier(item)
                case Region():
                    with self.threads():
                        self.body(Seq(item.body), top=True)
                case Exchange():
                    self.exchange(item)
                case Branch():
                    self.branch(item)
                case Loop():
                    self.loop(item)

    def barrier(self, item: Barrier) -> None:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        self.hit(item.site)
        with T.If(tirx.Not(self.on(item.number + 1))), T.Then():
            self.step(words.NOW)
            orders_device = self.formal == constant(0) if item.scope == SHARED else tirx.IntImm("bool", 1)
            with T.If(orders_device), T.Then():
                self.set(words.DEVICE_EPOCH, self.get(words.NOW))

    def exchange(self, item: Exchange) -> None:
        with self.threads():
            for shuffle in item.shuffles:
                if shuffle not in self.offsets:
                    self.offsets[shuffle] = self.arena.take(size_of(shuffle.dtype) * self.kernel.threads)
                    self.known[shuffle] = self.arena.take(self.kernel.threads)
                found = self.values.value(shuffle.value)
                self.keep(shuffle, shuffle.dtype, found)
        with self.threads():
            self.body(item.statement, top=True)

    def exchanged(self, shuffle: Shuffle) -> Value:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        width, delta = constant(shuffle.width), tirx.Cast("int64", self.values.value(shuffle.delta).tir)
        lane = T.bind(tirx.FloorMod(self.thread, width))
        group = self.thread - lane
        source = lane + delta if shuffle.down else tirx.FloorMod(delta, width)
        valid = tirx.And(source < width, group + source < constant(self.kernel.threads))
        return self.kept(shuffle, shuffle.dtype, T.bind(tirx.Select(valid, group + source, self.thread)))

    def branch(self, item: Branch) -> None:
        from tvm.script.ir_builder import tirx as T

        stmt = item.statement
        (taken,) = self.agreed((stmt.condition,), stmt.site)
        with T.If(self.switched(UNGUARD + stmt.site, taken)):
            with T.Then():
                self.emit(item.then or (Region(()),))
            if item.otherwise:
                with T.Else():
                    self.emit(item.otherwise)

    def loop(self, item: Loop) -> None:
        from tvm.script.ir_builder import tirx as T

        stmt = item.statement
        if isinstance(stmt, For):
            start, extent = self.agreed((stmt.start, stmt.extent), stmt.site)
            with T.serial(start, start + extent) as var, self.inside(var):
                self.uniform[stmt.var] = var
                self.emit(item.body)
            return
        again = self.arena.take(1)
        self.arena.store(constant(again), self.agreed((stmt.condition,), stmt.site)[0], "bool")
        with T.While(self.arena.load(constant(again), "bool")):
            self.emit(item.body)
            self.values.bound = {}
            self.arena.store(constant(again), self.agreed((stmt.condition,), stmt.site)[0], "bool")

    def agreed(self, exprs: tuple[Expr, ...], site: int) -> list[Any]:
        """Values on which the threads have to agree: thread 0's, and a finding where another's differs."""
        from tvm.script.ir_builder import tirx as T

        if all(self.is_uniform(expr) for expr in exprs):
            return [T.bind(self.values.value(expr).tir) for expr in exprs]
        places = [self.arena.take(size_of(expr.dtype) * self.kernel.threads) for expr in exprs]
        with self.threads():
            for expr, place in zip(exprs, places, strict=True):
                found = self.values.value(expr)
                self.require(found.defined, site)
                self.arena.store(self.mine(place, expr.dtype), found.tir, expr.dtype)
            for expr, place in zip(exprs, places, strict=True):
                raw = "uint8" if expr.dtype == "bool" else expr.dtype
                own = self.arena.load(self.mine(place, raw), raw)
                with T.If(own != self.arena.load(constant(place), raw)), T.Then():
                    self.fault(shadow.DIVERGED, site, constant(-1))
        return [T.bind(self.arena.load(constant(place), expr.dtype)) for expr, place in zip(exprs, places, strict=True)]

    def is_uniform(self, expr: Expr) -> bool:
        return all(
            not isinstance(part, Load | Shuffle) and (not isinstance(part, Var) or part in self.uniform)
            for part in walk(expr)
        )

    # Statements of one thread

    @contextlib.contextmanager
    def threads(self) -> Iterator[None]:
        from tvm.script.ir_builder import tirx as T

        self.values.bound = {}
        self.now = T.bind(self.get(words.NOW) << constant(shadow.EPOCH))
        self.device_now = T.bind(self.get(words.DEVICE_EPOCH) << constant(shadow.EPOCH))
        self.start = T.bind(self.get(words.START))
        with contextlib.ExitStack() as stack:
            linear: Any = constant(0)
            axes = []
            for var, extent in reversed(self.kernel.block):
                axis = stack.enter_context(T.serial(constant(0), constant(extent)))
                linear = linear * constant(extent) + axis
                axes.append((var, axis))
            self.thread = T.bind(linear)
            for var, axis in axes:
                self.values.bound[var] = Value(T.bind(_cast(var.dtype, axis)))
            yield
        self.values.bound = {}

    def body(self, stmt: Stmt, top: bool = False) -> None:
        match stmt:
            case Seq():
                for part in stmt.body:
                    self.body(part, top)
            case Bind():
                self.bind(stmt)
            case Store():
                self.store(stmt)
            case If():
                self.thread_branch(stmt)
            case For():
                self.thread_for(stmt)
            case While():
                self.thread_while(stmt)
            case _:
                raise UsageError(f"kernel {self.kernel.name}: statement {type(stmt).__name__} is not supported")

    def bind(self, stmt: Bind) -> None:
        found = self.values.value(stmt.value)
        if stmt.var in self.crossing:
            self.keep(stmt.var, stmt.var.dtype, found)
        self.values.bound[stmt.var] = Value(self.values.hold(found.tir, stmt.var.dtype), found.defined)

    def thread_branch(self, stmt: If) -> None:
        from tvm.script.ir_builder import tirx as T

        condition = self.values.value(stmt.condition)
        self.require(condition.defined, stmt.site)
        outer = dict(self.values.bound)
        with T.If(self.switched(UNGUARD + stmt.site, condition.tir)):
            with T.Then():
                self.body(stmt.then)
                T.evaluate(0)
            if stmt.otherwise is not None:
                self.values.bound = dict(outer)
                with T.Else():
                    self.body(stmt.otherwise)
                    T.evaluate(0)
        self.values.bound = outer

    def thread_for(self, stmt: For) -> None:
        from tvm.script.ir_builder import tirx as T

        start, extent = self.values.value(stmt.start), self.values.value(stmt.extent)
        self.require(both(start.defined, extent.defined), stmt.site)
        outer = dict(self.values.bound)
        with T.serial(start.tir, start.tir + extent.tir) as var, self.inside(var):
            self.values.bound[stmt.var] = Value(var)
            self.body(stmt.body)
            T.evaluate(0)
        self.values.bound = outer

    def thread_while(self, stmt: While) -> None:
        from tvm.script.ir_builder import tirx as T

        again = self.arena.take(1)

        def ask() -> None:
            condition = self.values.value(stmt.condition)
            self.require(condition.defined, stmt.site)
            self.arena.store(constant(again), condition.tir, "bool")

        outer = dict(self.values.bound)
        ask()
        with T.While(self.arena.load(constant(again), "bool")):
            self.values.bound = dict(outer)
            self.body(stmt.body)
            self.values.bound = dict(outer)
            ask()
        self.values.bound = outer

    @contextlib.contextmanager
    def inside(self, var: Any) -> Iterator[None]:
        self.loops.append(var)
        yield
        self.loops.pop()

    # Accesses

    def load(self, expr: Load, place: Place, defined: Any) -> Value:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        storage, element = expr.buffer.storage, element_of(expr.buffer.dtype)
        if storage.scope == LOCAL:
            return self.local_load(expr, place)
        self.hit(expr.site)
        fits = self.fits(storage, element, place)
        record = T.bind(self.record(expr.site, storage))
        with T.If(fits):
            with T.Then():
                shadow_at, data, before = self.memory[storage]
                cells = self.cells_of(storage, element, place, record)
                self.call("read", shadow_at, self.table, data, before, *cells)
            with T.Else():
                self.fault(shadow.OOB_READ, expr.site, place.first)
        first = T.bind(tirx.Select(fits, place.first, constant(0)))
        index = first if place.lanes == 1 else tirx.Ramp(first, place.stride, place.lanes)
        stale = tirx.BufferLoad(self.table_words, [constant(4)]) != constant(0)
        value = tirx.if_then_else(
            stale,
            tirx.BufferLoad(self.earlier[storage, element], [index]),
            tirx.BufferLoad(self.views[storage, element], [index]),
        )
        zero = tirx.IntImm(element, 0) if element.startswith(("int", "uint", "bool")) else tirx.FloatImm(element, 0.0)
        nothing = zero if place.lanes == 1 else tirx.Broadcast(zero, place.lanes)
        return Value(self.values.hold(tirx.if_then_else(fits, value, nothing), expr.dtype))

    def local_load(self, expr: Load, place: Place) -> Value:
        from tvm.script.ir_builder import tirx as T

        storage, element = expr.buffer.storage, element_of(expr.buffer.dtype)
        size = bytes_of(element)
        offset = self.local_offset(storage, place.first, size)
        if place.contiguous:
            value = self.arena.load(offset, expr.dtype, place.lanes)
        else:
            raise UsageError(f"kernel {self.kernel.name}: a strided vector of a local array is not supported")
        defined = None
        if storage in self.watched:
            per = size // self.grains[storage]
            known = [
                self.arena.load(self.flag(storage, place.first * constant(per) + constant(n)), "uint8") != T.uint8(0)
                for n in range(per * place.lanes)
            ]
            defined = T.bind(both(*known))
        return Value(value, defined)

    def store(self, stmt: Store) -> None:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        storage, element = stmt.buffer.storage, element_of(stmt.buffer.dtype)
        guarded = self.switches and storage.scope != LOCAL
        with contextlib.ExitStack() as stack:
            if guarded:
                first_thread = self.thread == constant(0)
                stack.enter_context(T.If(tirx.Or(tirx.Not(self.on(GUARD + stmt.site)), first_thread)))
                stack.enter_context(T.Then())
            place, defined = self.values.place(stmt.index, stmt.buffer.dtype)
            self.require(defined, stmt.site)
            found = self.values.value(stmt.value)
            if storage.scope == LOCAL:
                self.local_store(storage, place, found, stmt.value.dtype)
                return
            self.require(found.defined, stmt.site)
            if self.switches:
                odd = self.thread & constant(1)
                shift = tirx.Select(self.on(WIDEN + stmt.site), odd, constant(0))
                place = Place(T.bind(place.first + shift), place.stride, place.lanes, place.contiguous)
            self.hit(stmt.site)
            fits = self.fits(storage, element, place)
            record = T.bind(self.record(stmt.site, storage))
            kept_at = self.arena.take(size_of(stmt.value.dtype))
            with T.If(fits):
                with T.Then():
                    self.arena.store(constant(kept_at), found.tir, stmt.value.dtype)
                    value = pointer(self.base + kept_at, "uint8")
                    shadow_at, data, before = self.memory[storage]
                    cells = self.cells_of(storage, element, place, record)
                    self.call("write", shadow_at, self.table, data, before, value, *cells)
                with T.Else():
                    self.fault(shadow.OOB_WRITE, stmt.site, place.first)

    def local_store(self, storage: Storage, place: Place, found: Value, dtype: str) -> None:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        if not place.contiguous:
            raise UsageError(f"kernel {self.kernel.name}: a strided vector of a local array is not supported")
        size = bytes_of(dtype)
        self.arena.store(self.local_offset(storage, place.first, size), found.tir, dtype)
        if storage in self.watched:
            per = size // self.grains[storage]
            flag = T.uint8(1) if found.defined is None else tirx.Select(found.defined, T.uint8(1), T.uint8(0))
            for n in range(per * place.lanes):
                self.arena.store(self.flag(storage, place.first * constant(per) + constant(n)), flag, "uint8")

    def local_offset(self, storage: Storage, first: Any, size: int) -> Any:
        return constant(self.offsets[storage]) + self.thread * constant(storage.bytes or 0) + first * constant(size)

    def flag(self, storage: Storage, cell: Any) -> Any:
        return constant(self.known[storage]) + self.thread * constant(self.cells(storage)) + cell

    def fits(self, storage: Storage, element: str, place: Place) -> Any:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        size = self.sizes[storage]
        last = place.first + place.stride * constant(place.lanes - 1) if place.lanes > 1 else place.first
        shift = constant(bytes_of(element).bit_length() - 1)
        return T.bind(tirx.And(place.first >= constant(0), last < tirx.shift_right(size, shift)))

    def cells_of(self, storage: Storage, element: str, place: Place, record: Any) -> tuple[Any, ...]:
        """The last arguments of ``shadow``'s helpers."""
        per = bytes_of(element) // self.grains[storage]
        slots = shadow.GLOBAL_SLOTS if storage.scope == GLOBAL else shadow.SHARED_SLOTS
        lanes = constant(place.lanes)
        grain = constant(self.grains[storage])
        return place.first, place.stride, lanes, constant(per), constant(slots), grain, record, self.start

    def record(self, site: int, storage: Storage) -> Any:
        epoch = self.device_now if storage.scope == GLOBAL else self.now
        fields = epoch + constant(site << shadow.SITE) + self.thread
        if not self.loops:
            return fields
        mixed: Any = constant(0)
        for prime, var in zip(_PRIMES, self.loops, strict=False):
            mixed = mixed + _cast("int64", var) * constant(prime)
        return fields + ((mixed & constant(0xFFFF)) << constant(shadow.INSTANCE))

    # What a thread keeps from one item to the next

    def variable(self, var: Var) -> Value:
        if var in self.uniform:
            return Value(self.uniform[var])
        if var in self.crossing:
            return self.kept(var, var.dtype, self.thread)
        raise UsageError(f"kernel {self.kernel.name}: variable {var.name} has no value")

    def keep(self, what: Var | Shuffle, dtype: str, found: Value) -> None:
        self.arena.store(self.mine(self.offsets[what], dtype), found.tir, dtype)
        if found.defined is not None:
            self.doubtful.add(what)
            self.arena.store(constant(self.known[what]) + self.thread, found.defined, "bool")

    def kept(self, what: Var | Shuffle, dtype: str, thread: Any) -> Value:
        from tvm.script.ir_builder import tirx as T

        value = self.arena.load(constant(self.offsets[what]) + thread * constant(size_of(dtype)), dtype)
        if what not in self.doubtful:
            return Value(self.values.hold(value, dtype))
        return Value(
            self.values.hold(value, dtype), T.bind(self.arena.load(constant(self.known[what]) + thread, "bool"))
        )

    def mine(self, offset: int, dtype: str) -> Any:
        return constant(offset) + self.thread * constant(size_of(dtype))

    def scratch(self, dtype: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        offset = self.arena.take(size_of(dtype))
        return (
            lambda: self.arena.load(constant(offset), dtype, lanes_of(dtype)),
            lambda value: self.arena.store(constant(offset), value, dtype),
        )

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


def _as(dtype: str, value: int) -> Any:
    from tvm import tirx

    return tirx.IntImm(dtype, value)


def _cast(dtype: str, value: Any) -> Any:
    from tvm import tirx

    return value if str(value.ty) == dtype else tirx.Cast(dtype, value)


def _parameter(word: Any, dtype: str) -> Any:
    """A parameter out of its word: floats lie there as float32 or float64 bits."""
    from tvm import tirx
    from tvm.script.ir_builder import tirx as T

    if dtype.startswith("float"):
        bits = "int64" if dtype == "float64" else "int32"
        return T.reinterpret(dtype if dtype == "float64" else "float32", _cast(bits, word))
    return tirx.Cast(dtype, word)
