"""That a kernel has no race at any size, or a launch that shows one: an argument over two symbolic threads.

Two threads stand for any two: their indices, those of their blocks and the parameters are unknowns within their
bounds, so an answer holds for every launch that the assumptions allow, not for the launches that somebody ran. Values
are mathematical integers: overflow is excluded. A barrier orders memory of every scope.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.evidence import READ_WRITE, WRITE_WRITE
from driftgate.races.kernel import For, If, Kernel, While, has_barrier, statements
from driftgate.races.proofs.assumptions import Assumptions
from driftgate.races.proofs.digits import Term
from driftgate.races.proofs.queries import GaveUp, model
from driftgate.races.proofs.symbolic import is_integer
from driftgate.races.proofs.symbolic_trace import SymbolicAccess
from driftgate.races.proofs.two_threads import TwoThreads

PROVED, WITNESS, UNSUPPORTED = "proved", "witness", "unsupported"


@dataclass(frozen=True)
class Proof:
    """What the argument came to."""

    verdict: str
    """``proved``, ``witness`` or ``unsupported``."""
    reason: str
    kind: str = ""
    """For a witness ``read-write`` or ``write-write``, and what follows."""
    storage: str = ""
    sites: tuple[int, int] | None = None
    threads: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Indices in the block, x first."""
    blocks: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Entries of index arrays that the witness needs: by name, element and value."""
    same_value: tuple[str, ...] = ()
    """Storages that several threads write the same bytes to, which is no conflict that changes anything."""
    pairs: int = 0
    """Pairs of accesses that were argued about."""
    seconds: float = 0.0


def witness_scalars(proof: Proof) -> dict[str, int]:
    """The kernel's integer parameters in a launch that shows the race. UsageError where there is no witness."""
    if proof.verdict != WITNESS:
        raise UsageError(f"there is no witness: the verdict is {proof.verdict}")
    return dict(proof.parameters)


def prove(kernel: Kernel, assumptions: Assumptions, warp: int = 1) -> Proof:
    """Whether two threads of ``kernel`` can conflict in any launch that ``assumptions`` allow.

    With ``warp`` above 1 the threads of a warp are ordered, except where one statement writes for several of them.
    Two writes of equal values to the same element count as no conflict; ``same_value`` names them. Raises UsageError
    for an assumption about what the kernel does not have.
    """
    begun = time.perf_counter()
    _check(kernel, assumptions)
    try:
        found = _unsupported(kernel) or _argue(kernel, assumptions, warp)
    except GaveUp:
        found = Proof(UNSUPPORTED, "the solver gave up")
    return replace(found, seconds=time.perf_counter() - begun)


def _check(kernel: Kernel, given: Assumptions) -> None:
    scalars = {v.name for v in kernel.scalars if is_integer(v.dtype)}
    written = {s.buffer.storage for s in kernel.stores}
    arrays = {b.storage.name for b in kernel.pointers if b.storage not in written}
    for name in (*given.fixed, *given.least, *given.cases, *(n for pair in given.differ for n in pair)):
        if name not in scalars:
            raise UsageError(f"kernel {kernel.name} has no integer parameter {name} to assume something about")
    for name in (*given.distinct, *given.entries):
        if name not in arrays:
            raise UsageError(f"kernel {kernel.name} has no array {name} that it only reads")


def _unsupported(kernel: Kernel) -> Proof | None:
    for stmt in statements(kernel.body):
        if isinstance(stmt, For | While | If) and has_barrier(stmt):
            return Proof(UNSUPPORTED, f"a barrier sits in a loop or branch ({kernel.sites[stmt.site].where})")
    return None


def _argue(kernel: Kernel, given: Assumptions, warp: int) -> Proof:
    pairs, same, possible, reached = 0, set[str](), False, set[int]()
    for values in product(*given.cases.values()):
        case = TwoThreads(kernel, given, dict(zip(given.cases, values, strict=True)), warp)
        if model(case.facts) is None:
            continue
        possible = True
        reached |= {a.site for a in case.first.accesses if a.write and model((*case.facts, a.condition)) is not None}
        for a, b in case.pairs():
            pairs += 1
            met = case.meet(a, b)
            if met is None:
                continue
            if not met.changing:
                same.add(a.storage.name)
                continue
            return replace(_witness(kernel, case, a, b, met.values), pairs=pairs)
    if not possible:
        return Proof(UNSUPPORTED, "no launch with two threads satisfies the assumptions")
    # An argument about what nobody reaches would hold of anything.
    never = sorted({s.site for s in kernel.stores} - reached)
    if never:
        return Proof(UNSUPPORTED, f"under the assumptions no thread reaches {kernel.sites[never[0]].text}", pairs=pairs)
    note = f"; several threads write equal values to {', '.join(sorted(same))}" if same else ""
    text = f"no two threads conflict in any of {pairs} pairs of accesses, at any size{note}"
    return Proof(PROVED, text, same_value=tuple(sorted(same)), pairs=pairs)


def _witness(kernel: Kernel, case: TwoThreads, a: SymbolicAccess, b: SymbolicAccess, values: Any) -> Proof:
    """The model ``values`` in words and numbers."""
    import z3

    def number(term: Term) -> int:
        return int(values.eval(term, model_completion=True).as_long())

    one, other = case.points
    threads = tuple(number(t) for t in one.threads), tuple(number(t) for t in other.threads)
    blocks = tuple(number(t) for t in one.blocks), tuple(number(t) for t in other.blocks)
    arrays: dict[str, dict[int, int]] = {}
    for read in case.reads:
        if z3.is_true(values.eval(read.condition, model_completion=True)):
            arrays.setdefault(read.array, {})[number(read.index)] = number(read.value)
    scalars = {name: number(term) for name, term in case.integers.items()}
    where = "the same block" if blocks[0] == blocks[1] else f"block {blocks[1]}"
    reason = (
        f"thread {threads[0]} of block {blocks[0]} {_does(a)} {a.storage.name} ({kernel.sites[a.site].where}), "
        f"thread {threads[1]} of {where} {_does(b)} the same bytes ({kernel.sites[b.site].where}), "
        f"where {', '.join(f'{name} is {value}' for name, value in scalars.items())}"
    )
    kind = WRITE_WRITE if a.write and b.write else READ_WRITE
    return Proof(WITNESS, reason, kind, a.storage.name, (a.site, b.site), threads, blocks, scalars, arrays)


def _does(access: SymbolicAccess) -> str:
    return "writes" if access.write else "reads"
