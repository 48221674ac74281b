"""Expressions of a kernel as terms of an SMT solver: unbounded integers, booleans, and opaque values for the rest.

Integers are mathematical ones: an argument made with them excludes overflow. What the solver need not understand
(floating point, vectors, bits) becomes an uninterpreted function, of which it knows only that equal arguments give
equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.kernel import (
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
    lanes_of,
)
from driftgate.races.proofs.digits import Term
from driftgate.races.proofs.division import Division

Lanes = tuple[tuple[Term, int], ...]
"""The elements that an access touches: ranges, each a first element and a number of elements."""


def is_integer(dtype: str) -> bool:
    """Whether ``dtype`` is a scalar integer."""
    return dtype.startswith(("int", "uint")) and lanes_of(dtype) == 1


def sort_of(dtype: str) -> Any:
    """The solver's sort for ``dtype``: Int, Bool, or the uninterpreted ``Value``."""
    import z3

    if is_integer(dtype):
        return z3.IntSort()
    return z3.BoolSort() if dtype == "bool" else z3.DeclareSort("Value")


def constant_of(term: Term) -> int | None:
    """The integer that ``term`` always is, if it simplifies to one."""
    import z3

    simple = z3.simplify(term)
    return int(simple.as_long()) if z3.is_int_value(simple) else None


def opaque(name: str, dtype: str, args: tuple[Term, ...]) -> Term:
    """A value of ``dtype`` of which only that it depends on nothing but ``args`` is known."""
    import z3

    if not args:
        return z3.Const(f"{name}:{dtype}", sort_of(dtype))
    sorts = [a.sort() for a in args]
    function = z3.Function(f"{name}:{dtype}:{','.join(str(s) for s in sorts)}", *sorts, sort_of(dtype))
    return function(*args)


class Terms:
    """Turns the expressions of one thread into terms.

    ``env`` holds the term of every variable, ``path`` the conditions under which the thread evaluates what it does.
    ``load`` is asked for the value of each load, in the order of evaluation, while ``path`` holds its conditions.
    """

    def __init__(self, thread: str, load: Callable[[Load, Lanes], Term]) -> None:
        self.thread, self.load = thread, load
        self.env: dict[Var, Term] = {}
        self.path: list[Term] = []
        self.division = Division(thread)
        self.unknowns = 0

    def fresh(self, name: str, dtype: str) -> Term:
        """A value of this thread's of which nothing is known."""
        self.unknowns += 1
        return opaque(f"{name}#{self.thread}.{self.unknowns}", dtype, ())

    @contextmanager
    def under(self, condition: Term) -> Iterator[None]:
        """What is evaluated inside is evaluated only where ``condition`` holds."""
        depth = len(self.path)
        self.path.append(condition)
        yield
        del self.path[depth:]

    def lanes(self, index: Expr) -> Lanes:
        """The elements at ``index``; a stride of one makes one range."""
        if isinstance(index, Ramp) and constant_of(self.term(index.stride)) == 1:
            return ((self.term(index.base), index.lanes),)
        return tuple((self.lane(index, n), 1) for n in range(lanes_of(index.dtype)))

    def lane(self, expr: Expr, lane: int) -> Term:
        """Lane ``lane`` of an integer vector; a scalar's own value."""
        match expr:
            case Ramp():
                return self.term(expr.base) + self.term(expr.stride) * lane
            case Broadcast():
                return self.term(expr.value)
            case Op() if expr.name in ("+", "-", "*") and lanes_of(expr.dtype) > 1:
                return _arithmetic(expr.name, *(self.lane(a, lane) for a in expr.args))
            case _ if is_integer(expr.dtype):
                return self.term(expr)
        return self.fresh("lane", expr.dtype.rsplit("x", 1)[0])

    def term(self, expr: Expr) -> Term:
        """``expr`` as a term. UsageError names a node that is not known."""
        match expr:
            case Const():
                return _constant(expr)
            case Var():
                if expr not in self.env:
                    raise UsageError(f"the prover does not know the variable {expr.name}")
                return self.env[expr]
            case Let():
                self.env[expr.var] = self.term(expr.value)
                return self.term(expr.body)
            case Choice():
                return self._choice(expr)
            case Op() if expr.name in ("and", "or") and expr.dtype == "bool":
                return self._short(expr)
            case Op() if expr.name in ("//", "%") and is_integer(expr.dtype):
                return self._divide(expr)
            case Op():
                return _operation(expr, tuple(self.term(a) for a in expr.args))
            case Cast():
                return _cast(expr, self.term(expr.value))
            case Load():
                return self.load(expr, self.lanes(expr.index))
            case Call():
                return opaque(expr.name, expr.dtype, tuple(self.term(a) for a in expr.args))
            case Ramp():
                return opaque("ramp", expr.dtype, (self.term(expr.base), self.term(expr.stride)))
            case Broadcast():
                return opaque("broadcast", expr.dtype, (self.term(expr.value),))
            case Shuffle():
                self.term(expr.value)
                return self.fresh("shuffle", expr.dtype)
        raise UsageError(f"the prover does not know the expression {type(expr).__name__}")

    def _divide(self, expr: Op) -> Term:
        value, by = (self.term(a) for a in expr.args)
        divisor = constant_of(by)
        if divisor is None or divisor <= 0:
            return opaque(f"({expr.name})", expr.dtype, (value, by))
        return self.division.divide(value, divisor)[expr.name == "%"]

    def _choice(self, expr: Choice) -> Term:
        import z3

        condition = self.term(expr.condition)
        if not z3.is_bool(condition):
            raise UsageError(f"the prover does not know a choice on {expr.condition.dtype}")
        with self.under(condition):
            then = self.term(expr.then)
        with self.under(z3.Not(condition)):
            otherwise = self.term(expr.otherwise)
        return z3.If(condition, then, otherwise)

    def _short(self, expr: Op) -> Term:
        import z3

        first = self.term(expr.args[0])
        with self.under(first if expr.name == "and" else z3.Not(first)):
            second = self.term(expr.args[1])
        return z3.And(first, second) if expr.name == "and" else z3.Or(first, second)


def _constant(expr: Const) -> Term:
    import z3

    if is_integer(expr.dtype):
        return z3.IntVal(int(expr.value))
    return z3.BoolVal(bool(expr.value)) if expr.dtype == "bool" else opaque(f"={expr.value}", expr.dtype, ())


def _operation(expr: Op, args: tuple[Term, ...]) -> Term:
    import z3

    name = expr.name
    if name == "not" and expr.dtype == "bool":
        return z3.Not(args[0])
    exact = all(z3.is_int(a) for a in args)
    if name in ("==", "!=") and expr.dtype == "bool" and (exact or all(z3.is_bool(a) for a in args)):
        return args[0] == args[1] if name == "==" else args[0] != args[1]
    if exact and (is_integer(expr.dtype) or expr.dtype == "bool"):
        found = _arithmetic(name, *args)
        if found is not None:
            return found
    return opaque(f"({name})", expr.dtype, args)


def _arithmetic(name: str, a: Term, b: Term) -> Term:
    """Exact arithmetic of integers; None for what has none here."""
    import z3

    match name:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b
        case "max":
            return z3.If(a >= b, a, b)
        case "min":
            return z3.If(a <= b, a, b)
    return None


def _cast(expr: Cast, value: Term) -> Term:
    import z3

    if not expr.bits and is_integer(expr.dtype):
        if z3.is_int(value):
            return value
        if z3.is_bool(value):
            return z3.If(value, z3.IntVal(1), z3.IntVal(0))
    if not expr.bits and expr.dtype == "bool" and z3.is_int(value):
        return value != 0
    if not expr.bits and expr.dtype == "bool" and z3.is_bool(value):
        return value
    return opaque("bits" if expr.bits else "cast", expr.dtype, (value,))
