"""Which accesses may come between a barrier and the barriers around it: the kernel's control flow as a graph."""

from __future__ import annotations

from dataclasses import dataclass

from driftgate.races.kernel import (
    LOCAL,
    Barrier,
    Const,
    For,
    If,
    Kernel,
    Load,
    Seq,
    Stmt,
    Store,
    While,
    expressions,
    statements,
    walk,
)

Loop = For | While
Edge = tuple[int, Loop | None]
"""A node, and the loop whose next iteration the edge begins."""
Reached = frozenset[tuple[int, frozenset[Loop]]]
"""Sites of accesses, each with the loops whose back edge lies on the way."""


@dataclass(frozen=True)
class Around:
    """The accesses that a barrier may keep apart."""

    before: Reached
    after: Reached
    loops: tuple[Loop, ...]
    """The loops around the barrier, the outermost first."""


def around(kernel: Kernel, number: int) -> Around:
    """The accesses that threads may reach from barrier ``number``, in either direction, without another barrier.

    Both branches of a condition may be taken, and a loop may end at once unless its extent is a number above 0.
    """
    graph = _Graph(kernel)
    start = graph.barriers[number]
    return Around(graph.reach(start, graph.previous), graph.reach(start, graph.next), _enclosing(kernel.body, number))


def _enclosing(stmt: Stmt, number: int) -> tuple[Loop, ...]:
    """Loops around barrier ``number``, the outermost first: a statement comes before those inside it."""

    def holds(loop: Stmt) -> bool:
        return any(isinstance(s, Barrier) and s.number == number for s in statements(loop))

    return tuple(s for s in statements(stmt) if isinstance(s, For | While) and holds(s))


class _Graph:
    def __init__(self, kernel: Kernel) -> None:
        self.next: list[list[Edge]] = []
        self.previous: list[list[Edge]] = []
        self.access: dict[int, int] = {}
        self.barriers: dict[int, int] = {}
        self._add(kernel.body, [(self._node([]), None)])

    def _node(self, tails: list[Edge]) -> int:
        node = len(self.next)
        self.next.append([])
        self.previous.append([])
        self._join(tails, node)
        return node

    def _join(self, tails: list[Edge], node: int, loop: Loop | None = None) -> None:
        for tail, label in tails:
            self.next[tail].append((node, loop or label))
            self.previous[node].append((tail, loop or label))

    def _event(self, tails: list[Edge], site: int) -> list[Edge]:
        node = self._node(tails)
        self.access[node] = site
        return [(node, None)]

    def _loads(self, stmt: Stmt, tails: list[Edge]) -> list[Edge]:
        for expr in expressions(stmt):
            for part in walk(expr):
                if isinstance(part, Load) and part.buffer.scope != LOCAL:
                    tails = self._event(tails, part.site)
        return tails

    def _add(self, stmt: Stmt, tails: list[Edge]) -> list[Edge]:
        """Append ``stmt`` behind ``tails``; where it ends."""
        if isinstance(stmt, While):
            head = self._node(tails)
            tested = self._loads(stmt, [(head, None)])
            self._join(self._add(stmt.body, tested), head, stmt)
            return tested
        tails = self._loads(stmt, tails)
        match stmt:
            case Seq():
                for part in stmt.body:
                    tails = self._add(part, tails)
            case Store() if stmt.buffer.scope != LOCAL:
                tails = self._event(tails, stmt.site)
            case Barrier():
                node = self._node(tails)
                self.barriers[stmt.number] = node
                tails = [(node, None)]
            case If():
                then = self._add(stmt.then, tails)
                tails = then + (tails if stmt.otherwise is None else self._add(stmt.otherwise, tails))
            case For():
                tails = self._for(stmt, tails)
        return tails

    def _for(self, stmt: For, tails: list[Edge]) -> list[Edge]:
        extent = stmt.extent.value if isinstance(stmt.extent, Const) else None
        head = self._node(tails)
        end = self._node(self._add(stmt.body, [(head, None)]))
        if extent != 1:
            self._join([(end, None)], head, stmt)
        # A loop of a known number of iterations is left only behind its body.
        return [(end, None)] if extent is not None and extent > 0 else [(end, None), (head, None)]

    def reach(self, start: int, edges: list[list[Edge]]) -> Reached:
        """The accesses on ways from ``start``; ``start`` itself stops none, as if the barrier were gone."""
        stops = set(self.barriers.values()) - {start}
        seen: set[tuple[int, frozenset[Loop]]] = set()
        todo = [(start, frozenset[Loop]())]
        while todo:
            node, wrapped = todo.pop()
            for other, loop in edges[node]:
                state = other, wrapped | {loop} if loop is not None else wrapped
                if other not in stops and state not in seen:
                    seen.add(state)
                    todo.append(state)
        return frozenset((self.access[node], wrapped) for node, wrapped in seen if node in self.access)
