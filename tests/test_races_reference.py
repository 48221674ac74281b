"""The races' reference engine: each class of finding planted and absent, and its numbers against NumPy."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from tvm.script import tirx as T

from driftgate import target
from driftgate.kernels.attention import merged
from driftgate.kernels.references import references
from driftgate.outcome import InfraError, UsageError
from driftgate.races import catalog, reference
from driftgate.races import kernel as ir
from driftgate.races.adversary import columns as ranges
from driftgate.races.adversary import demonstrate
from driftgate.races.evidence import (
    DIVERGENT,
    OUT_OF_BOUNDS_READ,
    OUT_OF_BOUNDS_WRITE,
    READ_WRITE,
    UNINITIALISED,
    WRITE_WRITE,
    Setup,
)
from driftgate.races.lowering import lower
from driftgate.races.reference import lockstep
from driftgate.races.reference.accesses import WARP, Accesses, Pair, conflicts, farthest
from driftgate.races.reference.findings import Findings
from driftgate.races.reference.lanes import compiled
from driftgate.seam import CacheConfig

THREADS = 64
LANES = np.arange(THREADS, dtype=np.int32)
A = np.arange(1, THREADS + 1, dtype=np.float32)


@T.prim_func(s_tir=True)
def gather(
    A: T.Buffer((64,), "float32"),
    P: T.Buffer((64,), "int32"),
    B: T.Buffer((64,), "float32"),
    C: T.Buffer((64,), "float32"),
):
    T.func_attr({"tirx.is_scheduled": True})
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("body"):
                B[tx] = A[tx]
                C[tx] = B[P[tx]]


@T.prim_func(s_tir=True)
def scatter(A: T.Buffer((128,), "float16"), P: T.Buffer((128,), "int32"), C: T.Buffer((128,), "float16")):
    T.func_attr({"tirx.is_scheduled": True})
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("body"):
                C[P[bx * 64 + tx]] = A[bx * 64 + tx]


@T.prim_func(s_tir=True)
def mirror(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("body"):
                tile = T.sblock_alloc_buffer((64,), "float32", scope="shared")
                if A[tx] > T.float32(0):
                    tile[tx] = A[tx]
                B[tx] = tile[63 - tx]


@T.prim_func(s_tir=True)
def undefined(A: T.Buffer((64,), "float32"), P: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("body"):
                w = T.sblock_alloc_buffer((1,), "int32", scope="local")
                x = T.sblock_alloc_buffer((1,), "int32", scope="local")
                if A[tx] > T.float32(0):
                    w[0] = P[tx]
                x[0] = 0
                x[0] = w[0]
                if T.if_then_else(A[0] > T.float32(1), x[0] >= 0, True):
                    B[T.if_then_else(A[0] > T.float32(2), x[0], tx)] = T.if_then_else(
                        A[0] > T.float32(3), T.Cast("float32", x[0]), A[tx]
                    )


@T.prim_func(s_tir=True)
def uneven(A: T.Buffer((64,), "float32"), P: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("body"):
                x = T.sblock_alloc_buffer((1,), "float32", scope="local")
                x[0] = T.float32(0)
                for i in range(P[tx]):
                    x[0] = x[0] + A[i]
                while x[0] > T.float32(100):
                    x[0] = x[0] - T.float32(100)
                B[tx] = x[0]


@T.prim_func(s_tir=True)
def meeting(A: T.Buffer((64,), "float32"), P: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("body"):
                if P[tx] > 0:
                    T.tvm_storage_sync("shared")
                    B[tx] = A[tx]


@T.prim_func(s_tir=True)
def exchanged(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("body"):
                B[tx] = A[tx]
                T.tvm_storage_sync("shared")
                C[tx] = B[63 - tx]


def lowered(function, name="micro", on="metal"):
    (launch,) = lower(name, function, target._SPECS[on]).launches
    return launch.kernel


def with_barriers(stmt, make):
    """``stmt`` with what ``make`` makes of each barrier in its place."""
    match stmt:
        case ir.Barrier():
            return make(stmt)
        case ir.Seq():
            return replace(stmt, body=tuple(with_barriers(part, make) for part in stmt.body))
    return stmt


def changed(kernel, make):
    return replace(kernel, body=with_barriers(kernel.body, make))


def run(kernel, scalars=None, poisoned=(), formal=False, **arrays):
    given = {name: np.ascontiguousarray(array).ravel() for name, array in arrays.items()}
    return reference.run(kernel, Setup(given, scalars or {}, frozenset(poisoned), formal))


def gathered(indices, values=A, before=None):
    blank = np.zeros(THREADS, np.float32) if before is None else before
    return run(lowered(gather), A=values, P=np.asarray(indices, np.int32), B=blank, C=np.zeros(THREADS, np.float32))


def scattered(indices, values=None):
    values = np.arange(128) if values is None else values
    indices = np.asarray(indices, np.int32)
    return run(lowered(scatter), A=values.astype(np.float16), P=indices, C=np.full(128, -1, np.float16))


# Conflicts


def test_own_elements_do_not_conflict():
    evidence = gathered(LANES)
    assert not evidence.conflicts
    assert not evidence.faults
    np.testing.assert_array_equal(evidence.outputs["C"], A)
    assert (evidence.epochs, evidence.blocks) == (1, 1)
    assert evidence.hits.tolist() == [THREADS] * len(evidence.hits)


@pytest.mark.parametrize(("flip", "count"), [(1, 256), (16, 256), (32, 256), (63, 256)])
def test_read_of_another_thread_s_write(flip, count):
    (found,) = gathered(LANES ^ flip).conflicts
    assert (found.kind, found.storage, found.distance, found.count) == (READ_WRITE, "B", flip, count)
    assert found.first.thread ^ found.second.thread == flip
    assert found.byte in (4 * found.first.thread, 4 * found.second.thread)
    assert found.first.write
    assert not found.second.write
    assert not found.same_statement
    assert not found.between_blocks


def test_distance_is_the_largest_and_the_example_attains_it():
    indices = LANES.copy()
    indices[[3, 40]] = 4, 9
    (found,) = gathered(indices).conflicts
    assert (found.distance, found.first.thread, found.second.thread, found.byte) == (40 ^ 9, 9, 40, 36)
    assert found.count == 8


@pytest.mark.parametrize("same", [True, False])
def test_write_that_changes_what_a_read_may_find(same):
    (found,) = gathered(LANES ^ 1, before=A if same else -A).conflicts
    assert found.changing is not same


def test_change_is_measured_from_where_the_epoch_began():
    kernel = lowered(gather)
    write, read = (s for s in ir.statements(kernel.body) if isinstance(s, ir.Store))
    twice = replace(kernel, body=ir.Seq((write, write, read)))
    (found,) = run(twice, A=A, P=LANES ^ 1, B=0 * A, C=A).conflicts
    assert found.changing


def test_the_farthest_pair_of_all_epochs_is_kept():
    findings = Findings(np.array([True, False]))
    storage = ir.Storage("S", ir.SHARED, 64)
    for epoch, (other, changing) in enumerate([(2, False), (9, True), (4, False)]):
        pair = Pair((0, 1), 3, epoch, (0, other), (0, other), other, False, changing)
        findings.conflict(pair, storage, 2, (0, 0), epoch, False)
    (found,) = findings.conflicts
    assert (found.distance, found.second.thread, found.epoch, found.byte, found.changing) == (9, 9, 1, 2, True)
    assert found.count == 18


@pytest.mark.parametrize("same", [True, False])
def test_two_writes(same):
    indices = np.arange(128)
    indices[5] = 37
    values = np.arange(128)
    if same:
        values[5] = 37
    (found,) = scattered(indices, values).conflicts
    assert (found.kind, found.distance, found.byte, found.count) == (WRITE_WRITE, 5 ^ 37, 74, 2)
    assert (found.first.site, {found.first.thread, found.second.thread}) == (found.second.site, {5, 37})
    assert found.changing is not same
    assert not found.same_statement, "threads 5 and 37 are in different warps"


def test_two_writes_of_one_warp_at_once():
    indices = np.arange(128)
    indices[5] = 7
    (found,) = scattered(indices).conflicts
    assert found.same_statement
    assert found.distance == 2


def test_neighbours_of_two_bytes_do_not_conflict():
    evidence = scattered(np.arange(128)[::-1])
    assert not evidence.conflicts
    np.testing.assert_array_equal(evidence.outputs["C"], np.arange(128)[::-1])


@pytest.mark.parametrize("same", [True, False])
def test_two_blocks_that_write_one_element(same):
    indices, values = np.arange(128), np.arange(128)
    indices[70] = 3
    values[70] = 3 if same else 70
    (found,) = scattered(indices, values).conflicts
    assert (found.kind, found.between_blocks, found.distance, found.byte) == (WRITE_WRITE, True, 0, 6)
    assert {(found.first.block, found.first.thread), (found.second.block, found.second.thread)} == {(0, 3), (1, 6)}
    assert found.changing is not same


def test_barrier_orders():
    kernel = lowered(mirror)
    evidence = run(kernel, A=A, B=A)
    assert not evidence.conflicts
    assert evidence.epochs == 2
    np.testing.assert_array_equal(evidence.outputs["B"], A[::-1])
    (found,) = run(changed(kernel, lambda _: ir.Seq(())), A=A, B=A).conflicts
    assert (found.kind, found.distance, found.storage) == (READ_WRITE, 63, "tile")


def test_shared_barrier_orders_device_memory_unless_read_formally():
    kernel = lowered(exchanged)
    arrays = {"A": A, "B": 0 * A, "C": 0 * A}
    assert not run(kernel, **arrays).conflicts
    (found,) = run(kernel, formal=True, **arrays).conflicts
    assert (found.kind, found.storage, found.distance, found.changing) == (READ_WRITE, "B", 63, True)
    of_device_memory = changed(kernel, lambda barrier: replace(barrier, scope=ir.GLOBAL))
    assert not run(of_device_memory, formal=True, **arrays).conflicts


@pytest.mark.parametrize("same", [True, False])
def test_blocks_that_read_what_others_write(same):
    """A barrier orders the threads of a block, not the blocks."""
    kernel = lowered(exchanged)
    ((block, _),) = kernel.grid
    two = replace(kernel, grid=((block, ir.Const("int32", 2)),))
    found = run(two, A=A, B=A if same else 0 * A, C=0 * A).conflicts
    assert [(c.kind, c.storage, c.between_blocks, c.changing, c.count) for c in found] == [
        (WRITE_WRITE, "B", True, False, 256),
        (READ_WRITE, "B", True, not same, 256),
        (WRITE_WRITE, "C", True, False, 256),
    ]
    assert all({c.first.block, c.second.block} == {0, 1} for c in found)


def test_alias_of_another_dtype_overlaps_by_bytes():
    """Thread t writes float32 t, bytes 4t to 4t+3, and reads float16 2t (clean) or 2t + 2, which is thread t + 1's."""
    base = lowered(exchanged)
    (thread, _), *_ = base.block
    b, c = (next(p for p in base.pointers if p.name == name) for name in "BC")
    halves = ir.Buffer("halves", "float16", b.storage)

    def kernel(ahead):
        index = ir.Op("int32", "+", (ir.Op("int32", "*", (thread, ir.Const("int32", 2))), ir.Const("int32", ahead)))
        load = ir.Cast("float32", ir.Load("float16", halves, index, 3))
        store = ir.Store(b, thread, ir.Const("float32", 1.0), 1)
        body = ir.Seq((store, ir.Store(c, thread, load, 4)))
        return replace(base, body=body, buffers=(*base.buffers, halves))

    arrays = {"A": A, "B": 0 * A, "C": 0 * A}
    evidence = run(kernel(1), **arrays)
    assert not evidence.conflicts
    assert evidence.outputs["C"][0] == np.array([1.0], np.float32).view(np.float16)[1]
    (found,) = run(kernel(2), **arrays).conflicts
    assert (found.count, found.distance) == (2 * (THREADS - 1), 63)


def test_judgement_is_the_definition():
    """Random accesses of few threads to few cells, against every pair."""
    rng = np.random.default_rng(0)
    writes = np.array([False, True, True, False, True])
    seen = 0
    for _ in range(60):
        n = int(rng.integers(1, 14))
        site, thread = rng.integers(0, 5, n), rng.integers(0, 4, n) * rng.choice([1, 20])
        value = np.where(writes[site], rng.integers(0, 2, n), 0).astype(np.uint64)
        a = Accesses(rng.integers(0, 3, n), thread, site, value, thread, rng.integers(0, 2, n))
        before = rng.integers(0, 2, 3).astype(np.uint16)
        expected = by_definition(a, writes, before)
        found = {p.sites: (p.cells, p.distance, p.same_statement, p.changing) for p in conflicts(a, writes, before)}
        assert found == expected
        seen += len(expected)
    assert seen > 50


def by_definition(a, writes, before):
    pairs = {}
    for two in combinations(range(len(a.cell)), 2):
        i, j = sorted(two, key=lambda row: a.site[row])
        if a.cell[i] == a.cell[j] and a.thread[i] != a.thread[j] and (writes[a.site[i]] or writes[a.site[j]]):
            pairs.setdefault((int(a.site[i]), int(a.site[j])), []).append((i, j))

    def changes(i, j):
        if writes[a.site[i]] and writes[a.site[j]]:
            return a.value[i] != a.value[j]
        written = i if writes[a.site[i]] else j
        return a.value[written] != before[a.cell[written]]

    def together(i, j):
        warps = a.thread[i] // WARP == a.thread[j] // WARP
        return a.site[i] == a.site[j] and a.execution[i] == a.execution[j] and warps

    return {
        sites: (
            len({int(a.cell[i]) for i, _ in found}),
            max(int(a.thread[i] ^ a.thread[j]) for i, j in found),
            any(together(i, j) for i, j in found),
            any(changes(i, j) for i, j in found),
        )
        for sites, found in pairs.items()
    }


def test_farthest_pair_of_many():
    rng = np.random.default_rng(1)
    zero = np.zeros(300, np.int64)
    a, b = (
        Accesses(rng.integers(0, 40, 300), rng.integers(0, 1024, 300), zero, zero.astype(np.uint64), zero, zero)
        for _ in range(2)
    )
    cells, distances = farthest(a, b)
    expected = [(a.actor[a.cell == c][:, None] ^ b.actor[b.cell == c]).max() for c in cells]
    np.testing.assert_array_equal(distances, expected)


# Faults


def test_read_out_of_bounds_gives_zero():
    indices = LANES.copy()
    indices[[9, 50]] = 64, -1
    evidence = gathered(indices)
    (fault,) = evidence.faults
    assert (fault.kind, fault.thread, fault.block, fault.index, fault.count) == (OUT_OF_BOUNDS_READ, 9, 0, 64, 2)
    assert not evidence.conflicts
    np.testing.assert_array_equal(evidence.outputs["C"], np.where(indices == LANES, A, 0))


def test_write_out_of_bounds_is_dropped():
    indices = np.arange(128)
    indices[100] = 128
    evidence = scattered(indices)
    (fault,) = evidence.faults
    assert (fault.kind, fault.thread, fault.block, fault.index) == (OUT_OF_BOUNDS_WRITE, 36, 1, 128)
    expected = np.arange(128)
    expected[100] = -1
    np.testing.assert_array_equal(evidence.outputs["C"], expected)


@pytest.mark.parametrize("holes", [(), (7, 30)])
def test_shared_memory_that_was_not_written(holes):
    values = A.copy()
    values[list(holes)] = -1
    evidence = run(lowered(mirror), A=values, B=A)
    assert [(f.kind, f.thread, f.index, f.count) for f in evidence.faults] == (
        [(UNINITIALISED, 63 - 30, 30, 2)] if holes else []
    )


def test_unwritten_memory_that_nobody_reads():
    kernel = lowered(mirror)
    source = next(p for p in kernel.pointers if p.name == "A")
    store = next(s for s in kernel.stores if s.buffer.name == "B")
    written = ir.Op("bool", ">", (ir.Load("float32", source, store.value.index, 0), ir.Const("float32", 0.0)))
    careful = replace(store, value=ir.Choice("float32", written, store.value, ir.Const("float32", 0.0)))
    values = A.copy()
    values[[0, 30]] = -1
    setup = {"A": values, "B": 0 * A}
    first, *_ = (s for s in ir.statements(kernel.body) if isinstance(s, ir.If))
    for last, faults in ((store, 1), (careful, 0)):
        assert len(run(replace(kernel, body=ir.Seq((first, *kernel.barriers, last))), **setup).faults) == faults


@pytest.mark.parametrize("poisoned", [(), ("A",), ("B",)])
def test_poisoned_array(poisoned):
    kernel = lowered(gather)
    evidence = run(kernel, A=A, P=LANES, B=A, C=A, poisoned=poisoned)
    loads = [kernel.sites[f.site].buffer.name for f in evidence.faults if f.kind == UNINITIALISED]
    assert loads == (["A"] if poisoned == ("A",) else []), "B is written before it is read"


@pytest.mark.parametrize(
    ("level", "kind"), [(0.5, None), (1.5, "branch"), (2.5, "branch store"), (3.5, "branch store store")]
)
def test_undefined_local_memory_is_a_fault_where_it_has_an_effect(level, kind):
    """Thread 20 never sets w and so x, which gets, by ``level``, nowhere, to a condition, an index too, a value too."""
    kernel = lowered(undefined)
    values = np.full(THREADS, level, np.float32)
    everyone = run(kernel, A=values, P=LANES, B=0 * A)
    assert not everyone.faults
    values[20] = -1
    evidence = run(kernel, A=values, P=LANES, B=0 * A)
    assert {f.kind for f in evidence.faults} <= {UNINITIALISED}
    assert {f.thread for f in evidence.faults} <= {20}
    sites = [site for f in evidence.faults for site in [kernel.sites[f.site].kind] * f.count]
    assert sites == (kind.split() if kind else [])


def test_barrier_that_some_threads_miss():
    kernel = lowered(meeting)
    together = run(kernel, A=A, P=np.ones(64, np.int32), B=0 * A)
    assert not together.faults
    assert together.epochs == 2
    evidence = run(kernel, A=A, P=np.where(LANES < 40, 1, 0).astype(np.int32), B=0 * A)
    (fault,) = evidence.faults
    assert (fault.kind, fault.thread, fault.index, fault.count) == (DIVERGENT, 40, -1, 1)
    assert kernel.sites[fault.site].kind == "branch"
    np.testing.assert_array_equal(evidence.outputs["B"], A, "all went where thread 0 went")


# Semantics


class Lanes:
    def __init__(self, **values):
        arrays = {name: np.asarray(value) for name, value in values.items()}
        self.vars = {name: ir.Var(str(value.dtype), name) for name, value in arrays.items()}
        self.values = {self.vars[name]: (value, None) for name, value in arrays.items()}
        self.numbers = np.arange(len(next(iter(arrays.values()))))

    def value(self, expr):
        class Block:
            name, threads = "micro", len(self.numbers)

        with np.errstate(all="ignore"):
            return compiled(expr, Block)(self, None)

    def __call__(self, expr):
        return self.value(expr)[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("//", [-4, 3, -4]), ("%", [1, 1, -1]), ("/", [-3, 3, -3]), ("trunc%", [-1, 1, 1]), ("max", [2, 7, 7])],
)
def test_integer_operators(name, expected):
    lanes = Lanes(a=np.array([-7, 7, 7], np.int32), b=np.array([2, 2, -2], np.int32))
    got = lanes(ir.Op("int32", name, tuple(lanes.vars.values())))
    assert got.tolist() == expected
    assert got.dtype == np.int32


def test_division_by_zero_is_an_error():
    lanes = Lanes(a=np.array([1, 2]), b=np.array([1, 0]))
    with pytest.raises(UsageError, match="micro divides an integer by zero"):
        lanes(ir.Op("int64", "//", tuple(lanes.vars.values())))
    guard = ir.Op("bool", "!=", (lanes.vars["b"], ir.Const("int64", 0)))
    safe = ir.Choice("int64", guard, ir.Op("int64", "//", tuple(lanes.vars.values())), ir.Const("int64", 0))
    assert lanes(safe).tolist() == [1, 0]


def test_numbers_wrap_and_round_in_their_own_dtype():
    lanes = Lanes(i=np.array([2**31 - 1], np.int32), h=np.array([2048], np.float16), f=np.array([2**24], np.float32))
    one = {dtype: ir.Const(dtype, 1) for dtype in ("int32", "float16", "float32")}
    assert lanes(ir.Op("int32", "+", (lanes.vars["i"], one["int32"]))) == -(2**31)
    assert lanes(ir.Op("float16", "+", (lanes.vars["h"], one["float16"]))) == 2048
    assert lanes(ir.Op("float32", "+", (lanes.vars["f"], one["float32"]))) == 2**24
    assert lanes(ir.Cast("int32", lanes.vars["f"])).dtype == np.int32
    assert lanes(ir.Cast("int32", lanes.vars["f"], bits=True)) == np.float32(2**24).view(np.int32)


@pytest.mark.parametrize("down", [True, False])
def test_shuffle_stays_in_its_group(down):
    lanes = Lanes(a=np.arange(12))
    got = lanes(ir.Shuffle("int64", lanes.vars["a"], ir.Const("int32", 3), 8, down))
    # The second group has four threads only.
    expected = [3, 4, 5, 6, 7, 5, 6, 7, 11, 9, 10, 11] if down else [3] * 8 + [11] * 4
    assert got.tolist() == expected


def test_undefinedness_travels():
    lanes = Lanes(a=np.array([5, 6, 7, 8]), b=np.array([1, 2, 3, 4]))
    a, b = lanes.vars.values()
    lanes.values[a] = lanes.values[a][0], np.array([True, False, True, True])
    one, two = ir.Const("int64", 1), ir.Const("int64", 2)
    second, third = ir.Op("bool", "==", (b, two)), ir.Op("bool", "<", (two, b))
    untouched, whole = [True, False, True, True], [True] * 4
    for expr, expected in (
        (b, whole),
        (ir.Op("int64", "+", (a, b)), untouched),
        (ir.Cast("float32", a), untouched),
        (ir.Broadcast("int64x2", a, 2), [[defined] * 2 for defined in untouched]),
        (ir.Shuffle("int64", a, one, 4, True), [False, True, True, True]),
        (ir.Shuffle("int64", a, one, 4, False), [False] * 4),
        (ir.Choice("int64", second, a, b), untouched),
        (ir.Choice("int64", second, b, a), whole),
        (ir.Op("bool", "and", (second, ir.Op("bool", ">", (a, two)))), untouched),
        (ir.Op("bool", "and", (third, ir.Op("bool", ">", (a, two)))), whole),
        (ir.Choice("int64", ir.Op("bool", ">", (a, two)), b, b), untouched),
    ):
        data, defined = lanes.value(expr)
        assert (np.ones(data.shape, bool) if defined is None else defined).tolist() == expected


def test_untaken_side_is_not_evaluated():
    base = lowered(gather)
    (thread, _), *_ = base.block
    a, c = (next(p for p in base.pointers if p.name == name) for name in "AC")
    far = ir.Load("float32", a, ir.Op("int32", "*", (thread, ir.Const("int32", 8))), 1)
    near = ir.Op("bool", "<", (thread, ir.Const("int32", 8)))
    positive = ir.Op("bool", ">", (far, ir.Const("float32", 0.0)))
    for value in (
        ir.Choice("float32", near, far, ir.Const("float32", 0.0)),
        ir.Cast("float32", ir.Op("bool", "and", (near, positive))),
        ir.Cast("float32", ir.Op("bool", "or", (ir.Op("bool", "not", (near,)), positive))),
    ):
        evidence = run(replace(base, body=ir.Store(c, thread, value, 4)), A=A, P=LANES, B=A, C=A)
        assert not evidence.faults
        assert evidence.hits[[1, 4]].tolist() == [8, THREADS]
    assert run(replace(base, body=ir.Store(c, thread, far, 4)), A=A, P=LANES, B=A, C=A).faults


def test_loops_of_different_lengths():
    counts = (LANES * 5) % 17
    evidence = run(lowered(uneven), A=A, P=counts.astype(np.int32), B=0 * A)
    sums = np.array([A[:n].sum() for n in counts])
    np.testing.assert_array_equal(evidence.outputs["B"], np.where(sums > 100, (sums - 1) % 100 + 1, sums))
    assert not evidence.faults


def test_loop_without_an_end(monkeypatch):
    monkeypatch.setattr(lockstep, "ITERATIONS", 10)
    kernel = lowered(uneven)
    run(kernel, A=A, P=np.full(64, 10, np.int32), B=0 * A)
    with pytest.raises(InfraError, match="micro did not end"):
        run(kernel, A=A, P=np.full(64, 11, np.int32), B=0 * A)


def test_what_it_does_not_know_it_names():
    kernel = lowered(gather)
    arrays = {"A": A, "P": LANES, "B": A, "C": A}

    class Jump(ir.Stmt):
        pass

    with pytest.raises(UsageError, match="micro: statement Jump"):
        run(replace(kernel, body=Jump()), **arrays)
    store = next(s for s in ir.statements(kernel.body) if isinstance(s, ir.Store))
    for value, named in (
        (ir.Call("float32", "erf", (ir.Const("float32", 1.0),)), "call erf"),
        (ir.Op("float32", "@", (ir.Const("float32", 1.0),) * 2), "operator @"),
        (ir.Expr("float32"), "expression Expr"),
        (ir.Const("float8_e4m3fn", 1.0), "float8_e4m3fn"),
        (ir.Const("float32x4", 1.0), "float32x4 to float32"),
    ):
        with pytest.raises(UsageError, match=named):
            run(replace(kernel, body=replace(store, value=value)), **arrays)


def test_launch_that_does_not_fit():
    kernel = lowered(gather)
    arrays = {"A": A, "P": LANES, "B": A, "C": A}
    with pytest.raises(UsageError, match="no array for B"):
        run(kernel, **{name: array for name, array in arrays.items() if name != "B"})
    with pytest.raises(UsageError, match="B has 1 dimensions of float64"):
        run(kernel, **{**arrays, "B": A.astype(np.float64)})
    with pytest.raises(UsageError, match="each of its 2 warps"):
        reference.run(kernel, Setup(arrays, {}), warp=32, order=(0, 0))
    with pytest.raises(UsageError, match="without their width"):
        reference.run(kernel, Setup(arrays, {}), order=(1, 0))
    with pytest.raises(UsageError, match="at least 1 thread"):
        reference.run(kernel, Setup(arrays, {}), warp=0)
    shuffled = ir.Shuffle("float32", ir.Const("float32", 1.0), ir.Const("int32", 1), 32, True)
    store = next(s for s in ir.statements(kernel.body) if isinstance(s, ir.Store))
    with pytest.raises(UsageError, match="shuffles over 32 lanes, but 8 threads"):
        reference.run(replace(kernel, body=replace(store, value=shuffled)), Setup(arrays, {}), warp=8)


# TVM's kernels

HEADS, KV_HEADS, DIM, PAGE = 8, 1, 64, 16


def built(name, dim=DIM, on="metal", dtype="float16"):
    spec = target._SPECS[on]
    function = catalog.build(name, catalog.Shape(dim, HEADS, KV_HEADS, dtype), spec)
    return lowered(function, name, on), [p.name for p in function.params]


def merge_setup(dim, rows=2):
    rng = np.random.default_rng(0)
    v, other = (rng.standard_normal((rows, HEADS, dim)).astype(np.float16) for _ in range(2))
    s, s_other = (rng.standard_normal((rows, HEADS)).astype(np.float32) for _ in range(2))
    arrays = {"V": v.ravel(), "S": s.ravel(), "V_other": other.ravel(), "S_other": s_other.ravel()}
    return Setup(arrays, {"N": rows, "H": HEADS, "D": dim}), merged(v, s, other, s_other)


def test_merge():
    kernel, _ = built("merge", 512)
    setup, (v, s) = merge_setup(512)
    kept = {name: array.copy() for name, array in setup.arrays.items()}
    evidence = reference.run(kernel, setup)
    np.testing.assert_allclose(evidence.outputs["V"], v.ravel(), atol=2e-3)
    np.testing.assert_allclose(evidence.outputs["S"], s.ravel(), atol=1e-5)
    read_write, write_write = evidence.conflicts
    assert (read_write.kind, read_write.distance, read_write.changing, read_write.storage) == (
        *(READ_WRITE, 127, True, "S"),
    )
    assert (write_write.kind, write_write.changing, write_write.same_statement) == (WRITE_WRITE, False, True)
    assert evidence.blocks == 2
    assert not evidence.faults
    for name, array in kept.items():
        np.testing.assert_array_equal(setup.arrays[name], array)


def test_adversary_shows_the_race_of_merge():
    kernel, _ = built("merge", 512)
    setup, _ = merge_setup(512)
    shown = demonstrate(kernel, setup)
    everywhere = [(row, head) for row in range(2) for head in range(HEADS)]
    for order, expected in (("ascending", (128, 511)), ("descending", (0, 383))):
        difference = shown.of(order, "V")
        assert ranges(difference.wrong, (2, HEADS, 512), gap=8) == {place: (expected,) for place in everywhere}
        assert 5500 < difference.count <= 6144
        assert difference.largest > 0.1
        assert shown.of(order, "S").count == 16
        assert shown.of(order, "V_other") is None


def test_adversary_finds_nothing_where_a_row_is_one_warp_s():
    kernel, _ = built("merge", 128)
    shown = demonstrate(kernel, merge_setup(128)[0])
    assert shown.differences == ()
    assert demonstrate(kernel, merge_setup(128)[0], warp=8).differences, "narrower warps do race"
    with pytest.raises(UsageError, match="sideways"):
        demonstrate(kernel, merge_setup(128)[0], orders=("sideways",))


def test_columns():
    assert ranges([0, 1, 3, 20], (1, 2, 16)) == {(0, 0): ((0, 1), (3, 3)), (0, 1): ((4, 4),)}
    assert ranges([0, 1, 3, 20], (1, 2, 16), gap=1) == {(0, 0): ((0, 3),), (0, 1): ((4, 4),)}
    assert ranges([], (1, 2, 16)) == {}


def ints(*values):
    return np.array(values, np.int32)


def inputs(name):
    rng = np.random.default_rng(3)

    def floats(*shape):
        return rng.standard_normal(shape).astype(np.float16)

    pages = floats(6, 2, KV_HEADS, PAGE, DIM)
    table = ints(0, 2, 5), ints(3, 1, 5, 0, 4), ints(7, 16), ints(3, 0)

    def results(n):
        return floats(n, HEADS, DIM), np.zeros((n, HEADS), np.float32)

    return {
        "append": lambda: (pages, floats(16, KV_HEADS, DIM), floats(16, KV_HEADS, DIM), ints(*range(40, 55), -1)),
        "copy_page": lambda: (pages, 2, 5, 11),
        "rotary": lambda: (
            *(floats(3, HEADS + 2 * KV_HEADS, DIM), ints(0, 3, 90), floats(3, HEADS, DIM)),
            *(floats(3, KV_HEADS, DIM), floats(3, KV_HEADS, DIM), 1),
        ),
        "decode": lambda: (floats(2, HEADS, DIM), pages, *table, ints(30, 40), *results(2), 0, 1.0, 1e4, 0.125),
        "prefill_paged": lambda: (
            *(floats(7, HEADS, DIM), ints(0, 4, 7), pages, *table, ints(*range(30, 37)), *results(7), 1),
            *(1, 1.0, 1e4, 0.125),
        ),
    }[name]()


SIZES = {
    "append": {"ntoken": 16},
    "copy_page": {},
    "rotary": {"seq_len": 3},
    "decode": {"B": 2},
    "prefill_paged": {"batch_size": 2},
}


@pytest.mark.parametrize("on", ["metal", "webgpu"])
@pytest.mark.parametrize("name", SIZES)
def test_kernel_of_the_cache(name, on):
    kernel, names = built(name, on=on)
    args = inputs(name)
    given = dict(zip(names, args, strict=True))
    scalars = {v.name: 0 for v in kernel.scalars if v.name.endswith("_elem_offset")} | SIZES[name]
    scalars |= {k: v for k, v in given.items() if not isinstance(v, np.ndarray)}
    evidence = run(kernel, scalars, **{k: v for k, v in given.items() if isinstance(v, np.ndarray)})
    references(CacheConfig(HEADS, KV_HEADS, DIM, DIM, 0, 0, 1.0, 1e4))[name](*args)
    for array, right in given.items():
        if array in evidence.outputs:
            got = evidence.outputs[array].reshape(right.shape)
            np.testing.assert_allclose(got, right, atol=4e-3, rtol=4e-3, err_msg=array)
    assert not evidence.faults
    assert {c.kind for c in evidence.conflicts} == ({WRITE_WRITE} if name == "decode" else set())
    assert not any(c.changing or c.between_blocks for c in evidence.conflicts)
