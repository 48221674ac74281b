"""Micro kernels: TVM lowers them as their expectations assume, and the engines report exactly what they must."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from driftgate import target
from driftgate.outcome import UsageError
from driftgate.races import fast, reference
from driftgate.races.evidence import (
    DIVERGENT,
    OUT_OF_BOUNDS_WRITE,
    READ_WRITE,
    UNINITIALISED,
    WRITE_WRITE,
    Access,
    Conflict,
    Evidence,
    Fault,
)
from driftgate.races.kernel import Kernel
from driftgate.target import TargetSpec
from fixtures.micro import KERNELS
from fixtures.micro.kernel import THREADS, Expect, MicroKernel, ordered, seen, without_barrier, without_barriers

METAL, OPENCL = (target._SPECS[name] for name in ("metal", "opencl"))
BY_NAME = {micro.name: micro for micro in KERNELS}
EDITED = [micro for micro in KERNELS if micro.edit is not None]
GUARDED = [micro for micro in KERNELS if not micro.racy and micro.name.endswith("_barrier")]


def name(micro: MicroKernel) -> str:
    return micro.name


@cache
def lowered(micro: MicroKernel, spec: TargetSpec) -> Kernel:
    """As TVM made it: nobody changes a kernel, and lowering is what takes time."""
    return replace(micro, edit=None).kernel(spec)


def edited(micro: MicroKernel, spec: TargetSpec = METAL) -> Kernel:
    kernel = lowered(micro, spec)
    return kernel if micro.edit is None else micro.edit(kernel)


@pytest.mark.parametrize("engine", [reference, fast], ids=["reference", "fast"])
@pytest.mark.parametrize("micro", KERNELS, ids=name)
def test_engine_reports_exactly_what_it_must(micro, engine):
    kernel = edited(micro)
    assert micro.wrong(kernel, engine.run(kernel, micro.setup())) == ()


@pytest.mark.parametrize("micro", EDITED, ids=name)
def test_what_an_edit_made_is_clean_as_tvm_lowers_it(micro):
    kernel = lowered(micro, METAL)
    assert not seen(kernel, reference.run(kernel, micro.setup()))


@pytest.mark.parametrize("micro", GUARDED, ids=name)
def test_a_clean_kernel_without_its_barriers_is_wrong(micro):
    kernel = without_barriers(lowered(micro, METAL))
    assert micro.wrong(kernel, reference.run(kernel, micro.setup()))


@pytest.mark.parametrize("micro", [micro for micro in KERNELS if micro.racy], ids=name)
def test_a_race_that_is_not_seen_is_wrong(micro):
    assert micro.wrong(edited(micro), evidence()) == ordered(micro.expect)


@pytest.mark.parametrize("spec", [METAL, OPENCL], ids=lambda spec: spec.name)
@pytest.mark.parametrize("micro", KERNELS, ids=name)
def test_lowers_as_stated(micro, spec):
    kernel, setup = edited(micro, spec), micro.setup()
    assert kernel.threads == THREADS
    assert kernel.stores
    assert {buffer.name: buffer.dtype for buffer in kernel.pointers} == {
        name: str(array.dtype) for name, array in setup.arrays.items()
    }
    assert {var.name for var in kernel.scalars} == set(setup.scalars)
    if micro.barriers is not None:
        assert len(kernel.barriers) == micro.barriers


def test_the_set_is_what_it_says():
    assert len(BY_NAME) == len(KERNELS) >= 24
    racy = [micro for micro in KERNELS if micro.racy]
    assert len(racy) >= 12
    assert len(KERNELS) - len(racy) >= 12
    assert {expect.hidden_at for micro in racy for expect in micro.expect} == {None, 16, 32, 64}
    assert len(GUARDED) >= 6


def test_setups_are_the_same_each_time_and_apart():
    for micro in KERNELS:
        first, second = micro.setup(), micro.setup()
        for array, other in zip(first.arrays.values(), second.arrays.values(), strict=True):
            np.testing.assert_array_equal(array, other)
            assert not np.shares_memory(array, other)


def test_allreduce_shuffles_only_where_there_are_warps():
    assert "shuffle" in lowered(BY_NAME["allreduce"], METAL).script
    assert "shuffle" not in lowered(BY_NAME["allreduce"], OPENCL).script


def test_without_barrier_takes_out_that_one():
    kernel = lowered(BY_NAME["reduction"], METAL)
    assert [barrier.number for barrier in without_barrier(2, -1)(kernel).barriers] == [0, 1, 3, 4, 5, 6]
    assert without_barriers(kernel).barriers == ()
    assert len(kernel.barriers) == 8


@pytest.mark.parametrize("edit", [without_barrier(0), without_barrier(-1), without_barriers])
def test_a_barrier_that_is_not_there_is_refused(edit):
    with pytest.raises(UsageError, match="kernel cell_count has no barrier"):
        edit(lowered(BY_NAME["cell_count"], METAL))


def conflict(distance: int, **changes) -> Conflict:
    made = Conflict(
        READ_WRITE,
        Access(0, 0, 0, False),
        Access(1, distance, 0, True),
        *("g", 0, 0, distance),
        same_statement=False,
        between_blocks=False,
        changing=True,
    )
    return replace(made, **changes)


def evidence(*conflicts: Conflict, faults: tuple[Fault, ...] = ()) -> Evidence:
    return Evidence(conflicts, faults, np.zeros(0, np.int64), 1, 1)


@pytest.mark.parametrize(
    ("conflicts", "hidden_at"),
    [
        ([conflict(15)], 16),
        ([conflict(16)], 32),
        ([conflict(63)], 64),
        ([conflict(64)], None),
        ([conflict(1, same_statement=True)], None),
        ([conflict(0, between_blocks=True)], None),
        ([conflict(1), conflict(20)], 32),
        ([conflict(1), conflict(64)], None),
    ],
)
def test_pairs_of_sites_are_taken_together(conflicts, hidden_at):
    kernel = lowered(BY_NAME["cell_count"], METAL)
    assert seen(kernel, evidence(*conflicts)) == {Expect(READ_WRITE, "g", hidden_at, True)}


def test_kinds_and_buffers_are_kept_apart():
    kernel = lowered(BY_NAME["barrier_in_branch"], METAL)
    barrier = kernel.barriers[0].site
    found = seen(
        kernel,
        evidence(
            conflict(1, changing=False),
            conflict(1, kind=WRITE_WRITE),
            conflict(1, storage="s"),
            faults=(Fault(DIVERGENT, barrier, 0, 0, -1),),
        ),
    )
    assert found == {
        Expect(DIVERGENT, ""),
        Expect(READ_WRITE, "g", 16, False),
        Expect(READ_WRITE, "s", 16, True),
        Expect(WRITE_WRITE, "g", 16, True),
    }


def test_only_what_may_follow_from_a_race_is_excused():
    micro = BY_NAME["reduction_without_barrier_0"]
    kernel = edited(micro)
    load = next(site.number for site in kernel.sites if site.kind == "load" and site.buffer.name == "s")
    store = next(site.number for site in kernel.sites if site.kind == "store" and site.buffer.name == "s")
    race = conflict(64, storage="s")
    assert micro.wrong(kernel, evidence(race, faults=(Fault(UNINITIALISED, load, 0, 0, 0),))) == ()
    beyond = Fault(OUT_OF_BOUNDS_WRITE, store, 0, 0, 128)
    assert micro.wrong(kernel, evidence(race, faults=(beyond,))) == (Expect(OUT_OF_BOUNDS_WRITE, "s"),)
