"""Expressions of a kernel as TIR for the CPU, with a check wherever memory is read that other threads may write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.fast.frame import constant
from driftgate.races.kernel import (
    LOCAL,
    Broadcast,
    Call,
    Cast,
    Choice,
    Const,
    Expr,
    Let,
    Load,
    Op,
    Ramp,
    Shuffle,
    Var,
    bytes_of,
    element_of,
    lanes_of,
    walk,
)


@dataclass(frozen=True)
class Value:
    """A TIR expression, and whether it is defined: None where it always is, else a TIR condition."""

    tir: Any
    defined: Any = None


@dataclass(frozen=True)
class Place:
    """Where an access goes, in elements of the buffer's scalar dtype: ``first + lane * stride``, int64 expressions."""

    first: Any
    stride: Any
    lanes: int
    contiguous: bool


def both(*conditions: Any) -> Any:
    """The conjunction of the conditions that are there."""
    from tvm import tirx

    found = [c for c in conditions if c is not None]
    if not found:
        return None
    result = found[0]
    for condition in found[1:]:
        result = tirx.And(result, condition)
    return result


class Values:
    """Turns expressions into TIR, emitting what has to happen first: checks of loads, and sides that may not run.

    ``load`` and ``variable`` are the engine's; ``scratch`` hands out a temporary of a dtype as a (load, store) pair.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[Load, Place, Any], Value],
        variable: Callable[[Var], Value],
        exchanged: Callable[[Shuffle], Value],
        scratch: Callable[[str], tuple[Callable[[], Any], Callable[[Any], None]]],
        require: Callable[[Any, int], None],
        divisor: Callable[[Any], Any],
    ) -> None:
        self.name = name
        self.load, self.variable, self.exchanged = load, variable, exchanged
        self.scratch, self.require, self.divisor = scratch, require, divisor
        self.bound: dict[Var, Value] = {}

    def value(self, expr: Expr) -> Value:
        """``expr`` in TIR. What it needs to have happened is emitted where the builder stands."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        match expr:
            case Const():
                return Value(_constant(expr))
            case Var():
                return self.bound[expr] if expr in self.bound else self.variable(expr)
            case Op(name="and" | "or") if _acts(expr.args[1]):
                left, right = expr.args
                yes, no = Const("bool", 1), Const("bool", 0)
                sides = (right, no) if expr.name == "and" else (yes, right)
                return self.value(Choice(expr.dtype, left, *sides))
            case Op():
                args = [self.value(arg) for arg in expr.args]
                if _divides(expr):
                    if lanes_of(expr.dtype) > 1:
                        raise UsageError(f"kernel {self.name}: a vector divided by a variable is not supported")
                    args[1] = Value(self.divisor(args[1].tir), args[1].defined)
                return Value(_OPERATORS[expr.name](*(a.tir for a in args)), both(*(a.defined for a in args)))
            case Call():
                args = [self.value(arg) for arg in expr.args]
                return Value(getattr(tirx, expr.name)(*(a.tir for a in args)), both(*(a.defined for a in args)))
            case Cast():
                inner = self.value(expr.value)
                make = T.reinterpret if expr.bits else tirx.Cast
                return Value(make(expr.dtype, inner.tir), inner.defined)
            case Broadcast():
                inner = self.value(expr.value)
                return Value(tirx.Broadcast(inner.tir, expr.lanes), inner.defined)
            case Ramp():
                base, stride = self.value(expr.base), self.value(expr.stride)
                return Value(tirx.Ramp(base.tir, stride.tir, expr.lanes), both(base.defined, stride.defined))
            case Let():
                inner = self.value(expr.value)
                self.bound[expr.var] = Value(self.hold(inner.tir, expr.var.dtype), inner.defined)
                return self.value(expr.body)
            case Choice():
                return self._choice(expr)
            case Load():
                place, defined = self.place(expr.index, expr.buffer.dtype)
                if defined is not None:
                    self.require(defined, expr.site)
                return self.load(expr, place, defined)
            case Shuffle():
                return self.exchanged(expr)
        raise UsageError(f"kernel {self.name}: expression {type(expr).__name__} is not supported by the fast engine")

    def place(self, index: Expr, dtype: str) -> tuple[Place, Any]:
        """Where ``index`` into a buffer of ``dtype`` points, and whether that is defined."""
        from tvm import tirx

        def wide(expr: Expr) -> tuple[Any, Any]:
            found = self.value(expr)
            return tirx.Cast("int64", found.tir), found.defined

        lanes = lanes_of(dtype)
        if lanes > 1:
            if lanes_of(index.dtype) > 1:
                raise UsageError(f"kernel {self.name}: a vector of vectors is not supported by the fast engine")
            first, defined = wide(index)
            return Place(self.opaque(first * constant(lanes)), constant(1), lanes, True), defined
        match index:
            case Ramp():
                first, defined = wide(index.base)
                stride, also = wide(index.stride)
                contiguous = isinstance(index.stride, Const) and index.stride.value == 1
                return Place(self.opaque(first), stride, index.lanes, contiguous), both(defined, also)
            case Broadcast():
                first, defined = wide(index.value)
                return Place(self.opaque(first), constant(0), index.lanes, False), defined
        if lanes_of(index.dtype) > 1:
            raise UsageError(
                f"kernel {self.name}: an index that is a vector but no ramp is not supported by the fast engine"
            )
        first, defined = wide(index)
        return Place(self.opaque(first), constant(1), 1, True), defined

    def _choice(self, expr: Choice) -> Value:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        condition = self.value(expr.condition)
        if not (_acts(expr.then) or _acts(expr.otherwise)):
            then, other = self.value(expr.then), self.value(expr.otherwise)
            pick = tirx.Select if lanes_of(expr.condition.dtype) > 1 else tirx.if_then_else
            yes = tirx.IntImm("bool", 1)
            defined = None
            if then.defined is not None or other.defined is not None:
                defined = tirx.Select(condition.tir, then.defined or yes, other.defined or yes)
            return Value(pick(condition.tir, then.tir, other.tir), both(condition.defined, defined))
        if lanes_of(expr.condition.dtype) > 1:
            raise UsageError(f"kernel {self.name}: a choice lane by lane between loads is not supported")
        load, store = self.scratch(expr.dtype)
        known, note = self.scratch("bool")
        may_be_undefined = False
        with T.If(condition.tir):
            for frame, side in ((T.Then, expr.then), (T.Else, expr.otherwise)):
                with frame():
                    found = self.value(side)
                    store(found.tir)
                    may_be_undefined |= found.defined is not None
                    note(tirx.IntImm("bool", 1) if found.defined is None else found.defined)
        defined = T.bind(known()) if may_be_undefined else None
        return Value(load() if lanes_of(expr.dtype) > 1 else T.bind(load()), both(condition.defined, defined))

    def opaque(self, tir: Any) -> Any:
        """An int64 through memory: TVM's code generator reasons about what it knows of an index, for seconds."""
        from tvm.script.ir_builder import tirx as T

        load, store = self.scratch("int64")
        store(tir)
        return T.bind(load())

    def hold(self, tir: Any, dtype: str) -> Any:
        """``tir`` evaluated here. A vector goes through memory: TVM's lowering fails on a bound vector of floats."""
        from tvm.script.ir_builder import tirx as T

        if lanes_of(dtype) == 1:
            return T.bind(tir)
        load, store = self.scratch(dtype)
        store(tir)
        return load()


def _acts(expr: Expr) -> bool:
    """Whether evaluating ``expr`` emits a check, which must not run where the expression would not."""
    return any(isinstance(part, Load) or _divides(part) for part in walk(expr))


def _divides(expr: Expr) -> bool:
    """Whether it is an integer division by what may be 0."""
    if not isinstance(expr, Op) or expr.name not in ("//", "%", "trunc%", "/"):
        return False
    by = expr.args[1].value if isinstance(expr.args[1], Broadcast) else expr.args[1]
    return element_of(expr.dtype).startswith(("int", "uint")) and not (isinstance(by, Const) and by.value != 0)


def reads_shared(expr: Expr) -> bool:
    """Whether ``expr`` reads memory that other threads may write."""
    return any(isinstance(part, Load) and part.buffer.scope != LOCAL for part in walk(expr))


def _constant(expr: Const) -> Any:
    from tvm import tirx

    make = tirx.FloatImm if element_of(expr.dtype).startswith(("float", "bfloat")) else tirx.IntImm
    return make(expr.dtype, expr.value)


def size_of(dtype: str) -> int:
    """Bytes of a value of ``dtype``, all lanes."""
    return bytes_of(dtype) * lanes_of(dtype)


def _named(name: str) -> Callable[..., Any]:
    def make(*args: Any) -> Any:
        from tvm import tirx

        return getattr(tirx, name)(*args)

    return make


_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": _named("Add"), "-": _named("Sub"), "*": _named("Mul"), "/": _named("Div"), "//": _named("FloorDiv"),
    "%": _named("FloorMod"), "trunc%": _named("Mod"), "max": _named("Max"), "min": _named("Min"), "==": _named("EQ"),
    "!=": _named("NE"), "<": _named("LT"), "<=": _named("LE"), ">": _named("GT"), ">=": _named("GE"),
    "and": _named("And"), "or": _named("Or"), "not": _named("Not"), "&": _named("bitwise_and"),
    "|": _named("bitwise_or"), "^": _named("bitwise_xor"), "<<": _named("shift_left"), ">>": _named("shift_right"),
}  # fmt: skip
