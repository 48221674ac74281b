"""Our verdicts and those of Oclgrind on TVM's OpenCL source, at warp width 1 and by the letter of the fences."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache

import pytest

from driftgate import target
from driftgate.outcome import InfraError, UsageError
from driftgate.races import reference
from driftgate.races.catalog import Shape, build
from driftgate.races.evidence import READ_WRITE, UNINITIALISED, WRITE_WRITE
from driftgate.races.kernel import Kernel
from driftgate.races.lowering import Lowered, lower
from fixtures import oclgrind
from fixtures.micro import KERNELS
from fixtures.micro.kernel import without_barriers
from fixtures.small_launches import SETUPS

needs_oclgrind = pytest.mark.skipif(
    shutil.which(oclgrind.PROGRAM) is None, reason="needs oclgrind-kernel (Debian package oclgrind)"
)
METAL, OPENCL = (target._SPECS[name] for name in ("metal", "opencl"))
SMALL = Shape(64, 2, 1, "float32")
BY_NAME = {micro.name: micro for micro in KERNELS}


@cache
def lowered(name: str, shape: Shape = SMALL) -> Lowered:
    return lower(name, build(name, shape, OPENCL), OPENCL)


def ours(kernel: Kernel, setup) -> tuple[frozenset[str], bool]:
    """Kinds of conflicts, and whether there is another fault that Oclgrind looks for."""
    evidence = reference.run(kernel, replace(setup, formal=True))
    faults = [fault for fault in evidence.faults if fault.kind != UNINITIALISED]
    return frozenset(conflict.kind for conflict in evidence.conflicts), bool(faults)


@needs_oclgrind
@pytest.mark.parametrize("micro", KERNELS, ids=lambda micro: micro.name)
def test_micro_kernels(micro):
    made = lower(micro.name, micro.build(), OPENCL)
    kernel = made.launches[0].kernel if micro.edit is None else micro.edit(made.launches[0].kernel)
    theirs = oclgrind.run(made, micro.setup(), kernel, uniform_writes=True)
    assert ours(kernel, micro.setup()) == (theirs.kinds, bool(theirs.others))


@needs_oclgrind
@pytest.mark.parametrize("name", SETUPS)
def test_kernels_of_the_cache(name):
    setup, kernel = SETUPS[name](SMALL, 2), lowered(name).launches[0].kernel
    theirs = oclgrind.run(lowered(name), setup, uniform_writes=True)
    assert ours(kernel, setup) == (theirs.kinds, bool(theirs.others))
    for storage in {conflict.storage for conflict in reference.run(kernel, setup).conflicts}:
        assert theirs.names(storage)


@needs_oclgrind
def test_merge_is_flagged_and_names_its_two_lines():
    theirs = oclgrind.run(lowered("merge"), SETUPS["merge"](SMALL, 2))
    assert theirs.racy
    assert theirs.kinds == {READ_WRITE, WRITE_WRITE}
    assert len(theirs.lines) == 2
    assert theirs.names("S")
    assert not theirs.names("V")


@needs_oclgrind
@pytest.mark.parametrize("name", ["decode", "append", "copy_page"])
def test_the_others_are_not(name):
    theirs = oclgrind.run(lowered(name), SETUPS[name](SMALL, 2))
    assert not theirs.racy
    assert not theirs.lines or theirs.others


@needs_oclgrind
def test_equal_values_are_reported_where_they_are_asked_for():
    theirs = oclgrind.run(lowered("decode"), SETUPS["decode"](SMALL, 2), uniform_writes=True)
    assert theirs.kinds == {WRITE_WRITE}


@needs_oclgrind
def test_append_reads_past_the_end_where_tokens_do_not_fill_a_block():
    for tokens, beyond in ((2, True), (4, False)):
        theirs = oclgrind.run(lowered("append"), SETUPS["append"](SMALL, tokens))
        assert any(other.startswith("Invalid read of size 4") for other in theirs.others) == beyond


@needs_oclgrind
def test_without_detection_no_race_is_seen():
    assert not oclgrind.run(lowered("merge"), SETUPS["merge"](SMALL, 2), races=False).racy


@needs_oclgrind
def test_half_is_moved_but_not_calculated_with():
    half = replace(SMALL, dtype="float16")
    assert not oclgrind.run(lowered("copy_page", half), SETUPS["copy_page"](half, 2)).racy
    with pytest.raises(InfraError, match="does not run kernel merge: Unsupported"):
        oclgrind.run(lowered("merge", half), SETUPS["merge"](half, 2))


@needs_oclgrind
def test_a_run_that_takes_too_long_is_an_error():
    with pytest.raises(InfraError, match=r"did not end within 0\.001 s on kernel merge"):
        oclgrind.run(lowered("merge"), SETUPS["merge"](SMALL, 2), timeout=0.001)


def test_without_oclgrind_the_error_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InfraError, match="oclgrind-kernel is not installed"):
        oclgrind.run(lowered("copy_page"), SETUPS["copy_page"](SMALL, 2))


def test_source_has_the_barriers_of_the_edited_kernel():
    made = lower("reduction", BY_NAME["reduction"].build(), OPENCL)
    whole, name = oclgrind.source(made)
    fewer, _ = oclgrind.source(made, BY_NAME["reduction_without_barrier_2"].edit(made.launches[0].kernel))
    none, _ = oclgrind.source(made, without_barriers(made.launches[0].kernel))
    assert name == "main_kernel"
    assert [text.count("barrier(") for text in (whole, fewer, none)] == [8, 7, 0]
    assert oclgrind.source(made, made.launches[0].kernel)[0] == whole


def test_only_opencl_is_taken():
    made = lower("merge", build("merge", SMALL, METAL), METAL)
    with pytest.raises(UsageError, match="kernel merge is lowered for metal, Oclgrind takes opencl"):
        oclgrind.source(made)


def test_the_simulation_file_holds_the_launch_and_every_bit():
    setup = SETUPS["copy_page"](SMALL, 2)
    text = oclgrind.simulation(lowered("copy_page").launches[0].kernel, setup, "kernel.cl", "main_kernel")
    lines = text.splitlines()
    assert lines[:4] == ["kernel.cl", "main_kernel", "256 1 1", "256 1 1"]
    assert lines[4] == f"<size={setup.arrays['pages'].nbytes} uint>"
    assert lines[5].split()[0] == str(setup.arrays["pages"].view("uint32")[0])
    assert lines[6:8] == ["<size=8 ulong>", "2"]


SAID = """
Read-write data race at local memory address 0x1
\tKernel: main_kernel

\tFirst entity:  Global(1,0,0) Local(1,0,0) Group(0,0,0)
\tAt line 3 (column 4) of input.cl:
\t  s_ptr[0] = 1;
\t
\tSecond entity: Global(0,0,0) Local(0,0,0) Group(0,0,0)
\tAt line 4 (column 4) of input.cl:
\t  y_ptr[0] = s_ptr[0];

Work-group divergence detected (barrier)
\tKernel:     main_kernel
"""


def test_messages_are_read():
    result = oclgrind.parsed("k", SAID, 0, 1.5)
    assert result == oclgrind.Result(
        frozenset({READ_WRITE}),
        1,
        frozenset({"s_ptr[0] = 1;", "y_ptr[0] = s_ptr[0];"}),
        frozenset({"Work-group divergence detected (barrier)"}),
        1.5,
    )
    assert result.names("y") and not result.names("x")
    assert not oclgrind.parsed("k", "", 0, 1.5).racy


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        ("OCLGRIND FATAL ERROR (file:1)\nNo such thing\n\tKernel: main_kernel\n", 0, "No such thing"),
        ("2 errors generated.\n", 1, "2 errors generated."),
        ("", 1, "it gave no reason"),
    ],
)
def test_a_failed_run_is_no_clean_one(said, code, reason):
    with pytest.raises(InfraError, match=f"oclgrind-kernel does not run kernel k: {reason}"):
        oclgrind.parsed("k", said, code, 0.0)
