"""Division and remainder by a number, as unknowns with their defining equation.

``(16 * b + t // 64) // 15`` and ``(1024 * b + t) % 960`` get the same quotient, which a solver does not see by itself.
"""

from __future__ import annotations

from driftgate.races.proofs.digits import Linear, Term, linear

Key = tuple[frozenset[tuple[Term, int]], int, int]


class Division:
    """Quotients and remainders of one thread, rounded down; ``facts`` defines them."""

    def __init__(self, thread: str) -> None:
        self.thread = thread
        self.facts: list[Term] = []
        self.known: dict[Key, tuple[Term, Term]] = {}
        self.count = 0
        self.quotients: dict[Term, tuple[Linear, int]] = {}

    def divide(self, value: Term, divisor: int) -> tuple[Term, Term]:
        """``value // divisor`` and ``value % divisor`` for a ``divisor`` above 0."""
        high, low = linear(value).split(divisor)
        if not low.parts:
            return high.term(), low.term()
        quotient, remainder = self._small(low, divisor)
        return (high.term() + quotient if high.parts or high.constant else quotient), remainder

    def _small(self, value: Linear, divisor: int) -> tuple[Term, Term]:
        import z3

        key = (frozenset(value.parts.items()), value.constant, divisor)
        if key not in self.known:
            inner = next((t for t, c in value.parts.items() if c == 1 and t in self.quotients), None)
            self.count += 1
            number = self.count
            remainder = z3.Int(f"remainder#{self.thread}.{number}")
            if inner is None:
                quotient = z3.Int(f"quotient#{self.thread}.{number}")
                self.quotients[quotient] = (value, divisor)
            else:
                # (a + y // c) // d == (c * a + y) // (c * d)
                dividend, factor = self.quotients[inner]
                rest = Linear({t: c for t, c in value.parts.items() if t is not inner}, value.constant)
                quotient, _ = self.divide(factor * rest.term() + dividend.term(), factor * divisor)
            self.facts += [value.term() == divisor * quotient + remainder, remainder >= 0, remainder < divisor]
            self.known[key] = quotient, remainder
        return self.known[key]
