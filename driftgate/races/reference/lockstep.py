"""Statements, as threads in lockstep execute them: those that do not take part are masked out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from driftgate.outcome import InfraError, UsageError
from driftgate.races import kernel as ir
from driftgate.races.kernel import Barrier, Kernel, Stmt, lanes_of, meets
from driftgate.races.reference.arithmetic import numpy_dtype
from driftgate.races.reference.group import Group
from driftgate.races.reference.lanes import Mask, active, compiled

ITERATIONS = 10_000_000
"""A loop that runs longer is taken for one that never ends."""

Step = Callable[[Group, Mask], Iterable[Barrier]]
"""Executes a statement; yields at every barrier, to be resumed when all threads of the block are there."""


def step(stmt: Stmt, kernel: Kernel) -> Step:
    """``stmt`` to be executed by groups. Raises UsageError with the kernel's name and the node it does not know."""
    match stmt:
        case ir.Seq():
            return _sequence(stmt, kernel)
        case ir.Bind():
            return _bind(stmt, kernel)
        case ir.Store():
            return _store(stmt, kernel)
        case ir.For():
            return _for(stmt, kernel)
        case ir.While():
            return _while(stmt, kernel)
        case ir.If():
            return _if(stmt, kernel)
        case Barrier():
            return lambda group, mask: (stmt,)
    raise UsageError(f"kernel {kernel.name}: statement {type(stmt).__name__} is not supported by the reference")


def _sequence(stmt: ir.Seq, kernel: Kernel) -> Step:
    parts = [step(part, kernel) for part in stmt.body]

    def sequence(group: Group, mask: Mask) -> Iterator[Barrier]:
        for part in parts:
            yield from part(group, mask)

    return sequence


def _bind(stmt: ir.Bind, kernel: Kernel) -> Step:
    value = compiled(stmt.value, kernel)

    def bind(group: Group, mask: Mask) -> tuple[Barrier, ...]:
        group.values[stmt.var] = value(group, mask)
        return ()

    return bind


def _store(stmt: ir.Store, kernel: Kernel) -> Step:
    if lanes_of(stmt.value.dtype) != lanes_of(stmt.index.dtype) * lanes_of(stmt.buffer.dtype):
        raise UsageError(f"kernel {kernel.name}: a store of {stmt.value.dtype} to {stmt.buffer.dtype} is not supported")
    index, value = compiled(stmt.index, kernel), compiled(stmt.value, kernel)

    def store(group: Group, mask: Mask) -> tuple[Barrier, ...]:
        at = index(group, mask)
        group.store(stmt.buffer, at, value(group, mask), stmt.site, mask)
        return ()

    return store


def _if(stmt: ir.If, kernel: Kernel) -> Step:
    condition, then = compiled(stmt.condition, kernel), step(stmt.then, kernel)
    otherwise = step(ir.Seq(()) if stmt.otherwise is None else stmt.otherwise, kernel)
    together = meets(stmt.then) or (stmt.otherwise is not None and meets(stmt.otherwise))

    def branch(group: Group, mask: Mask) -> Iterator[Barrier]:
        test, sure = condition(group, mask)
        group.findings.hits[stmt.site] += _count(group, mask)
        group.certain(sure, stmt.site, mask)
        if together:
            test = np.full_like(test, group.agreed(test, stmt.site))
        yes, no = active(test, mask), active(~test, mask)
        if yes.any():
            yield from then(group, yes if no.any() else mask)
        if no.any():
            yield from otherwise(group, no if yes.any() else mask)

    return branch


def _for(stmt: ir.For, kernel: Kernel) -> Step:
    start, extent, body = compiled(stmt.start, kernel), compiled(stmt.extent, kernel), step(stmt.body, kernel)
    together, dtype = meets(stmt.body), numpy_dtype(stmt.var.dtype)

    def loop(group: Group, mask: Mask) -> Iterator[Barrier]:
        (first, first_sure), (times, times_sure) = start(group, mask), extent(group, mask)
        for sure in (first_sure, times_sure):
            group.certain(sure, stmt.site, mask)
        if together:
            times = np.full_like(times, group.agreed(times, stmt.site))
        counts = times if mask is None else times[mask]
        _check_length(int(counts.max()), kernel)
        for i in range(int(counts.max())):
            going = active(times > i, mask)
            group.findings.hits[stmt.site] += np.count_nonzero(going)
            group.values[stmt.var] = (first + i).astype(dtype), None
            yield from body(group, mask if (counts > i).all() else going)

    return loop


def _while(stmt: ir.While, kernel: Kernel) -> Step:
    condition, body, together = compiled(stmt.condition, kernel), step(stmt.body, kernel), meets(stmt)

    def loop(group: Group, mask: Mask) -> Iterator[Barrier]:
        rounds = 0
        while True:
            test, sure = condition(group, mask)
            group.certain(sure, stmt.site, mask)
            if together:
                test = np.full_like(test, group.agreed(test, stmt.site))
            going = active(test, mask)
            if not going.any():
                return
            group.findings.hits[stmt.site] += np.count_nonzero(going)
            mask = None if going.all() else going
            rounds += 1
            _check_length(rounds, kernel)
            yield from body(group, mask)

    return loop


def _count(group: Group, mask: Mask) -> int:
    return len(group.numbers) if mask is None else int(np.count_nonzero(mask))


def _check_length(rounds: int, kernel: Kernel) -> None:
    if rounds > ITERATIONS:
        raise InfraError(f"kernel {kernel.name} did not end: a loop runs more than {ITERATIONS} times")
