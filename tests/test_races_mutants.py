"""A seeded part of the mutants of `python -m benchmarks.races recall`: each killed, or proved equivalent."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from driftgate import target
from driftgate.races.catalog import Shape, build
from driftgate.races.inputs import setups
from driftgate.races.kernel import Kernel
from driftgate.races.lowering import lower
from driftgate.races.mutation.kills import Hunt
from driftgate.races.mutation.mutants import ALL_STORE, BARRIER, CLASSES, SINGLE_WRITER, WIDENED, Mutant, mutants
from driftgate.races.proofs.assumptions import ASSUMPTIONS, assumptions_for
from driftgate.races.proofs.harmless import argument
from fixtures import merge_kernels

METAL, WEBGPU = (target.resolve(name) for name in ("metal", "webgpu"))
SEED, SAMPLE = 0, 10
KERNELS = [
    ("decode", METAL, 256),
    ("decode", WEBGPU, 64),
    ("prefill_ragged", METAL, 64),
    ("append", METAL, 128),
    ("compact_copy", WEBGPU, 64),
    ("rotary", METAL, 128),
]


def kernel_of(name: str, spec: target.TargetSpec, head_dim: int) -> tuple[Kernel, Shape]:
    shape = Shape(head_dim, 6, 1, "float16")
    return lower(name, build(name, shape, spec), spec).launches[0].kernel, shape


@pytest.mark.parametrize(("name", "spec", "head_dim"), KERNELS, ids=lambda value: str(getattr(value, "name", value)))
def test_every_mutant_is_killed_or_proved_equivalent(name: str, spec: target.TargetSpec, head_dim: int) -> None:
    kernel, shape = kernel_of(name, spec, head_dim)
    hunt = Hunt(kernel, setups(name, shape, kernel), spec.warp_width)
    given = assumptions_for(name, shape) if name in ASSUMPTIONS else None
    found = list(mutants(kernel))
    for mutant in random.Random(SEED).sample(found, min(SAMPLE, len(found))):
        outcome = hunt.run(mutant)
        if not (outcome.killed or outcome.narrow):
            argued = argument(kernel, mutant, given)
            assert argued.holds, f"{mutant.kind}, {mutant.description}: {argued.reason}"


def test_the_mutants_of_a_kernel_are_of_all_classes() -> None:
    kernel, _ = kernel_of("decode", METAL, 256)
    found = mutants(kernel)
    assert {m.kind for m in found} == set(CLASSES)
    assert sum(m.kind == BARRIER for m in found) == len(kernel.barriers)
    assert sum(m.kind == WIDENED for m in found) == len(kernel.stores)
    assert len({m.switches for m in found}) == len(found)


def corrected() -> tuple[Kernel, Hunt]:
    shape = Shape(512, 8, 1, "float16")
    kernel = lower("merge", merge_kernels.corrected(8, 512, "float16", METAL), METAL).launches[0].kernel
    return kernel, Hunt(kernel, setups("merge", shape, kernel), 32)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_corrected_merge_without_its_barrier_or_its_guard_is_caught(kind: str) -> None:
    kernel, hunt = corrected()
    of_kind = [m for m in mutants(kernel) if m.kind == kind]
    assert of_kind
    for mutant in of_kind:
        outcome = hunt.run(mutant)
        if kind == WIDENED and not outcome.killed:
            assert argument(kernel, mutant).holds, "the writers of S are even threads: no odd one goes too far"
            continue
        assert outcome.killed, mutant.description
        expected = {BARRIER: "read-write on S", SINGLE_WRITER: "read-write on S", ALL_STORE: "same value"}.get(kind, "")
        assert expected in outcome.finding


def test_nothing_changed_is_nothing_found() -> None:
    kernel, hunt = corrected()
    for mutant in mutants(kernel):
        assert not hunt.run(replace(mutant, switches=())).killed


def test_a_report_that_names_another_place_kills_nothing() -> None:
    kernel, hunt = corrected()
    deletion = next(m for m in mutants(kernel) if m.kind == BARRIER)
    elsewhere = Mutant(WIDENED, deletion.switches, None, (kernel.stores[0].site,), "", None, frozenset())
    assert kernel.stores[0].buffer.name == "V"
    assert not hunt.run(elsewhere).killed


def test_a_needed_barrier_has_no_argument() -> None:
    kernel, _ = corrected()
    deletion = next(m for m in mutants(kernel) if m.kind == BARRIER)
    assert not argument(kernel, deletion).holds
