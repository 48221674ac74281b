"""A kernel as a function for the CPU that runs its threads one after another between barriers and watches each access.

Barriers, and shuffles, cut the body into items (see `regions`); each item loops over the threads of the block. What a
thread keeps lives in the arena: an array with one entry a thread. Every access to memory that threads share goes
through `shadow`. Switches, chosen when the function is called, take one barrier, guard or index out of the kernel.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from driftgate.races.fast import frame as words
from driftgate.races.fast import shadow
from driftgate.races.fast.frame import Frame, constant
from driftgate.races.fast.regions import Branch, Exchange, Item, Loop, Region
from driftgate.races.fast.setting import UNGUARD, as_constant
from driftgate.races.fast.statements import Statements
from driftgate.races.fast.values import size_of
from driftgate.races.kernel import (
    SHARED,
    Barrier,
    Expr,
    For,
    Kernel,
    Load,
    Seq,
    Shuffle,
    Storage,
    Var,
    walk,
)


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


class _Instrument(Statements):
    """The whole function: all blocks, and in each the items of the body."""

    def build(self) -> Instrumented:
        from tvm.script.ir_builder import IRBuilder
        from tvm.script.ir_builder import tirx as T

        with IRBuilder() as builder, T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main"})
            self.enter(T.arg("frame", T.int64()))
            self.blocks()
        return Instrumented(builder.get(), self.frame, self.arena.bytes, self.grains)

    def blocks(self) -> None:
        from tvm.script.ir_builder import tirx as T

        with contextlib.ExitStack() as stack:
            for var, extent in reversed(self.kernel.grid):
                count = self.values.value(extent).tir
                self.uniform[var] = stack.enter_context(T.serial(as_constant(var.dtype, 0), count))
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
            self.note_range(stmt)
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
