"""Why a mutant that no run kills has nothing to be found: arguments that the solver checks, over all inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from driftgate.races.kernel import Const, Expr, For, If, Kernel, Op, Seq, Stmt, Store, While, lanes_of
from driftgate.races.mutation.mutants import ALL_STORE, WIDENED, Mutant
from driftgate.races.proofs.argument import prove
from driftgate.races.proofs.assumptions import Assumptions
from driftgate.races.proofs.digits import Term
from driftgate.races.proofs.queries import GaveUp, model
from driftgate.races.proofs.redundancy import PROVED, redundant
from driftgate.races.proofs.symbolic_trace import Point, SymbolicAccess, Trace, parameters, point


@dataclass(frozen=True)
class Argument:
    """What the solver said."""

    holds: bool
    reason: str


def argument(kernel: Kernel, mutant: Mutant, given: Assumptions | None = None) -> Argument:
    """Whether ``mutant`` adds no conflict to those of ``kernel``, in any launch (that ``given`` allows, where used).

    - A barrier is redundant without the accesses that the mutant takes away.
    - A guard holds for every thread that comes to it; or the kernel has no race without it either.
    - No odd thread reaches a store; or what odd threads write one element further they write there anyway, between the
      same barriers, in memory that the kernel does not read.
    """
    try:
        if mutant.barrier is not None:
            changed = _changed(kernel, lambda stmt: _alone(kernel, stmt, mutant.stores))
            spared = redundant(changed, mutant.barrier)
            return Argument(spared.verdict == PROVED, spared.reason)
        if mutant.kind == ALL_STORE:
            found = _always(kernel, mutant)
            return found if found.holds or given is None else _free(kernel, mutant, given)
        if mutant.kind == WIDENED:
            return _covered(kernel, mutant.stores[0])
    except GaveUp:
        return Argument(False, "the solver gave up")
    return Argument(False, "there is no argument for this class")


def _changed(kernel: Kernel, change: Callable[[Stmt], Stmt]) -> Kernel:
    """``kernel`` with ``change`` made to every statement, those inside first."""

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case Seq():
                stmt = replace(stmt, body=tuple(visit(part) for part in stmt.body))
            case For() | While():
                stmt = replace(stmt, body=visit(stmt.body))
            case If():
                other = None if stmt.otherwise is None else visit(stmt.otherwise)
                stmt = replace(stmt, then=visit(stmt.then), otherwise=other)
        return change(stmt)

    return replace(kernel, body=visit(kernel.body))


def _alone(kernel: Kernel, stmt: Stmt, sites: tuple[int, ...]) -> Stmt:
    """``stmt``, if it is one of the stores ``sites``, by thread 0 alone."""
    if not isinstance(stmt, Store) or stmt.site not in sites:
        return stmt
    first: Expr = Const("bool", 1)
    for var, _ in kernel.block:
        first = Op("bool", "and", (first, Op("bool", "==", (var, Const(var.dtype, 0)))))
    return If(first, stmt, None, stmt.site)


def _free(kernel: Kernel, mutant: Mutant, given: Assumptions) -> Argument:
    """That the kernel has no race without the guard, which is more than that it has no other."""
    changed = _changed(kernel, lambda s: s.then if isinstance(s, If) and s.site == mutant.guard else s)
    proof = prove(changed, given)
    return Argument(proof.verdict == PROVED and not proof.same_value, f"without it, {proof.reason}")


class _Branches(Trace):
    """A trace that remembers under which condition a thread comes to each branch, and the branch's own."""

    def __init__(self, kernel: Kernel, where: Point, scalars: Any) -> None:
        self.branches: dict[int, tuple[Term, Term]] = {}
        super().__init__(kernel, where, scalars)

    def _branch(self, stmt: If) -> None:
        self.branches[stmt.site] = self._condition(), self.terms.term(stmt.condition)
        super()._branch(stmt)


def _always(kernel: Kernel, mutant: Mutant) -> Argument:
    import z3

    trace = _Branches(kernel, point(kernel, "t", "b"), parameters(kernel, {}))
    (site,) = (s for s in trace.branches if s == mutant.guard)
    path, condition = trace.branches[site]
    if model([*trace.facts, path]) is None:
        return Argument(False, "no thread comes to the guard")
    if model([*trace.facts, path, z3.Not(condition)]) is None:
        return Argument(True, "the guard holds for every thread that comes to it, at any size")
    return Argument(False, "the guard may fail")


def _covered(kernel: Kernel, site: int) -> Argument:
    import z3

    where = point(kernel, "t", "b")
    trace = Trace(kernel, where, parameters(kernel, {}))
    (own,) = (a for a in trace.accesses if a.site == site and a.write)
    linear, size = z3.IntVal(0), 1
    for term, (_, extent) in zip(where.threads, kernel.block, strict=True):
        linear, size = linear + size * term, size * extent
    reached = [*trace.facts, own.condition]
    if model(reached) is None:
        return Argument(False, "no thread reaches the store")
    reached.append(linear % 2 == 1)
    if model(reached) is None:
        return Argument(True, "no thread of odd index reaches the store: nothing changes")
    if any(a.storage is own.storage and not a.write for a in trace.accesses):
        return Argument(False, "the kernel reads what the store writes")
    if len(own.lanes) != 1:
        return Argument(False, "the store's lanes do not follow one another")
    last = _elements(own)[1]
    for other in trace.accesses:
        if other is not own and _together(own, other):
            first, end = _elements(other)
            reached.append(z3.Not(z3.And(other.condition, first <= last, last < end)))
    if model(reached) is None:
        return Argument(True, "each thread writes the element further on anyway, between the same barriers")
    return Argument(False, "the element further on may be another thread's")


def _together(own: SymbolicAccess, other: SymbolicAccess) -> bool:
    """Whether ``other`` is a write to the same elements' memory in the same stretch, once for each ``own`` at least."""
    return (
        other.write
        and other.buffer is own.buffer
        and len(other.lanes) == 1
        and other.epoch == own.epoch
        and set(other.iterations) <= set(own.iterations)
    )


def _elements(access: SymbolicAccess) -> tuple[Term, Term]:
    """First and end of what is accessed, in elements of one lane."""
    ((start, count),) = access.lanes
    lanes = lanes_of(access.buffer.dtype)
    return start * lanes, (start + count) * lanes
