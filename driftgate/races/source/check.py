"""What the generated source of the merge kernel has to show: everybody reads the LSE, waits, then one thread stores."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races import catalog
from driftgate.races.catalog import Shape
from driftgate.races.lowering import lower
from driftgate.races.source import syntax
from driftgate.races.source.codegen import emit
from driftgate.races.source.kept import barriers_kept, device_name
from driftgate.races.source.listing import BARRIER, EXIT, STORE, Block, Listing, SourceFinding, Statement
from driftgate.races.source.reading import read
from driftgate.target import TargetSpec

__all__ = ["HEAD_DIMS", "SourceFinding", "barriers_kept", "check", "merge_order"]

HEAD_DIMS = (128, 256, 512)
"""Where a row of the merge has as many threads as a warp of 32, or more."""


def merge_order(
    source: str, target: str, lse: str = "S", *, function: str | None = None, formal: bool = False
) -> tuple[SourceFinding, ...]:
    """What the generated ``source`` lacks for its merge to be free of races on its argument ``lse``; empty if nothing.

    ``target`` is a kind of target, such as ``metal``; ``function`` the kernel, needed where the source has several.
    Between every read of ``lse`` and every store to it there has to be a barrier that all threads reach, and the store
    has to stand under a condition that leaves one thread a row: one index of every axis that its place does not depend
    on. With ``formal`` a barrier counts only if the language says that it orders device memory. That different rows
    are different places is not looked at. Raises UsageError for a source that cannot be read, or without ``lse`` or
    without reads of it or stores to it.
    """
    listing = read(source, target, function)
    name = next((a.name for a in listing.arrays if a.name in (lse, f"{lse}_ptr") and a.scope == "global"), None)
    if name is None:
        given = ", ".join(a.name for a in listing.arrays if a.scope == "global")
        raise UsageError(f"{target} source of {listing.function} has no argument {lse!r}: there are {given}")
    stores = [s for s in listing.statements if s.kind == STORE and s.name == name]
    reads = listing.reads(name)
    if not stores or not reads:
        lacks = "stores to" if not stores else "reads"
        raise UsageError(f"{target} source of {listing.function} never {lacks} {name}: it is no merge")
    findings: list[SourceFinding] = []
    for store in stores:
        findings += _order(listing, name, reads, store, formal)
        findings += _guard(listing, name, store)
    return tuple(findings)


def _order(
    listing: Listing, name: str, reads: tuple[Statement, ...], store: Statement, formal: bool
) -> list[SourceFinding]:
    """A barrier between each read and ``store``, unless the thread that stores is the one that reads."""
    own = _guards(listing, store)
    others = [r for r in reads if not (own and own <= set(r.blocks))]
    looped = [r for r in others if any(b.kind in ("for", "while") and b in store.blocks for b in r.blocks)]
    if looped:
        text = f"line {looped[0].line} reads {name} and line {store.line} stores it in the same loop, in every pass"
        return [_finding("loop", text, looped[0], store)]
    before = [r for r in others if r.line <= store.line]
    # A barrier after the last read before the store is after all of them.
    pairs = [(r, store) for r in before[-1:]] + [(store, r) for r in others if r.line > store.line]
    return next(([found] for first, second in pairs if (found := _between(listing, name, first, second, formal))), [])


def _between(listing: Listing, name: str, first: Statement, second: Statement, formal: bool) -> SourceFinding | None:
    """What is wrong with the barriers between two statements of which one stores ``name``."""
    between = [
        s
        for s in listing.statements
        if s.kind == BARRIER and first.line < s.line < second.line and set(s.blocks) <= set(second.blocks)
    ]
    met = [b for b in between if not _divergent(listing, b)]
    verbs = ("stores", "reads") if first.kind == STORE and first.name == name else ("reads", "stores")
    text = f"line {first.line} {verbs[0]} {name}, line {second.line} {verbs[1]} it"
    if not between:
        where = f"no barrier between line {first.line} and line {second.line}"
        return _finding("no barrier", f"{where}: {text}", first, second)
    if not met:
        why = f"the barrier at line {between[-1].line} stands under a condition on a thread index"
        return _finding("divergent barrier", f"{why}: {text}", first, between[-1], second)
    if formal and not any(syntax.orders_device_memory(b.text, listing.kind) for b in met):
        why = f"the barrier at line {met[-1].line} orders no device memory, by the letter of the language"
        return _finding("no fence", f"{why}: {text}", first, met[-1], second)
    return None


def _guard(listing: Listing, name: str, store: Statement) -> list[SourceFinding]:
    """A condition around ``store`` that one thread of a row fulfils."""
    used = frozenset().union(*(syntax.thread_axes(s.place + " " + s.value) for s in listing.statements))
    needed = used - syntax.thread_axes(listing.expanded(store.place))
    pinned = frozenset().union(*(_pinned(listing, block) for block in store.blocks))
    if needed <= pinned:
        return []
    axes = " and ".join(f"thread index {axis}" for axis in sorted(needed - pinned))
    which = f"every thread stores {name} at line {store.line}" if not pinned else f"several threads store {name}"
    return [_finding("no guard", f"{which}: no condition leaves a single {axes}", store)]


def _guards(listing: Listing, s: Statement) -> set[Block]:
    return {block for block in s.blocks if _pinned(listing, block)}


def _pinned(listing: Listing, block: Block) -> frozenset[str]:
    return syntax.pinned_axes(listing.expanded(block.condition)) if block.kind == "if" else frozenset()


def _divergent(listing: Listing, barrier: Statement) -> bool:
    """Whether a condition on a thread index keeps threads away from ``barrier``.

    A condition on what was stored to a thread's own array is not followed.
    """
    around = set(barrier.blocks)
    left = [
        s
        for s in listing.statements
        if s.kind == EXIT and (("return" in s.text and s.line < barrier.line) or (s.blocks and set(s.blocks) <= around))
    ]
    conditions = [block.condition for block in barrier.blocks] + [s.value for s in left]
    inside = [block.condition for s in left for block in s.blocks]
    return any(syntax.thread_axes(listing.expanded(condition)) for condition in (*conditions, *inside))


def _finding(kind: str, text: str, *statements: Statement) -> SourceFinding:
    return SourceFinding(kind, text, tuple((s.line, s.text) for s in statements))


def check(
    spec: TargetSpec,
    head_dims: Collection[int] = HEAD_DIMS,
    heads: int = 8,
    dtype: str = "float16",
    *,
    kv_heads: int = 1,
    kernels: Collection[str] = ("merge",),
    lse: str = "S",
    formal: bool = False,
    build: Callable[[str, Shape, TargetSpec], Any] = catalog.build,
) -> list[dict[str, Any]]:
    """Generate the source of ``kernels`` for ``spec`` at every head_dim, and judge it. Needs no device.

    One row a kernel and head_dim: ``kernel``, ``target``, ``head_dim``, ``dtype``; ``verdict``: ``pass``, ``fail``, or
    ``refused`` where TVM does not build or lower it; ``findings``, one sentence each (of a refusal its reason); and
    ``lines``, the [number, text] pairs of the source that they name. Every kernel has to have the barriers that its
    lowered form has; ``merge`` has to be in order as well. ``build`` gives the PrimFunc of a kernel; ``lse`` and
    ``formal`` are those of `merge_order`.
    Raises UsageError for a target that is no GPU or an unknown kernel, InfraError where this TVM generates no source.
    """
    if spec.kind not in syntax.KINDS:
        raise UsageError(f"target {spec.name} has no generated source that is read: use {', '.join(syntax.KINDS)}")
    rows = []
    for kernel in kernels:
        catalog.check_kernel(kernel)
        for head_dim in head_dims:
            shape = Shape(head_dim, heads, kv_heads, dtype)
            row = {"kernel": kernel, "target": spec.name, "head_dim": head_dim, "dtype": dtype}
            rows.append({**row, **_judged(kernel, shape, spec, lse, formal, build)})
    return rows


def _judged(
    kernel: str,
    shape: Shape,
    spec: TargetSpec,
    lse: str,
    formal: bool,
    build: Callable[[str, Shape, TargetSpec], Any],
) -> dict[str, Any]:
    try:
        lowered = lower(kernel, build(kernel, shape, spec), spec)
    except UsageError as error:
        return {"verdict": "refused", "findings": [str(error)], "lines": []}
    source = emit(lowered)
    found: list[SourceFinding] = []
    for launch in lowered.launches:
        found += barriers_kept(launch.kernel, source, spec.kind)
        if kernel == "merge":
            found += merge_order(source, spec.kind, lse, function=device_name(launch.kernel), formal=formal)
    return {
        "verdict": "fail" if found else "pass",
        "findings": [finding.text for finding in found],
        "lines": [list(line) for line in dict.fromkeys(line for finding in found for line in finding.lines)],
    }
