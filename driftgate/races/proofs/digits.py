"""Equality of two indices, digit by digit: ``256 * row + column`` of two threads agree where rows and columns do.

A solver finds equations with coefficients in the thousands hard, and the same equations between the digits easy. The
split is an equivalence, and each is justified: the lower digits have to be proved to stay below the radix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Term = Any
"""An expression of z3: an integer, a boolean, or an opaque value."""

Holds = Callable[[Term], bool]
"""Whether a condition is proved to hold wherever an access is made."""


@dataclass(frozen=True)
class Linear:
    """A sum of terms that are not sums, each with its coefficient, and a constant."""

    parts: dict[Term, int]
    constant: int

    def term(self) -> Term:
        """The sum as one term."""
        import z3

        terms = [t if c == 1 else c * t for t, c in self.parts.items()]
        return z3.Sum([*terms, z3.IntVal(self.constant)] if self.constant or not terms else terms)

    def split(self, radix: int, constant: int | None = None) -> tuple[Linear, Linear]:
        """``(high, low)`` with ``self == radix * high + low``.

        Terms go where their coefficients say; ``constant`` is the low part's (its remainder where None).
        """
        constant = self.constant % radix if constant is None else constant
        high = {t: c // radix for t, c in self.parts.items() if c % radix == 0}
        low = {t: c for t, c in self.parts.items() if c % radix}
        return Linear(high, (self.constant - constant) // radix), Linear(low, constant)


def linear(term: Term) -> Linear:
    """``term`` as a sum."""
    import z3

    parts: dict[Term, int] = {}
    constant = 0

    def add(part: Term, factor: int) -> None:
        nonlocal constant
        if z3.is_int_value(part):
            constant += factor * part.as_long()
        elif z3.is_add(part):
            for child in part.children():
                add(child, factor)
        elif z3.is_sub(part):
            add(part.arg(0), factor)
            for child in part.children()[1:]:
                add(child, -factor)
        elif z3.is_mul(part) and sum(not z3.is_int_value(c) for c in part.children()) == 1:
            for child in part.children():
                factor *= child.as_long() if z3.is_int_value(child) else 1
            add(next(c for c in part.children() if not z3.is_int_value(c)), factor)
        else:
            parts[part] = parts.get(part, 0) + factor

    add(z3.simplify(term), 1)
    return Linear({t: c for t, c in parts.items() if c}, constant)


def equal(first: Linear, second: Linear, first_holds: Holds, second_holds: Holds) -> list[Term]:
    """Conditions that hold together exactly if ``first == second``."""
    shared = {t for t, c in first.parts.items() if second.parts.get(t) == c}
    first = Linear({t: c for t, c in first.parts.items() if t not in shared}, first.constant)
    second = Linear({t: c for t, c in second.parts.items() if t not in shared}, second.constant)
    coefficients = {abs(c) for side in (first, second) for c in side.parts.values()}
    for radix in sorted(coefficients - {1}, reverse=True):
        split, other = _split(first, radix, first_holds), _split(second, radix, second_holds)
        if split and other and (split[0].parts or other[0].parts):
            return [
                *equal(split[0], other[0], first_holds, second_holds),
                *equal(split[1], other[1], first_holds, second_holds),
            ]
    return [first.term() == second.term()]


def _split(value: Linear, radix: int, holds: Holds) -> tuple[Linear, Linear] | None:
    """High and low digits of ``value``, if the low ones surely are at least 0 and below ``radix``."""
    import z3

    for constant in dict.fromkeys((value.constant % radix, value.constant)):
        high, low = value.split(radix, constant)
        if not low.parts and 0 <= constant < radix:
            return high, low
        if holds(z3.And(low.term() >= 0, low.term() < radix)):
            return high, low
    return None
