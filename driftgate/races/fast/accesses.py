"""What becomes of every read and write: shared memory goes through `shadow`, a thread's own lies in arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.fast import shadow
from driftgate.races.fast.arena import pointer
from driftgate.races.fast.frame import constant
from driftgate.races.fast.setting import GUARD, WIDEN, Setting, cast
from driftgate.races.fast.values import Place, Value, Values, both, size_of
from driftgate.races.fast.within import within
from driftgate.races.kernel import (
    GLOBAL,
    LOCAL,
    Kernel,
    Load,
    Shuffle,
    Storage,
    Store,
    Var,
    bytes_of,
    element_of,
    lanes_of,
)

_PRIMES = (40503, 30011, 52837, 11299, 61979, 7919, 20903)


class Accesses(Setting):
    """Loads and stores, and what a thread keeps from one item of the body to the next."""

    def __init__(self, kernel: Kernel, switches: bool) -> None:
        super().__init__(kernel, switches)
        self.values = Values(
            kernel.name, self.load, self.variable, self.exchanged, self.scratch, self.require, self.divisor
        )

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
        if not place.contiguous:
            raise UsageError(f"kernel {self.kernel.name}: a strided vector of a local array is not supported")
        place = self.inside_local(expr, place, shadow.OOB_READ)[0]
        offset = self.local_offset(storage, place.first, size)
        value = self.arena.load(offset, expr.dtype, place.lanes)
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
                self.local_store(stmt, place, found)
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

    def local_store(self, stmt: Store, place: Place, found: Value) -> None:
        from tvm.script.ir_builder import tirx as T

        if not place.contiguous:
            raise UsageError(f"kernel {self.kernel.name}: a strided vector of a local array is not supported")
        place, fits = self.inside_local(stmt, place, shadow.OOB_WRITE)
        if fits is None:
            self.local_write(stmt.buffer.storage, place, found, stmt.value.dtype)
            return
        with T.If(fits), T.Then():
            self.local_write(stmt.buffer.storage, place, found, stmt.value.dtype)

    def inside_local(self, access: Load | Store, place: Place, kind: int) -> tuple[Place, Any]:
        """Where an access to a thread's own array goes, the begin of the array where it would leave it; and the
        condition that it does not, None where that is certain. Emits the finding."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        storage, dtype = access.buffer.storage, access.buffer.dtype
        if within(access.index, self.ranges, (storage.bytes or 0) // size_of(dtype)):
            return place, None
        elements = constant((storage.bytes or 0) // bytes_of(dtype))
        last = place.first + constant(place.lanes - 1)
        fits = T.bind(tirx.And(place.first >= constant(0), last < elements))
        with T.If(tirx.Not(fits)), T.Then():
            self.fault(kind, access.site, place.first)
        first = T.bind(tirx.Select(fits, place.first, constant(0)))
        return Place(first, place.stride, place.lanes, place.contiguous), fits

    def local_write(self, storage: Storage, place: Place, found: Value, dtype: str) -> None:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

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
            mixed = mixed + cast("int64", var) * constant(prime)
        return fields + ((mixed & constant(0xFFFF)) << constant(shadow.INSTANCE))

    def divisor(self, value: Any) -> Any:
        """``value``, an integer to divide by, and a finding where it is 0: the processor would end the program."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        held = T.bind(value)
        zero = held == tirx.IntImm(str(held.ty), 0)
        with T.If(zero), T.Then():
            self.fault(shadow.DIVIDED, 0, constant(-1))
        return T.bind(tirx.Select(zero, tirx.IntImm(str(held.ty), 1), held))

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

    def exchanged(self, shuffle: Shuffle) -> Value:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        width, delta = constant(shuffle.width), tirx.Cast("int64", self.values.value(shuffle.delta).tir)
        lane = T.bind(tirx.FloorMod(self.thread, width))
        group = self.thread - lane
        source = lane + delta if shuffle.down else tirx.FloorMod(delta, width)
        valid = tirx.And(source < width, group + source < constant(self.kernel.threads))
        return self.kept(shuffle, shuffle.dtype, T.bind(tirx.Select(valid, group + source, self.thread)))
