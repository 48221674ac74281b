"""The statements of one thread, between two points where the threads of a block meet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.fast import frame as words
from driftgate.races.fast import shadow
from driftgate.races.fast.accesses import Accesses
from driftgate.races.fast.frame import constant
from driftgate.races.fast.setting import UNGUARD, cast
from driftgate.races.fast.values import Value, both
from driftgate.races.kernel import (
    Bind,
    Const,
    For,
    If,
    Seq,
    Stmt,
    Store,
    While,
)


class Statements(Accesses):
    """Loops over the threads of a block, and what each of them executes."""

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
                self.values.bound[var] = Value(T.bind(cast(var.dtype, axis)))
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
        self.note_range(stmt)
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

    def note_range(self, stmt: For) -> None:
        """Remember the bounds of a loop with constant ones; its variable is used in its body alone."""
        if isinstance(stmt.start, Const) and isinstance(stmt.extent, Const):
            first = int(stmt.start.value)
            self.ranges[stmt.var] = (first, first + int(stmt.extent.value) - 1)

    @contextlib.contextmanager
    def inside(self, var: Any) -> Iterator[None]:
        self.loops.append(var)
        yield
        self.loops.pop()
