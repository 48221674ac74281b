"""What the two paths of the matrix kernel share: the operands, and how work is spread over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer
from tvm.tirx.script.builder import ir as T

from .tiles import CHUNK, Tile
from .vectors import load

WORTH_WAKING = 1_000_000
"""Fused multiply-adds, or about as long in other work, below which waking the other threads does not pay."""
FEW = 2
"""The smallest number of rows that is not one."""


@dataclass(frozen=True)
class Layer:
    """What distinguishes one linear layer's kernel from another's: y [*leading, n] from x [*leading, k]."""

    leading: tuple[int | None, ...]
    """The dimensions before the last, None where symbolic."""
    n: int
    k: int
    by_row: bool
    """The weight is [n, k] if true, [k, n] if not."""
    dtypes: tuple[str, ...]
    """Of x, the weight and y: float32 or float16."""


@dataclass(frozen=True)
class Operands:
    """The three matrices of a kernel under construction, leading dimensions folded into one."""

    x: Buffer
    w: Buffer
    y: Buffer
    leading: Sequence[Expr | int]
    layer: Layer
    tile: Tile

    @property
    def n(self) -> int:
        """Columns of y."""
        return self.layer.n

    @property
    def k(self) -> int:
        """Columns of x."""
        return self.layer.k

    @property
    def rows(self) -> Expr | int:
        """Rows of x and y."""
        return prod(self.leading)

    @property
    def chunks(self) -> int:
        """Tasks that the columns of y are cut into."""
        return -(-self.n // CHUNK)

    def row(self, number: Expr) -> list[Expr]:
        """The indices, in x and y, of the row with this number."""
        indices: list[Expr] = []
        real = [i for i, extent in enumerate(self.leading) if not (isinstance(extent, int) and extent == 1)]
        for i in reversed(range(len(self.leading))):
            if i not in real:
                indices.append(tirx.const(0, "int64"))
            elif i == real[0]:
                indices.append(number)
            else:
                indices.append(number % self.leading[i])
                number = number // self.leading[i]
        return indices[::-1]

    def weight(self, column: Expr, at: Expr) -> Expr:
        """The one weight that takes x[.., at] to y[.., column]."""
        return load(self.w, [column], at, 1) if self.layer.by_row else load(self.w, [at], column, 1)

    def spread(self, tasks: Expr | int, work_per_row: int, body: Callable[[Expr], None]) -> None:
        """Run `body(task)` for every task, on all threads if there is enough to do. The results cannot differ."""

        def loop(kind: Callable[..., AbstractContextManager[Expr]]) -> None:
            with kind(0, tasks) as task:
                body(task)

        enough = -(-WORTH_WAKING // work_per_row)
        # A branch for fewer rows than there can be is not only useless: TVM's simplifier, knowing that rows are
        # absent there, stumbles over the divisions by their number.
        when(enough <= FEW or self.rows >= enough, lambda: loop(T.parallel), lambda: loop(T.serial))


def when(condition: Expr | bool, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
    """Emit `if condition: then() else: otherwise()`, or only the branch taken if the condition is known already."""
    if isinstance(condition, bool):
        if condition:
            then()
        elif otherwise is not None:
            otherwise()
        return
    with T.If(condition):
        with T.Then():
            then()
        if otherwise is not None:
            with T.Else():
                otherwise()


def over_depth(total: int, step: Callable[[Expr, int], None]) -> None:
    """`step(k, width)` for all k below `total`, four at a time and what is left one by one."""
    whole = total // 4
    if whole:
        with T.serial(0, whole) as quad:
            step(quad * 4, 4)
    for at in range(4 * whole, total):
        step(tirx.const(at, "int64"), 1)
