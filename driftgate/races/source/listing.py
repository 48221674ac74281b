"""One kernel of a generated source: its arrays and its statements, each with its line and the blocks around it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

HEAD, EXIT, BARRIER, STORE, BIND = "head", "exit", "barrier", "store", "bind"


@dataclass(frozen=True)
class SourceFinding:
    """Something that the source lacks, has too much, or has at the wrong place."""

    kind: str
    text: str
    """One sentence with the line numbers."""
    lines: tuple[tuple[int, str], ...] = ()
    """Number, from 1, and text of the lines concerned."""


@dataclass(frozen=True, eq=False)
class Block:
    """Braces around statements."""

    kind: str
    """``for``, ``while``, ``if`` or ``else``."""
    condition: str
    """The text in the parentheses; of an ``else`` its ``if``'s."""
    line: int


@dataclass(frozen=True, eq=False)
class Array:
    """Memory with a name."""

    name: str
    scope: str
    """``global``, ``shared`` or ``local``."""
    element: int | None
    """Bytes of an element, None for a type that is not known."""
    bytes: int | None
    """None for an argument."""
    line: int


@dataclass(frozen=True, eq=False)
class Statement:
    """One line."""

    line: int
    text: str
    kind: str
    blocks: tuple[Block, ...]
    """Those around it, the outermost first."""
    name: str = ""
    """The array that a store writes, or the variable that is bound."""
    place: str = ""
    """Of a store: the text that says where in the array."""
    value: str = ""
    """The text that is evaluated to what is stored or bound, or the condition."""
    bytes: int | None = None
    """What a store writes."""


@dataclass(frozen=True, eq=False)
class Listing:
    """One kernel."""

    function: str
    kind: str
    arrays: tuple[Array, ...]
    """In the order of their declaration, arguments first."""
    statements: tuple[Statement, ...]

    @cached_property
    def bound(self) -> dict[str, str]:
        """Text of the value of each variable that is bound once."""
        values: dict[str, list[str]] = {}
        for s in self.statements:
            if s.kind == BIND:
                values.setdefault(s.name, []).append(s.value)
        return {name: texts[0] for name, texts in values.items() if len(texts) == 1}

    def expanded(self, text: str, depth: int = 8) -> str:
        """``text`` with bound variables replaced by what they stand for."""
        words = [word for word in re.findall(r"(?<![.\w])[A-Za-z_]\w*", text) if word in self.bound]
        if not words or not depth:
            return text
        pattern = r"(?<![.\w])(?:" + "|".join(map(re.escape, dict.fromkeys(words))) + r")\b"
        return self.expanded(re.sub(pattern, lambda found: f"({self.bound[found[0]]})", text), depth - 1)

    def reads(self, name: str) -> tuple[Statement, ...]:
        """The statements that name the array other than to store to it."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return tuple(s for s in self.statements if word.search(s.place) or word.search(s.value))
