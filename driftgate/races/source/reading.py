"""From the text of a generated source to a `Listing`. TVM writes one statement a line; any other line is refused."""

from __future__ import annotations

import re

from driftgate.outcome import UsageError
from driftgate.races.source import syntax
from driftgate.races.source.listing import BARRIER, BIND, EXIT, HEAD, STORE, Array, Block, Listing, Statement

_HEAD = re.compile(r"(for|while|if) \((.*)\) \{")
_EXIT = re.compile(r"if \((.*)\) \{ (?:break|return); \}")
_VECTOR_STORE = re.compile(r"vstore(2|3|4|8|16)\((.*)\);")
_CAST = re.compile(r"\((?:(?:volatile|device|threadgroup|thread|__local|__global) )*(\w+)\*\)")


def read(source: str, kind: str, function: str | None = None) -> Listing:
    """The kernel ``function`` of ``source``, or its only one; ``kind`` is the kind of target, such as ``metal``.

    Lines are counted from 1 in ``source``. Raises UsageError for a kind that is not read, a function that is not there
    or not the only one, and, with its number, a line that is no statement of a known form.
    """
    if kind not in syntax.KINDS:
        raise UsageError(f"source of {kind!r} is not read: there are {', '.join(syntax.KINDS)}")
    names = list(dict.fromkeys(syntax.ENTRY[kind].findall(source)))
    if function is None and len(names) != 1:
        raise UsageError(f"the {kind} source has {len(names)} kernels, so one has to be named: {', '.join(names)}")
    if function is not None and function not in names:
        raise UsageError(f"the {kind} source has no kernel {function!r}: there are {', '.join(names) or 'none'}")
    return _Reader(source, kind, function or names[0]).listing()


class _Reader:
    def __init__(self, source: str, kind: str, function: str) -> None:
        self.source, self.kind, self.function = source, kind, function
        self.arrays: dict[str, Array] = {}
        self.statements: list[Statement] = []
        self.stack: list[Block] = []

    def listing(self) -> Listing:
        # The last one: a declaration of the function may stand above its definition.
        *_, entry = (m for m in syntax.ENTRY[self.kind].finditer(self.source) if m[1] == self.function)
        end = _closing(self.source, entry.end() - 1)
        if end is None or "{" not in self.source[end:]:
            raise UsageError(f"the {self.kind} source of {self.function} ends in its parameters")
        opening = self.source.index("{", end)
        above = self.source[: entry.start()]
        if self.kind == "webgpu":
            self.module_arrays(above)
        else:
            for name, element in syntax.pointers(self.source[entry.end() : end], self.kind):
                self.declare(name, "global", element, None, above.count("\n") + 1)
        self.body(self.source.count("\n", 0, opening) + 2, self.source[opening + 1 :].split("\n")[1:])
        return Listing(self.function, self.kind, tuple(self.arrays.values()), tuple(self.statements))

    def module_arrays(self, above: str) -> None:
        """WGSL declares a kernel's arguments and shared arrays above it."""
        start = max(above.rfind(f"// Function: {self.function}"), 0)
        for number, line in enumerate(above[start:].split("\n"), above.count("\n", 0, start) + 1):
            for name, element in syntax.pointers(line, self.kind):
                self.declare(name, "global", element, None, number)
            if found := syntax.array(line.strip()):
                self.declare(found[0], "shared", found[1], found[2], number)

    def declare(self, name: str, scope: str, element: str, length: int | None, line: int) -> None:
        size = syntax.bytes_of_type(element)
        if size is None and scope != "local":
            raise self.refused(line, f"type {element} of {name}")
        self.arrays[name] = Array(name, scope, size, size * length if size and length else None, line)

    def body(self, first: int, lines: list[str]) -> None:
        for number, line in enumerate(lines, first):
            text = re.sub(r"/\*.*?\*/", "", line).strip()
            if text in ("}", "} else {"):
                if not self.stack:
                    return
                closed = self.stack.pop()
                if text == "} else {":
                    self.stack.append(Block("else", closed.condition, number))
            elif text and not text.startswith("#pragma"):
                self.statement(number, text)
        raise UsageError(f"the {self.kind} source of {self.function} ends inside a block")

    def statement(self, line: int, text: str) -> None:
        if found := _EXIT.fullmatch(text):
            self.add(line, text, EXIT, value=found[1])
        elif found := _HEAD.fullmatch(text):
            self.add(line, text, HEAD, value=found[2])
            self.stack.append(Block(found[1], found[2], line))
        elif syntax.BARRIERS[self.kind].fullmatch(text):
            self.add(line, text, BARRIER)
        elif declared := syntax.array(text):
            self.declare(declared[0], "shared" if declared[3] else "local", declared[1], declared[2], line)
        elif found := _VECTOR_STORE.fullmatch(text):
            self.vector_store(line, text, int(found[1]), found[2])
        elif (at := _assignment(text)) is not None and text.endswith(";"):
            self.assign(line, text, text[:at].strip(), text[at + 1 : -1].strip())
        elif not re.fullmatch(r"\w+ \w+;|var \w+ : [\w<>]+;", text):
            raise self.refused(line, text[:80])

    def assign(self, line: int, text: str, left: str, value: str) -> None:
        if not re.search(r"[\[*]", left):
            # ``int4 v``, ``v``, ``v.x``, ``let v : vec4<f32>``
            found = re.fullmatch(r"(?:let|var) (\w+) : [\w<>]+|(?:const )?(?:\w+ )?(\w+)(?:\.\w)?", left)
            if not found:
                raise self.refused(line, text[:80])
            self.add(line, text, BIND, found[1] or found[2], value=value)
            return
        array = self.target(line, left)
        cast = _CAST.search(left.split(array.name, maxsplit=1)[0])
        size = syntax.bytes_of_type(cast[1]) if cast else array.element
        self.store(line, text, array, left, value, size)

    def vector_store(self, line: int, text: str, lanes: int, arguments: str) -> None:
        value, _, place = _arguments(arguments)
        array = self.target(line, place)
        cast = _CAST.match(place)
        size = syntax.bytes_of_type(cast[1]) if cast else array.element
        self.store(line, text, array, place, value, size and size * lanes)

    def store(self, line: int, text: str, array: Array, place: str, value: str, size: int | None) -> None:
        if size is None and array.scope != "local":
            raise self.refused(line, text[:80])
        self.add(line, text, STORE, array.name, place.replace(array.name, "", 1), value, size)

    def target(self, line: int, left: str) -> Array:
        """The array that is written: the first that is named, since an index follows its array."""
        for word in re.findall(r"\w+", left):
            if word in self.arrays:
                return self.arrays[word]
        raise self.refused(line, left[:80])

    def add(
        self, line: int, text: str, kind: str, name: str = "", place: str = "", value: str = "", size: int | None = None
    ) -> None:
        self.statements.append(Statement(line, text, kind, tuple(self.stack), name, place, value, size))

    def refused(self, line: int, what: str) -> UsageError:
        return UsageError(f"{self.kind} source of {self.function}, line {line}: cannot read {what!r}")


def _closing(text: str, opening: int) -> int | None:
    """Where the parenthesis at ``opening`` closes."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return None


def _assignment(text: str) -> int | None:
    """Where the first plain ``=`` outside of parentheses stands."""
    depth = 0
    for at, character in enumerate(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "=" and depth == 0 and text[at - 1] == " " and text[at + 1 : at + 2] == " ":
            return at
    return None


def _arguments(text: str) -> list[str]:
    """The arguments of a call, split where commas stand outside of parentheses."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]
