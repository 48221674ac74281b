"""Kernels that were once called clean: a thread's own array left, a rewrite that hid a change, an own write unread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from driftgate import target
from driftgate.outcome import UsageError
from driftgate.races import fast, reference
from driftgate.races.evidence import OUT_OF_BOUNDS_READ, OUT_OF_BOUNDS_WRITE, Evidence, Setup
from driftgate.races.fast.within import within
from driftgate.races.kernel import Cast, Const, Expr, Op, Ramp, Var
from driftgate.races.lowering import lower

METAL = target.resolve("metal")
ENGINES = [fast, reference]


def run(engine: Any, function: Any, **scalars: int) -> Evidence:
    (launch,) = lower("spot", function, METAL).launches
    arrays = {"a": np.arange(512, dtype=np.float32), "b": np.zeros(512, np.float32)}
    return engine.run(launch.kernel, Setup(arrays, scalars))


def local_read() -> Any:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def kernel(a: T.Buffer((512,), "float32"), b: T.Buffer((512,), "float32")):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("spot"):
                own = T.sblock_alloc_buffer((4,), "float32", scope="local")
                for i in T.serial(4):
                    own[i] = a[i]
                b[t] = own[t]

    return kernel


def local_write() -> Any:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def kernel(a: T.Buffer((512,), "float32"), b: T.Buffer((512,), "float32")):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("spot"):
                own = T.sblock_alloc_buffer((4,), "float32", scope="local")
                for i in T.serial(4):
                    own[i] = T.float32(1)
                own[t * 100000000] = a[t]
                b[t] = own[0]

    return kernel


@pytest.mark.parametrize("engine", ENGINES, ids=["fast", "reference"])
@pytest.mark.parametrize(
    ("build", "kind"), [(local_read, OUT_OF_BOUNDS_READ), (local_write, OUT_OF_BOUNDS_WRITE)], ids=["read", "write"]
)
def test_a_threads_own_array_has_bounds(engine: Any, build: Callable[[], Any], kind: str) -> None:
    (fault,) = run(engine, build()).faults
    assert (fault.kind, fault.count) == (kind, 4 if kind == OUT_OF_BOUNDS_READ else 7)


def rewritten() -> Any:
    """Each block stores what is there, then something else, which the next block reads."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def kernel(a: T.Buffer((512,), "float32"), b: T.Buffer((512,), "float32")):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        for block in T.thread_binding(3, thread="blockIdx.x"):
            for t in T.thread_binding(8, thread="threadIdx.x"):
                with T.sblock("spot"):
                    T.reads()
                    T.writes()
                    own = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    own[0] = a[block * 8 + t]
                    a[block * 8 + t] = own[0]
                    T.tvm_storage_sync("shared")
                    a[block * 8 + t] = own[0] + T.float32(1)
                    if block > 0:
                        b[block * 8 + t] = a[(block - 1) * 8 + t]

    return kernel


@pytest.mark.parametrize("engine", ENGINES, ids=["fast", "reference"])
def test_a_store_of_what_was_there_does_not_hide_the_next_one(engine: Any) -> None:
    found = [c for c in run(engine, rewritten()).conflicts if c.between_blocks]
    assert found and any(c.changing for c in found)


def own_write() -> Any:
    """Several lanes write one cell and read it back; what one of them does then races with another warp."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def kernel(a: T.Buffer((512,), "float32"), b: T.Buffer((512,), "float32")):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        for t in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("spot"):
                T.reads()
                T.writes()
                if t >= 15 and t < 32:
                    a[0] = T.float32(77)
                    if a[0] == T.float32(77) and t == 17:
                        a[1] = T.float32(5)
                if t == 100:
                    b[1] = a[1]

    return kernel


@pytest.mark.parametrize("engine", ENGINES, ids=["fast", "reference"])
def test_a_thread_reads_what_it_wrote_itself(engine: Any) -> None:
    conflicts = run(engine, own_write()).conflicts
    assert any(c.byte == 4 and c.distance == 17 ^ 100 and c.changing for c in conflicts)


def divided() -> Any:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def kernel(a: T.handle, n: T.int32):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        A = T.match_buffer(a, (512,), "float32")
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("spot"):
                A[T.if_then_else(n != 0, t // n, t)] = T.float32(t)

    return kernel


@pytest.mark.parametrize("engine", ENGINES, ids=["fast", "reference"])
def test_a_division_that_is_not_taken_divides_nothing(engine: Any) -> None:
    (launch,) = lower("spot", divided(), METAL).launches
    setup = {"A": np.zeros(512, np.float32)}
    assert engine.run(launch.kernel, Setup(setup, {"n": 0})).conflicts == ()
    assert engine.run(launch.kernel, Setup(setup, {"n": 8})).conflicts, "all threads store to element 0"


def test_a_division_by_zero_is_an_error_and_not_the_end_of_the_process() -> None:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def kernel(a: T.handle, n: T.int32):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        A = T.match_buffer(a, (512,), "float32")
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("spot"):
                A[t // n] = T.float32(1)

    (launch,) = lower("spot", kernel, METAL).launches
    for engine in ENGINES:
        with pytest.raises(UsageError, match=r"kernel spot.*divi"):
            engine.run(launch.kernel, Setup({"A": np.zeros(512, np.float32)}, {"n": 0}))


I32 = "int32"
LOOP = Var(I32, "i")


def number(value: int) -> Expr:
    return Const(I32, value)


@pytest.mark.parametrize(
    ("index", "size", "inside"),
    [
        (LOOP, 4, True),
        (LOOP, 3, False),
        (Op(I32, "+", (LOOP, number(1))), 5, True),
        (Op(I32, "-", (LOOP, number(1))), 4, False),
        (Op(I32, "*", (LOOP, number(2))), 7, True),
        (Op(I32, "//", (LOOP, number(2))), 2, True),
        (Op(I32, "%", (LOOP, number(3))), 3, True),
        (Op(I32, "%", (LOOP, number(3))), 2, False),
        (Cast("int64", LOOP), 4, True),
        (Ramp("int32x4", number(0), number(1), 4), 4, True),
        (Ramp("int32x4", LOOP, number(1), 4), 6, False),
        (Var(I32, "unknown"), 1000, False),
        (Op(I32, "max", (LOOP, number(0))), 4, False),
    ],
)
def test_what_needs_no_check_is_certain(index: Expr, size: int, inside: bool) -> None:
    assert within(index, {LOOP: (0, 3)}, size) is inside
