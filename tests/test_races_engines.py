"""The two engines say the same of every kernel: conflicts, distances, faults, executions, and nearly the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from driftgate import target
from driftgate.outcome import UsageError
from driftgate.races import fast, reference
from driftgate.races.catalog import KERNELS, Shape, build
from driftgate.races.coverage import coverage
from driftgate.races.defects import DEFECT, HIDDEN, NOTE, defects
from driftgate.races.evidence import DIVERGENT, READ_WRITE, Evidence, Setup
from driftgate.races.fast.setting import GUARD, UNGUARD, WIDEN
from driftgate.races.inputs import setups
from driftgate.races.kernel import LOCAL, If, Kernel, Load, expressions, statements, walk
from driftgate.races.lowering import lower
from driftgate.races.remedy import remedy
from driftgate.target import TargetSpec

METAL, WEBGPU = (target.resolve(name) for name in ("metal", "webgpu"))
# Many query heads to one KV head: few tokens are enough to give a block of a prefill kernel a second tile.
SMALL = Shape(64, 16, 1, "float16")
CONFIGURATIONS = [(METAL, SMALL), (WEBGPU, Shape(128, 16, 1, "float32"))]


def lowered(name: str, shape: Shape = SMALL, spec: TargetSpec = METAL) -> tuple[Kernel, tuple[Setup, ...]]:
    (launch,) = lower(name, build(name, shape, spec), spec).launches
    return launch.kernel, setups(name, shape, launch.kernel)


def said(evidence: Evidence) -> list[tuple[object, ...]]:
    conflicts = [
        (c.kind, c.first.site, c.second.site, c.storage, c.distance, c.same_statement, c.between_blocks, c.changing)
        for c in evidence.conflicts
    ]
    return [*sorted(conflicts), *sorted((f.kind, f.site) for f in evidence.faults)]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("spec", "shape"), CONFIGURATIONS, ids=lambda value: getattr(value, "name", ""))
def test_both_engines_agree(name: str, spec: TargetSpec, shape: Shape) -> None:
    kernel, (setup, *_) = lowered(name, shape, spec)
    quick, slow = fast.run(kernel, setup), reference.run(kernel, setup)
    assert said(quick) == said(slow)
    assert (quick.epochs, quick.blocks) == (slow.epochs, slow.blocks)
    shared = [
        s.number for s in kernel.sites if s.kind in ("load", "store", "barrier") and not _is_local(kernel, s.number)
    ]
    np.testing.assert_array_equal(quick.hits[shared], slow.hits[shared])
    for array, values in quick.outputs.items():
        # float16 is rounded after every operation by one, after a fused pair by the other.
        tolerance = 2e-3 if values.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(
            values.astype(np.float64), slow.outputs[array].astype(np.float64), rtol=tolerance, atol=tolerance
        )


def _is_local(kernel: Kernel, site: int) -> bool:
    buffer = kernel.sites[site].buffer
    return buffer is not None and buffer.scope == LOCAL


@pytest.mark.parametrize("name", ["decode", "prefill_ragged"])
def test_a_barrier_that_is_taken_out_is_missed_by_both(name: str) -> None:
    kernel, (setup, *_) = lowered(name)
    program = fast.Program(kernel)
    clean = {key[:4] for key in said(program.run(setup))}
    found = 0
    for barrier in kernel.barriers:
        quick = program.run(setup, switch=barrier.number + 1)
        slow = reference.run(without(kernel, barrier.number), setup)
        # The fast engine keeps two readers and two writers of a cell, so it may name fewer pairs, but no other.
        new, all_new = ({key[:4] for key in said(e)} - clean for e in (quick, slow))
        assert new <= all_new, f"barrier {barrier.number}"
        assert {key[3] for key in new} == {key[3] for key in all_new}, f"barrier {barrier.number}"
        found += bool(new)
    assert found > 0


def without(kernel: Kernel, number: int) -> Kernel:
    from fixtures.micro.kernel import without_barrier

    return without_barrier(number)(kernel)


# Switches of the fast engine: each is a fault that it has to see.


def test_a_store_that_goes_too_far_meets_its_neighbour() -> None:
    kernel, (setup, *_) = lowered("rotary")
    store = kernel.stores[0]
    program = fast.Program(kernel, switches=True)
    assert program.run(setup).conflicts == ()
    found = program.run(setup, switch=WIDEN + store.site).conflicts
    assert any(store.site in (c.first.site, c.second.site) for c in found)


def test_a_store_of_one_thread_alone_leaves_the_rest_undone() -> None:
    kernel, (setup, *_) = lowered("rotary")
    store = kernel.stores[0]
    program = fast.Program(kernel, switches=True)
    assert program.run(setup, switch=GUARD + store.site).hits[store.site] < program.run(setup).hits[store.site]


def test_a_guard_that_is_gone_lets_all_threads_store() -> None:
    kernel, (setup, *_) = lowered("append")
    guard = next(s for s in statements(kernel.body) if isinstance(s, If))
    program = fast.Program(kernel, switches=True)
    before, after = program.run(setup), program.run(setup, switch=UNGUARD + guard.site)
    assert after.hits[kernel.stores[0].site] > before.hits[kernel.stores[0].site]


# From evidence to reports


@pytest.mark.parametrize(
    ("head_dim", "warp", "grade", "hidden_at"),
    [
        (512, 32, DEFECT, None),
        (256, 32, DEFECT, 64),
        (256, 64, HIDDEN, 64),
        (192, 32, DEFECT, None),
        (128, 32, HIDDEN, 32),
        (128, 1, DEFECT, 32),
        (64, 16, HIDDEN, 16),
    ],
)
def test_the_merge_has_one_defect_and_its_width(head_dim: int, warp: int, grade: str, hidden_at: int | None) -> None:
    kernel, launches = lowered("merge", Shape(head_dim, 8, 1, "float16"))
    (found,) = defects(kernel, [fast.run(kernel, launch) for launch in launches], warp)
    assert (found.grade, found.kind, found.buffer, found.changing) == (grade, READ_WRITE, "S", True)
    assert found.hidden_at == hidden_at


def test_what_all_threads_write_alike_is_a_note() -> None:
    kernel, launches = lowered("decode", Shape(128, 8, 1, "float16"))
    found = defects(kernel, [fast.run(kernel, launch) for launch in launches], 32)
    assert {d.grade for d in found} == {NOTE}
    assert {"lse", "output"} <= {d.buffer for d in found}


def test_the_remedy_is_a_barrier_before_the_store_and_one_writer() -> None:
    kernel, launches = lowered("merge", Shape(512, 8, 1, "float16"))
    (found,) = defects(kernel, [fast.run(kernel, launch) for launch in launches], 32)
    place = remedy(kernel, launches, found)
    assert place is not None
    assert (kernel.sites[place.site].kind, kernel.sites[place.site].buffer) == ("store", kernel.stores[-1].buffer)
    assert place.still == "one thread alone should store"


def test_a_store_that_no_launch_reaches_is_named() -> None:
    kernel, launches = lowered("append")
    whole = coverage(kernel, [fast.run(kernel, launch) for launch in launches])
    assert whole.unreached == ()
    # With padding alone nothing is stored.
    arrays = {**launches[0].arrays, "position_map": np.full_like(launches[0].arrays["position_map"], -1)}
    nothing = coverage(kernel, [fast.run(kernel, replace(launches[0], arrays=arrays))])
    assert nothing.unreached == tuple(store.site for store in kernel.stores)
    assert nothing.stores == (0, len(kernel.stores))


@pytest.mark.parametrize("name", [n for n in KERNELS if not n.startswith("tree")])
def test_the_launches_reach_all_that_can_be_reached(name: str) -> None:
    kernel, launches = lowered(name, Shape(128, 8, 1, "float16"))
    program = fast.Program(kernel)
    found = coverage(kernel, [program.run(launch) for launch in launches])
    assert found.unreached == ()
    assert found.loads[0] == found.loads[1]
    if name.startswith("prefill"):
        assert found.tiles > found.blocks, "no block had a second tile"


def test_a_branch_that_threads_take_differently_around_a_barrier_is_divergent() -> None:
    kernel, (setup, *_) = lowered("prefill_ragged")
    guard = next(s for s in statements(kernel.body) if isinstance(s, If) and _reads_thread(kernel, s))
    broken = replace(kernel, body=_with_barrier_in(kernel.body, guard, kernel.barriers[0]))
    for run in (fast.run, reference.run):
        assert any(f.kind == DIVERGENT for f in run(broken, setup).faults)


def _reads_thread(kernel: Kernel, branch: If) -> bool:
    threads = {var for var, extent in kernel.block if extent > 1}
    return any(part in threads for expr in expressions(branch) for part in walk(expr)) and not any(
        isinstance(part, Load) for expr in expressions(branch) for part in walk(expr)
    )


def _with_barrier_in(stmt, branch, barrier):  # type: ignore[no-untyped-def]
    from driftgate.races.remedy import _before

    return _before(stmt, branch.then, barrier)


# What is refused


def test_an_array_that_is_missing_or_of_another_dtype_is_refused() -> None:
    kernel, (setup, *_) = lowered("merge")
    with pytest.raises(UsageError, match="no array for buffer"):
        fast.run(kernel, replace(setup, arrays={}))
    arrays = {**setup.arrays, "S": setup.arrays["S"].astype(np.float64)}
    with pytest.raises(UsageError, match="buffer S takes float32"):
        fast.run(kernel, replace(setup, arrays=arrays))
    with pytest.raises(UsageError, match="no value for parameter"):
        fast.run(kernel, replace(setup, scalars={}))
