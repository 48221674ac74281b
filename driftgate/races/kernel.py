"""A device kernel as the engines, proofs and mutants see it: small nodes, every access and barrier numbered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Any

LOCAL, SHARED, GLOBAL = "local", "shared", "global"


@cache
def lanes_of(dtype: str) -> int:
    """Number of vector lanes of a dtype such as ``float16x4``."""
    found = re.search(r"x(\d+)$", dtype)
    return int(found[1]) if found else 1


@cache
def element_of(dtype: str) -> str:
    """The dtype of one lane: ``float16`` for ``float16x4``."""
    return dtype.rsplit("x", 1)[0] if lanes_of(dtype) > 1 else dtype


@cache
def bytes_of(dtype: str) -> int:
    """Bytes of one element of one lane."""
    element = element_of(dtype)
    return 1 if element == "bool" else int(re.sub(r"\D", "", element)) // 8


@dataclass(frozen=True, eq=False)
class Storage:
    """One piece of memory: a kernel argument in device memory, a block's shared array, or a thread's own array."""

    name: str
    scope: str
    bytes: int | None
    """None for arguments: theirs comes with the launch."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """A storage seen as elements of one dtype. Several buffers may share a storage under different dtypes."""

    name: str
    dtype: str
    """May be a vector, such as ``float16x4``: an index then counts vectors."""
    storage: Storage

    @property
    def scope(self) -> str:
        return self.storage.scope


@dataclass(frozen=True, eq=False)
class Expr:
    """An expression; ``dtype`` is TVM's, with lanes."""

    dtype: str


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A number."""

    value: int | float


@dataclass(frozen=True, eq=False)
class Var(Expr):
    """A thread index, loop variable, parameter or bound value; one object per variable."""

    name: str


@dataclass(frozen=True, eq=False)
class Op(Expr):
    """Arithmetic, a comparison, ``and``/``or`` (which do not evaluate what they need not) or ``not``, by TVM's name."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class Call(Expr):
    """A function of mathematics: exp2, log2, pow, cos, sin, sqrt."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class Cast(Expr):
    """A conversion to ``dtype``; with ``bits``, the same bytes read as ``dtype``."""

    value: Expr
    bits: bool = False


@dataclass(frozen=True, eq=False)
class Choice(Expr):
    """``if_then_else``: the side that is not taken is not evaluated."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, eq=False)
class Let(Expr):
    """``var`` stands for ``value`` in ``body``."""

    var: Var
    value: Expr
    body: Expr


@dataclass(frozen=True, eq=False)
class Ramp(Expr):
    """``base + stride * lane``."""

    base: Expr
    stride: Expr
    lanes: int


@dataclass(frozen=True, eq=False)
class Broadcast(Expr):
    """One value in every lane."""

    value: Expr
    lanes: int


@dataclass(frozen=True, eq=False)
class Load(Expr):
    """A read of ``buffer`` at ``index`` (a vector where the load is one)."""

    buffer: Buffer
    index: Expr
    site: int


@dataclass(frozen=True, eq=False)
class Shuffle(Expr):
    """A value of another lane of the warp: lane + ``delta`` for ``down``, else lane ``delta``; else the own."""

    value: Expr
    delta: Expr
    width: int
    down: bool


@dataclass(frozen=True, eq=False)
class Stmt:
    """A statement."""


@dataclass(frozen=True, eq=False)
class Seq(Stmt):
    """One after another."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Bind(Stmt):
    """``var`` stands for ``value`` from here on."""

    var: Var
    value: Expr


@dataclass(frozen=True, eq=False)
class Store(Stmt):
    """A write to ``buffer``."""

    buffer: Buffer
    index: Expr
    value: Expr
    site: int


@dataclass(frozen=True, eq=False)
class For(Stmt):
    """A serial loop."""

    var: Var
    start: Expr
    extent: Expr
    body: Stmt
    site: int


@dataclass(frozen=True, eq=False)
class While(Stmt):
    """A loop until the condition fails."""

    condition: Expr
    body: Stmt
    site: int


@dataclass(frozen=True, eq=False)
class If(Stmt):
    """A branch."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None
    site: int


@dataclass(frozen=True, eq=False)
class Barrier(Stmt):
    """All threads of the block wait for one another."""

    scope: str
    number: int
    """Counted from 0 in program order."""
    site: int


@dataclass(frozen=True)
class Site:
    """A numbered place of the kernel: a load, a store, a barrier, or a branch or loop with a condition."""

    number: int
    kind: str
    """``load``, ``store``, ``barrier``, ``branch`` or ``loop``."""
    buffer: Buffer | None
    text: str
    """The statement as TVMScript, shortened."""
    line: int
    """Line of the lowered kernel's script."""
    file: str | None = None
    """Source file of the statement, where TVM still knows it."""
    source_line: int | None = None

    @property
    def where(self) -> str:
        """``file:line`` of the source where it is known, else the line of the lowered script."""
        if self.file is None:
            return f"lowered line {self.line}"
        return f"{short_path(self.file)}:{self.source_line}"


def short_path(file: str) -> str:
    """A source path without what depends on the machine: from the package on, or the file's name."""
    parts = PurePath(file).parts
    if "tvm" in parts:
        return str(PurePath(*parts[len(parts) - 1 - parts[::-1].index("tvm") :]))
    return parts[-1] if parts else file


@dataclass(frozen=True, eq=False)
class Kernel:
    """One device function: its launch, its memory and its body."""

    name: str
    grid: tuple[tuple[Var, Expr], ...]
    """Block indices with their extents, which are expressions over the parameters."""
    block: tuple[tuple[Var, int], ...]
    """Thread indices, ``threadIdx.x`` first: the order in which threads are numbered."""
    pointers: tuple[Buffer, ...]
    """Arguments in device memory, in the order of the device function's parameters."""
    scalars: tuple[Var, ...]
    """The other parameters."""
    buffers: tuple[Buffer, ...]
    """All of them, arguments included."""
    body: Stmt
    sites: tuple[Site, ...]
    script: str
    """The lowered kernel as TVMScript; ``Site.line`` counts its lines from 1."""
    nodes: dict[int, Any] = field(default_factory=dict, repr=False)
    """TVM's own nodes, by site."""

    @property
    def threads(self) -> int:
        count = 1
        for _, extent in self.block:
            count *= extent
        return count

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        return tuple(s for s in statements(self.body) if isinstance(s, Barrier))

    @property
    def stores(self) -> tuple[Store, ...]:
        """Stores to memory that threads share."""
        return tuple(s for s in statements(self.body) if isinstance(s, Store) and s.buffer.scope != LOCAL)


def statements(stmt: Stmt) -> Iterator[Stmt]:
    """``stmt`` and everything in it, in program order."""
    yield stmt
    if isinstance(stmt, Seq):
        for part in stmt.body:
            yield from statements(part)
    elif isinstance(stmt, For | While):
        yield from statements(stmt.body)
    elif isinstance(stmt, If):
        yield from statements(stmt.then)
        if stmt.otherwise is not None:
            yield from statements(stmt.otherwise)


def operands(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that ``expr`` is made of, one level down."""
    match expr:
        case Op() | Call():
            return expr.args
        case Cast() | Broadcast():
            return (expr.value,)
        case Choice():
            return (expr.condition, expr.then, expr.otherwise)
        case Let():
            return (expr.value, expr.body)
        case Ramp():
            return (expr.base, expr.stride)
        case Load():
            return (expr.index,)
        case Shuffle():
            return (expr.value, expr.delta)
    return ()


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that ``stmt`` itself evaluates, not those of statements inside it."""
    match stmt:
        case Bind():
            return (stmt.value,)
        case Store():
            return (stmt.index, stmt.value)
        case For():
            return (stmt.start, stmt.extent)
        case While() | If():
            return (stmt.condition,)
    return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """``expr`` and everything in it; operands first, in the order of evaluation."""
    for part in operands(expr):
        yield from walk(part)
    yield expr


def has_barrier(stmt: Stmt) -> bool:
    """Whether threads wait for one another somewhere in ``stmt``."""
    return any(isinstance(s, Barrier) for s in statements(stmt))


def meets(stmt: Stmt) -> bool:
    """Whether threads meet in ``stmt``: at a barrier, or at a shuffle."""
    return any(
        isinstance(s, Barrier) or any(isinstance(e, Shuffle) for x in expressions(s) for e in walk(x))
        for s in statements(stmt)
    )
