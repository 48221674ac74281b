"""What a cache lives through, as a line of text: ``a+20 b=a@17 b+9,a+4 a-3 -b``.

A step is ``a+N`` (prefill N new tokens onto sequence a, which begins with its first), several of them joined by commas
(one batch), ``a-N`` (take the last N tokens back), ``b=a@N`` (fork b from the first N tokens of a; ``b=a``: from all),
or ``-a`` (remove a). Tokens are taken from one stream, so that what is refilled differs from what was taken back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driftgate.model import Model
from driftgate.outcome import UsageError
from driftgate.plan import PAGE

MOST_SEQUENCES = 8
"""Alive at one time."""

_STEP = re.compile(
    r"(?P<add>[a-z]\+[0-9]{1,7}(?:,[a-z]\+[0-9]{1,7})*)|(?P<pop>[a-z])-(?P<many>[0-9]{1,7})"
    r"|(?P<child>[a-z])=(?P<parent>[a-z])(?:@(?P<at>[0-9]{1,7}))?|-(?P<gone>[a-z])"
)


@dataclass(frozen=True)
class Part:
    """One sequence's share of a forward."""

    sequence: int
    ids: tuple[int, ...]
    start: int
    """Position of its first token."""
    whole: int
    """Number of the token list, of ``Script.lists``, of which it is a piece."""


@dataclass(frozen=True)
class Step:
    """One operation on the cache."""

    kind: str
    """``forward``, ``popn``, ``fork`` or ``remove``."""
    parts: tuple[Part, ...] = ()
    sequence: int = 0
    tokens: int = 0
    """That ``popn`` takes back."""
    parent: int = 0
    position: int = 0
    """At which ``fork`` branches off."""


@dataclass(frozen=True)
class Script:
    """A history with its tokens."""

    name: str
    text: str
    steps: tuple[Step, ...]
    lists: tuple[tuple[int, ...], ...]
    """Every token list that a sequence had and that is not the beginning of another: what a reference is made for."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it exercises."""
        found = {step.kind for step in self.steps}
        if any(len(step.parts) > 1 for step in self.steps):
            found.add("batch")
        if any(len(part.ids) == 1 and part.start for step in self.steps for part in step.parts):
            found.add("decode")
        return tuple(sorted(found - {"forward"}))

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """Start and length of every piece that was prefilled."""
        return tuple((part.start, len(part.ids)) for step in self.steps for part in step.parts)

    @property
    def forked_chunks(self) -> tuple[tuple[int, int], ...]:
        """Start and length of the pieces of sequences that had forked, or been forked off, by then."""
        forked: set[int] = set()
        found = []
        for step in self.steps:
            if step.kind == "fork":
                forked |= {step.sequence, step.parent}
            found += [(part.start, len(part.ids)) for part in step.parts if part.sequence in forked]
        return tuple(found)


def parse(name: str, text: str, ids: Callable[[int], Sequence[int]], capacity: int) -> Script:
    """The script ``text``; ``ids(n)`` gives the first n tokens of the stream.

    Raises UsageError for a step that cannot be read or cannot be made, and for more tokens than ``capacity`` holds.
    """
    words = text.split()
    if not words:
        raise UsageError("a history has at least one step, such as a+20")
    reader = _Reader(text, capacity)
    for word in words:
        reader.read(word)
    return reader.script(name, tuple(ids(reader.used)))


def of_model(model: Model, name: str, text: str, seed: int) -> Script:
    """The script ``text`` on tokens and in the cache of ``model``; raises as ``parse`` does."""
    return parse(name, text, lambda count: model.prompt(count, seed), model.shape.capacity)


class _Reader:
    """Plays a script on lists of places in the token stream."""

    def __init__(self, text: str, capacity: int) -> None:
        self.text = text
        self.capacity = capacity
        self.used = 0
        self.alive: dict[str, tuple[int, list[int]]] = {}
        self.seen = 0
        self.steps: list[tuple[str, list[tuple[int, list[int], int]], dict[str, int]]] = []

    def refuse(self, word: str, why: str) -> UsageError:
        return UsageError(f"history {self.text!r}: {word}: {why}")

    def read(self, word: str) -> None:
        match = _STEP.fullmatch(word)
        if match is None:
            raise self.refuse(word, "no such step; there are a+N, a+N,b+N, a-N, b=a@N, b=a and -a")
        if match["add"]:
            self._forward(word)
        elif match["pop"]:
            self._popn(word, match["pop"], int(match["many"]))
        elif match["child"]:
            self._fork(word, match["child"], match["parent"], match["at"])
        else:
            number, _ = self._of(word, match["gone"])
            del self.alive[match["gone"]]
            self.steps.append(("remove", [], {"sequence": number}))
        pages = sum(-(-len(places) // PAGE) + 1 for _, places in self.alive.values())
        if pages * PAGE > self.capacity + PAGE * len(self.alive):
            raise self.refuse(word, f"more tokens than the cache of {self.capacity} holds")

    def _of(self, word: str, name: str) -> tuple[int, list[int]]:
        if name not in self.alive:
            raise self.refuse(word, f"there is no sequence {name} then")
        return self.alive[name]

    def _new(self, word: str, name: str, places: list[int]) -> None:
        if name in self.alive:
            raise self.refuse(word, f"sequence {name} is there already")
        if len(self.alive) == MOST_SEQUENCES:
            raise self.refuse(word, f"more than {MOST_SEQUENCES} sequences at one time")
        self.alive[name] = self.seen, places
        self.seen += 1

    def _forward(self, word: str) -> None:
        parts = []
        named = [part.split("+") for part in word.split(",")]
        if len({name for name, _ in named}) < len(named):
            raise self.refuse(word, "a sequence twice in one batch")
        for name, many in named:
            if int(many) < 1 or int(many) > self.capacity:
                raise self.refuse(word, f"1 to {self.capacity} tokens can be prefilled")
            if name not in self.alive:
                self._new(word, name, [])
            number, places = self.alive[name]
            start = len(places)
            places.extend(range(self.used, self.used + int(many)))
            self.used += int(many)
            parts.append((number, list(places), start))
        self.steps.append(("forward", parts, {}))

    def _popn(self, word: str, name: str, many: int) -> None:
        number, places = self._of(word, name)
        if not 0 < many < len(places):
            raise self.refuse(word, f"of {len(places)} tokens 1 to {len(places) - 1} can be taken back")
        del places[-many:]
        self.steps.append(("popn", [], {"sequence": number, "tokens": many}))

    def _fork(self, word: str, child: str, parent: str, at: str | None) -> None:
        number, places = self._of(word, parent)
        position = len(places) if at is None else int(at)
        if not 0 < position <= len(places):
            raise self.refuse(word, f"{parent} has {len(places)} tokens, so a fork is at 1 to {len(places)}")
        self._new(word, child, places[:position])
        fork = {"sequence": self.alive[child][0], "parent": number, "position": position}
        self.steps.append(("fork", [], fork))

    def script(self, name: str, ids: tuple[int, ...]) -> Script:
        wanted = {tuple(places) for _, parts, _ in self.steps for _, places, _ in parts}
        longest = [a for a in wanted if not any(b != a and b[: len(a)] == a for b in wanted)]
        longest.sort()

        def of(number: int, places: list[int], start: int) -> Part:
            whole = next(i for i, a in enumerate(longest) if list(a[: len(places)]) == places)
            return Part(number, tuple(ids[i] for i in places[start:]), start, whole)

        steps = tuple(Step(kind, tuple(of(*part) for part in parts), **rest) for kind, parts, rest in self.steps)
        return Script(name, self.text, steps, tuple(tuple(ids[i] for i in a) for a in longest))
