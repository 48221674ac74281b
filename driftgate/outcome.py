"""The five outcomes, their exit codes, and the errors that carry them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells report it."""


class Outcome(Enum):
    """How a check, a probe or a whole run ended. The value is the word used in reports."""

    PASS = "pass"
    DRIFT = "drift"
    USAGE = "usage"
    INFRA = "infra"
    NOT_EXERCISED = "not-exercised"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Outcome.PASS: 0,
    Outcome.DRIFT: 1,
    Outcome.USAGE: 2,
    Outcome.INFRA: 3,
    Outcome.NOT_EXERCISED: 4,
}

# A drift that was proved stands, whatever broke afterwards.
_WORST_FIRST = (Outcome.USAGE, Outcome.DRIFT, Outcome.INFRA, Outcome.NOT_EXERCISED, Outcome.PASS)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of ``outcomes``; ``not-exercised`` when there are none, since nothing was shown."""
    return min(outcomes, key=_WORST_FIRST.index, default=Outcome.NOT_EXERCISED)


class DriftgateError(Exception):
    """An error whose text is one line that says what was wrong and what is allowed."""

    outcome: Outcome

    def __init__(self, message: str) -> None:
        # What is quoted in it may have lines of its own.
        super().__init__("\\n".join(message.splitlines()))


class UsageError(DriftgateError):
    """The user asked for something that cannot be."""

    outcome = Outcome.USAGE


class InfraError(DriftgateError):
    """The device, the compiler or a package failed."""

    outcome = Outcome.INFRA
