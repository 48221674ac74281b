"""The accesses of one symbolic thread: what it may touch, under which condition, with which value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from driftgate.outcome import UsageError
from driftgate.races.kernel import (
    GLOBAL,
    LOCAL,
    Barrier,
    Bind,
    Buffer,
    For,
    If,
    Kernel,
    Load,
    Seq,
    Stmt,
    Storage,
    Store,
    While,
    bytes_of,
    lanes_of,
    statements,
)
from driftgate.races.proofs.digits import Term
from driftgate.races.proofs.symbolic import Lanes, Terms, constant_of, is_integer, opaque

Loop = For | While


@dataclass(frozen=True, eq=False)
class SymbolicAccess:
    """One load or store of memory that threads share."""

    site: int
    buffer: Buffer
    write: bool
    epoch: int
    """Barriers above it in the program."""
    condition: Term
    lanes: Lanes
    value: Term
    """What a store writes; None for a load."""
    iterations: Mapping[Loop, Term]
    """For each loop around it the number of the iteration, from 0."""

    @property
    def storage(self) -> Storage:
        return self.buffer.storage


@dataclass(frozen=True, eq=False)
class ArrayRead:
    """One load of an index array."""

    array: str
    index: Term
    value: Term
    condition: Term


@dataclass(frozen=True)
class Point:
    """A symbolic thread: its indices in the block, and those of its block."""

    name: str
    threads: tuple[Term, ...]
    blocks: tuple[Term, ...]


def point(kernel: Kernel, name: str, block: str) -> Point:
    """A thread called ``name`` in a block called ``block``; threads that name one block share its indices."""
    import z3

    return Point(
        name,
        tuple(z3.Int(f"{var.name}#{name}") for var, _ in kernel.block),
        tuple(z3.Int(f"{var.name}#{block}") for var, _ in kernel.grid),
    )


def parameters(kernel: Kernel, fixed: Mapping[str, int]) -> dict[str, Term]:
    """A term for each parameter of the kernel: a number where ``fixed`` has one."""
    import z3

    return {
        v.name: z3.IntVal(fixed[v.name]) if v.name in fixed else opaque(v.name, v.dtype, ()) for v in kernel.scalars
    }


class Trace:
    """The accesses of one thread, in program order, found by one symbolic pass over the kernel.

    A loop's body is passed once, in any iteration. A thread's own arrays are followed where their index is a number
    and forgotten where a loop or branch may have changed them. Argument arrays that the kernel does not write are
    functions of the index. ``stable`` says that a load outside loops gives threads that read the same element the same
    value, as it does where nothing races with it; any other load gives an unknown.
    """

    def __init__(self, kernel: Kernel, where: Point, scalars: Mapping[str, Term], stable: bool = False) -> None:
        self.terms = Terms(where.name, self._load)
        self.stable = stable
        self.accesses: list[SymbolicAccess] = []
        self.reads: list[ArrayRead] = []
        """Integer loads of arrays that the kernel does not write."""
        self.written = {s.buffer.storage for s in kernel.stores}
        self.local: dict[Storage, dict[tuple[int, int, str], Term]] = {}
        self.iterations: dict[Loop, Term] = {}
        self.epoch = 0
        env = self.terms.env
        env |= {v: scalars[v.name] for v in kernel.scalars}
        env |= {v: term for (v, _), term in zip(kernel.block, where.threads, strict=True)}
        env |= {v: term for (v, _), term in zip(kernel.grid, where.blocks, strict=True)}
        self.launched = [t >= 0 for t in (*where.threads, *where.blocks)]
        self.launched += [t < extent for t, (_, extent) in zip(where.threads, kernel.block, strict=True)]
        self.launched += [b < self.terms.term(x) for b, (_, x) in zip(where.blocks, kernel.grid, strict=True)]
        self._run(kernel.body)

    @property
    def facts(self) -> list[Term]:
        """What holds of the thread wherever it is: its indices are in range, and quotients are what they should be."""
        return [*self.launched, *self.terms.division.facts]

    def _run(self, stmt: Stmt) -> None:
        terms = self.terms
        match stmt:
            case Seq():
                for part in stmt.body:
                    self._run(part)
            case Bind():
                terms.env[stmt.var] = terms.term(stmt.value)
            case Store():
                self._store(stmt)
            case Barrier():
                self.epoch += 1
            case If():
                self._branch(stmt)
            case For():
                start, extent = terms.term(stmt.start), terms.term(stmt.extent)

                def enter(number: Term) -> Term:
                    terms.env[stmt.var] = start + number
                    return number < extent

                self._loop(stmt, enter)
            case While():
                self._loop(stmt, lambda _: terms.term(stmt.condition))
            case _:
                raise UsageError(f"the prover does not know the statement {type(stmt).__name__}")

    def _branch(self, stmt: If) -> None:
        import z3

        condition = self.terms.term(stmt.condition)
        before = {storage: dict(values) for storage, values in self.local.items()}
        with self.terms.under(condition):
            self._run(stmt.then)
        self.local = {storage: dict(values) for storage, values in before.items()}
        if stmt.otherwise is not None:
            with self.terms.under(z3.Not(condition)):
                self._run(stmt.otherwise)
        self.local = before
        self._forget(stmt)

    def _loop(self, stmt: Loop, enter: Callable[[Term], Term]) -> None:
        self._forget(stmt)
        number = self.terms.fresh("iteration", "int32")
        self.iterations[stmt] = number
        with self.terms.under(number >= 0):
            self.terms.path.append(enter(number))
            self._run(stmt.body)
        del self.iterations[stmt]
        self._forget(stmt)

    def _forget(self, stmt: Stmt) -> None:
        for part in statements(stmt):
            if isinstance(part, Store):
                self.local.pop(part.buffer.storage, None)

    def _store(self, stmt: Store) -> None:
        lanes, value = self.terms.lanes(stmt.index), self.terms.term(stmt.value)
        if stmt.buffer.scope != LOCAL:
            self._record(stmt.site, stmt.buffer, lanes, value)
            return
        key = _bytes(stmt.buffer, lanes, stmt.value.dtype)
        known = self.local.setdefault(stmt.buffer.storage, {})
        for other in [k for k in known if key is None or (k[0] < key[1] and key[0] < k[1])]:
            del known[other]
        if key is not None:
            known[key] = value

    def _load(self, expr: Load, lanes: Lanes) -> Term:
        storage = expr.buffer.storage
        if storage.scope == LOCAL:
            key = _bytes(expr.buffer, lanes, expr.dtype)
            value = self.terms.fresh(storage.name, expr.dtype)
            return value if key is None else self.local.setdefault(storage, {}).setdefault(key, value)
        self._record(expr.site, expr.buffer, lanes, None)
        starts = tuple(start for start, _ in lanes)
        if storage.scope == GLOBAL and storage not in self.written:
            value = opaque(f"{storage.name}[]", expr.dtype, starts)
            if is_integer(expr.dtype):
                self.reads.append(ArrayRead(storage.name, starts[0], value, self._condition()))
            return value
        if self.stable and not self.iterations:
            return opaque(f"{storage.name}@{expr.site}", expr.dtype, starts)
        return self.terms.fresh(storage.name, expr.dtype)

    def _record(self, site: int, buffer: Buffer, lanes: Lanes, value: Term) -> None:
        write, condition = value is not None, self._condition()
        self.accesses.append(
            SymbolicAccess(site, buffer, write, self.epoch, condition, lanes, value, dict(self.iterations))
        )

    def _condition(self) -> Term:
        import z3

        return z3.And(self.terms.path) if self.terms.path else z3.BoolVal(True)


def _bytes(buffer: Buffer, lanes: Lanes, dtype: str) -> tuple[int, int, str] | None:
    """First byte, end and dtype of an access whose index is a number; None for any other."""
    if len(lanes) != 1:
        return None
    (start, count), size = lanes[0], lanes_of(buffer.dtype) * bytes_of(buffer.dtype)
    first = constant_of(start)
    return None if first is None else (first * size, (first + count) * size, dtype)
