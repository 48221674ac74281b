"""Whether an index stays inside an array, told from the loops around it: what is certain needs no check at run time."""

from __future__ import annotations

from collections.abc import Mapping

from driftgate.races.kernel import Broadcast, Cast, Const, Expr, Op, Ramp, Var

Range = tuple[int, int]
"""Smallest and largest value."""


def within(index: Expr, known: Mapping[Var, Range], size: int) -> bool:
    """Whether every lane of ``index`` is in 0 to ``size`` - 1; False where that is not certain."""
    found = _range(index, known)
    return found is not None and found[0] >= 0 and found[1] < size


def _range(expr: Expr, known: Mapping[Var, Range]) -> Range | None:
    match expr:
        case Const():
            return int(expr.value), int(expr.value)
        case Var():
            return known.get(expr)
        case Cast() | Broadcast():
            return _range(expr.value, known)
        case Ramp():
            base, stride = _range(expr.base, known), _range(expr.stride, known)
            if base is None or stride is None:
                return None
            steps = [n * (expr.lanes - 1) for n in stride]
            return base[0] + min(0, *steps), base[1] + max(0, *steps)
        case Op():
            sides = [_range(arg, known) for arg in expr.args]
            if len(sides) != 2 or sides[0] is None or sides[1] is None:
                return None
            return _arithmetic(expr.name, sides[0], sides[1])
    return None


def _arithmetic(name: str, left: Range, right: Range) -> Range | None:
    (a, b), (c, d) = left, right
    if name == "+":
        return a + c, b + d
    if name == "-":
        return a - d, b - c
    if name == "*":
        products = (a * c, a * d, b * c, b * d)
        return min(products), max(products)
    if c == d and c > 0:
        if name == "//":
            return a // c, b // c
        if name == "%":
            return (a % c, b % c) if a // c == b // c else (0, c - 1)
    return None
