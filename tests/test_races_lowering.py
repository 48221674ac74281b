"""From a PrimFunc to numbered sites: what is known of each, what is refused by name, and a defect of TVM's."""

from __future__ import annotations

import numpy as np
import pytest

from driftgate import target
from driftgate.outcome import UsageError
from driftgate.races.catalog import KERNELS, Shape, build, source_of
from driftgate.races.known import KnownFinding, digest
from driftgate.races.lowering import lower

METAL, OPENCL, WEBGPU = (target.resolve(name) for name in ("metal", "opencl", "webgpu"))
SHAPE = Shape(256, 8, 1, "float16")


def merge(spec=METAL):  # type: ignore[no-untyped-def]
    (launch,) = lower("merge", build("merge", SHAPE, spec), spec).launches
    return launch.kernel


def test_every_access_of_merge_has_its_source_line_and_its_line_in_the_script() -> None:
    kernel = merge()
    script = kernel.script.splitlines()
    lse = [site for site in kernel.sites if site.buffer is not None and site.buffer.name == "S"]
    assert [site.kind for site in lse] == ["load", "store"]
    for site in kernel.sites:
        if site.kind in ("load", "store"):
            assert site.file is not None and site.file.endswith("_decode_kernels.py")
            assert script[site.line - 1].strip().startswith(site.text[:40])
    assert lse[0].source_line is not None and lse[1].source_line is not None
    assert lse[0].source_line < lse[1].source_line


def test_no_place_tells_where_the_machine_keeps_its_files() -> None:
    assert not any(site.where.startswith("/") for site in merge().sites)


@pytest.mark.parametrize(("spec", "barriers"), [(METAL, 5), (WEBGPU, 11)], ids=["metal", "webgpu"])
def test_the_barriers_that_tvm_puts_in_are_there(spec: target.TargetSpec, barriers: int) -> None:
    (launch,) = lower("decode", build("decode", Shape(512, 8, 1, "float16"), spec), spec).launches
    assert len(launch.kernel.barriers) >= barriers - 1
    assert [b.number for b in launch.kernel.barriers] == list(range(len(launch.kernel.barriers)))


def test_memory_that_is_used_again_under_another_dtype_is_one_storage() -> None:
    (launch,) = lower("prefill_ragged", build("prefill_ragged", Shape(64, 8, 1, "float32"), WEBGPU), WEBGPU).launches
    views = [b for b in launch.kernel.buffers if b.storage.name == "K_smem"]
    assert len(views) > 1


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_of_the_catalog_lowers_for_opencl(name: str) -> None:
    lowered = lower(name, build(name, SHAPE, OPENCL), OPENCL)
    assert lowered.launches and lowered.launches[0].kernel.stores


# What is refused


def test_what_tvm_does_not_build_is_refused_with_its_reason() -> None:
    with pytest.raises(UsageError, match=r"prefill_paged at head_dim 512, .*float32 is not built for metal: .*prefill"):
        build("prefill_paged", Shape(512, 8, 1, "float32"), METAL)


def test_a_kernel_without_threads_is_refused() -> None:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def scalar(a: T.Buffer((4,), "float32")):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        for i in range(4):
            a[i] = a[i] + T.float32(1)

    with pytest.raises(UsageError, match=r"kernel mine .*metal") as refused:
        lower("mine", scalar, METAL)
    assert "\n" not in str(refused.value)


def test_a_node_that_is_not_known_is_refused_by_name() -> None:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def calls_out(a: T.Buffer((64,), "float32")):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("call"):
                a[t] = T.call_extern("float32", "anything", a[t])

    with pytest.raises(UsageError, match="kernel mine: call call_extern is not supported"):
        lower("mine", calls_out, METAL)


def test_one_piece_of_device_memory_under_two_names_is_refused() -> None:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def two_names(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.is_scheduled": True})
        other = T.decl_buffer((64,), "float32", data=x.data)
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("two"):
                y[t] = x[t] + other[63 - t]
                other[t] = T.float32(0)

    with pytest.raises(UsageError, match="buffer x is handed over twice"):
        lower("mine", two_names, METAL)


# Known findings are keyed by the source of the kernel


def test_another_source_of_a_kernel_ends_a_known_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownFinding("it", "merge", ("read-write",), "S", ("metal",), (512,), digest("merge"))
    assert known.covers("merge", "metal", 512, "read-write", "S")
    assert not known.covers("merge", "metal", 256, "read-write", "S")
    assert not known.covers("merge", "cuda", 512, "read-write", "S")
    assert not known.covers("merge", "metal", 512, "write-write", "S")
    assert not known.covers("merge", "metal", 512, "read-write", "V")
    monkeypatch.setattr("driftgate.races.known.source_of", lambda name: source_of("decode"))
    assert not known.covers("merge", "metal", 512, "read-write", "S")


# A defect of TVM's that a micro-kernel ran into


def test_an_index_with_a_negated_floor_modulus_is_still_compiled_wrongly() -> None:
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((8,), "int32"), y: T.Buffer((8,), "int32")):  # type: ignore[no-untyped-def]
        T.func_attr({"global_symbol": "main"})
        for t in range(8):
            y[t] = x[7 - (6 - t) % 7]

    x, y = (tvm.runtime.tensor(np.arange(8, dtype="int32") * n) for n in (1, 0))
    tvm.compile(tvm.IRModule({"main": kernel}), target="llvm")["main"](x, y)
    right = [7 - (6 - t) % 7 for t in range(8)]
    assert y.numpy().tolist() != right, "TVM is mended: take floormod-negated out of the known issues"
    assert y.numpy().tolist()[1:7] == right[:6]
