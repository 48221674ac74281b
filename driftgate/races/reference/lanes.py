"""Expressions of a kernel on NumPy lanes: one row for each thread, one column for each vector lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from driftgate.outcome import UsageError
from driftgate.races import kernel as ir
from driftgate.races.kernel import Buffer, Expr, Kernel, Var, lanes_of
from driftgate.races.reference.arithmetic import FUNCTIONS, OPERATORS, numpy_dtype

Mask = np.ndarray | None
"""Which threads take part, bool ``(threads,)``; None for all."""
Value = tuple[np.ndarray, np.ndarray | None]
"""Numbers ``(threads,)`` or ``(threads, lanes)``, and in the same shape which of them are defined; None for all.

Rows of threads that do not take part hold anything.
"""


class Threads(Protocol):
    """What expressions need of the threads that evaluate them together."""

    numbers: np.ndarray
    """int64 ``(threads,)``: linear indices in the block, consecutive."""
    values: dict[Expr, Value]
    """Of variables, and of constants once they were used."""

    def load(self, buffer: Buffer, index: Value, lanes: int, site: int, mask: Mask) -> Value:
        """What ``buffer`` holds at ``index``."""
        ...


Evaluate = Callable[[Any, Mask], Value]
"""Of the threads of a `Threads` that take part."""


def compiled(expr: Expr, kernel: Kernel) -> Evaluate:
    """A function that evaluates ``expr``. Raises UsageError with the kernel's name and the node that it does not know.

    Each node records and checks its loads for the threads alone that need it.
    """
    return _Compiler(kernel.name, kernel.threads).expr(expr)


class _Compiler:
    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads, self.guarded = name, threads, 0

    def unsupported(self, what: str) -> UsageError:
        return UsageError(f"kernel {self.name}: {what} is not supported by the race detector's reference")

    def expr(self, expr: Expr) -> Evaluate:
        numpy_dtype(expr.dtype)
        handler = getattr(self, f"_{type(expr).__name__}", None)
        if handler is None:
            raise self.unsupported(f"expression {type(expr).__name__}")
        return handler(expr)

    def sometimes(self, expr: Expr) -> Evaluate:
        """``expr``, which not every thread evaluates."""
        self.guarded += 1
        evaluate = self.expr(expr)
        self.guarded -= 1
        return evaluate

    def scalar(self, expr: Expr, role: str) -> Expr:
        if lanes_of(expr.dtype) > 1:
            raise self.unsupported(f"a vector as {role}")
        return expr

    def _Const(self, expr: ir.Const) -> Evaluate:
        if lanes_of(expr.dtype) > 1:
            raise self.unsupported("a constant vector")
        dtype = numpy_dtype(expr.dtype)

        def constant(threads: Threads, mask: Mask) -> Value:
            if expr not in threads.values:
                threads.values[expr] = np.full(len(threads.numbers), expr.value, dtype), None
            return threads.values[expr]

        return constant

    def _Var(self, expr: Var) -> Evaluate:
        return lambda threads, mask: threads.values[expr]

    def _Op(self, expr: ir.Op) -> Evaluate:
        if expr.name in ("and", "or"):
            return self.short_circuit(expr)
        if expr.name not in OPERATORS:
            raise self.unsupported(f"operator {expr.name}")
        operate = OPERATORS[expr.name]
        parts = [self.expr(arg) for arg in expr.args]
        dtype = numpy_dtype(expr.dtype)
        divides = expr.name in ("/", "//", "%", "trunc%") and dtype.kind in "iu"

        def operation(threads: Threads, mask: Mask) -> Value:
            args = [part(threads, mask) for part in parts]
            if divides and active(args[1][0] == 0, mask).any():
                raise UsageError(f"kernel {self.name} divides an integer by zero ({expr.name})")
            return operate(*(data for data, _ in args)).astype(dtype, copy=False), _both(*(d for _, d in args))

        return operation

    def short_circuit(self, expr: ir.Op) -> Evaluate:
        left, right = (self.scalar(arg, f"an operand of {expr.name}") for arg in expr.args)
        first, second = self.expr(left), self.sometimes(right)
        decides = expr.name == "or"

        def both(threads: Threads, mask: Mask) -> Value:
            a, a_defined = first(threads, mask)
            open_ = active(a != decides, mask)
            if not open_.any():
                return a, a_defined
            b, b_defined = second(threads, open_)
            if b_defined is not None:
                b_defined = b_defined | ~open_
            return np.where(open_, b, a), _both(a_defined, b_defined)

        return both

    def _Choice(self, expr: ir.Choice) -> Evaluate:
        condition = self.expr(self.scalar(expr.condition, "a condition"))
        then, otherwise = self.sometimes(expr.then), self.sometimes(expr.otherwise)
        lanes = lanes_of(expr.dtype)

        def choice(threads: Threads, mask: Mask) -> Value:
            test, sure = condition(threads, mask)
            yes, no = active(test, mask), active(~test, mask)
            if not no.any():
                data, defined = then(threads, mask)
            elif not yes.any():
                data, defined = otherwise(threads, mask)
            else:
                a, a_defined = then(threads, yes)
                b, b_defined = otherwise(threads, no)
                taken = _wide(test, lanes)
                data, defined = _chosen(taken, a, b), None
                if a_defined is not None or b_defined is not None:
                    defined = _chosen(taken, _mask_of(a_defined, data), _mask_of(b_defined, data))
            # Nobody knows which side an undefined condition takes.
            return data, defined if sure is None else _mask_of(defined, data) & _wide(sure, lanes)

        return choice

    def _Call(self, expr: ir.Call) -> Evaluate:
        if expr.name not in FUNCTIONS:
            raise self.unsupported(f"call {expr.name}")
        function, dtype = FUNCTIONS[expr.name], numpy_dtype(expr.dtype)
        parts = [self.expr(arg) for arg in expr.args]

        def call(threads: Threads, mask: Mask) -> Value:
            args = [part(threads, mask) for part in parts]
            return function(*(data for data, _ in args)).astype(dtype, copy=False), _both(*(d for _, d in args))

        return call

    def _Cast(self, expr: ir.Cast) -> Evaluate:
        value, dtype, lanes = self.expr(expr.value), numpy_dtype(expr.dtype), lanes_of(expr.dtype)
        if not expr.bits:

            def cast(threads: Threads, mask: Mask) -> Value:
                data, defined = value(threads, mask)
                return data.astype(dtype), defined

            return cast
        if dtype.itemsize * lanes != numpy_dtype(expr.value.dtype).itemsize * lanes_of(expr.value.dtype):
            raise self.unsupported(f"reinterpreting {expr.value.dtype} as {expr.dtype}")

        def reinterpreted(threads: Threads, mask: Mask) -> Value:
            data, defined = value(threads, mask)
            rows = len(data)
            seen = np.ascontiguousarray(data).reshape(rows, -1).view(dtype)
            if defined is None:
                return narrow(seen, lanes), None
            whole = np.logical_and.reduce(defined.reshape(rows, -1), axis=1)
            return narrow(seen, lanes), narrow(_spread(whole, lanes), lanes)

        return reinterpreted

    def _Let(self, expr: ir.Let) -> Evaluate:
        value, body = self.expr(expr.value), self.expr(expr.body)

        def let(threads: Threads, mask: Mask) -> Value:
            threads.values[expr.var] = value(threads, mask)
            return body(threads, mask)

        return let

    def _Ramp(self, expr: ir.Ramp) -> Evaluate:
        base, stride = (self.expr(self.scalar(e, "part of a ramp")) for e in (expr.base, expr.stride))
        steps = np.arange(expr.lanes, dtype=numpy_dtype(expr.dtype))

        def ramp(threads: Threads, mask: Mask) -> Value:
            (a, a_defined), (b, b_defined) = base(threads, mask), stride(threads, mask)
            defined = _both(a_defined, b_defined)
            return a[:, None] + b[:, None] * steps, None if defined is None else _spread(defined, expr.lanes)

        return ramp

    def _Broadcast(self, expr: ir.Broadcast) -> Evaluate:
        value = self.expr(self.scalar(expr.value, "what is broadcast"))

        def broadcast(threads: Threads, mask: Mask) -> Value:
            data, defined = value(threads, mask)
            return _spread(data, expr.lanes), None if defined is None else _spread(defined, expr.lanes)

        return broadcast

    def _Load(self, expr: ir.Load) -> Evaluate:
        index, lanes = self.expr(expr.index), lanes_of(expr.dtype)
        if lanes != lanes_of(expr.index.dtype) * lanes_of(expr.buffer.dtype):
            raise self.unsupported(f"a load of {expr.dtype} from {expr.buffer.dtype}")
        return lambda threads, mask: threads.load(expr.buffer, index(threads, mask), lanes, expr.site, mask)

    def _Shuffle(self, expr: ir.Shuffle) -> Evaluate:
        if self.guarded:
            raise self.unsupported("a shuffle that not every thread reaches")
        value, delta = self.expr(expr.value), self.expr(self.scalar(expr.delta, "the lane of a shuffle"))

        def shuffle(threads: Threads, mask: Mask) -> Value:
            (data, defined), (by, sure) = value(threads, mask), delta(threads, mask)
            lane = threads.numbers % expr.width
            # A lane past the group counts modulo its width, as in CUDA's __shfl_sync.
            other = lane + by.astype(np.int64) if expr.down else by.astype(np.int64) % expr.width
            source = threads.numbers - lane + other
            exists = (other >= 0) & (other < expr.width) & (source < self.threads)
            at = np.where(exists, source, threads.numbers) - threads.numbers[0]
            if (at < 0).any() or (at >= len(data)).any():
                raise UsageError(
                    f"kernel {self.name} shuffles over {expr.width} lanes, but {len(data)} threads run together"
                )
            shown = None if defined is None else defined[at]
            if sure is not None:
                shown = _mask_of(shown, data) & _wide(sure, lanes_of(expr.dtype))
            return data[at], shown

        return shuffle


def active(condition: np.ndarray, mask: Mask) -> np.ndarray:
    """Where ``condition`` holds for threads that take part."""
    return condition if mask is None else (condition & (mask if condition.ndim == 1 else mask[:, None]))


def narrow(data: np.ndarray, lanes: int) -> np.ndarray:
    """``(threads, 1)`` as ``(threads,)``; vectors as they are."""
    return data[:, 0] if lanes == 1 else data


def _both(*defined: np.ndarray | None) -> np.ndarray | None:
    """Defined where all operands are."""
    known = [d for d in defined if d is not None]
    return np.logical_and.reduce(known) if known else None


def _mask_of(defined: np.ndarray | None, data: np.ndarray) -> np.ndarray:
    return np.ones(data.shape, bool) if defined is None else defined


def _chosen(test: np.ndarray, then: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    return np.where(test, then, otherwise)


def _wide(column: np.ndarray, lanes: int) -> np.ndarray:
    return column if lanes == 1 else column[:, None]


def _spread(column: np.ndarray, lanes: int) -> np.ndarray:
    return np.repeat(column[:, None], lanes, axis=1)
