"""Targets, dtypes and the known-answer probe. Every refusal has a neighbour that is allowed, and the reverse."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from driftgate import probe, target
from driftgate.outcome import InfraError, UsageError


@pytest.fixture
def no_devices(monkeypatch):
    """No GPU, whatever machine the tests run on."""

    def state(kind):
        status = probe.Status.READY if kind == "llvm" else probe.Status.NO_DEVICE
        return probe.DeviceState(kind, status, f"no {kind} device on this machine")

    monkeypatch.setattr(probe, "device_state", state)


def test_nothing_heavy_is_imported_with_the_modules():
    code = "import sys, driftgate.doctor; print(*({'tvm', 'numpy', 'torch', 'transformers'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_unknown_target_is_usage_and_lists_what_exists():
    with pytest.raises(UsageError, match="unknown target 'vulkan': choose one of llvm, metal, cuda, opencl, webgpu"):
        target.resolve("vulkan")


@pytest.mark.parametrize("name", target.NAMES)
def test_every_limit_reaches_tvm(name, no_devices):
    spec = target.resolve(name)
    built = target.to_tvm(spec)
    assert built.kind.name == spec.kind
    if spec.is_gpu:
        assert built.host.kind.name == "llvm"
        assert int(built.attrs["thread_warp_size"]) == spec.warp_width
        assert int(built.attrs["max_num_threads"]) == spec.max_threads_per_block
        assert int(built.attrs["max_shared_memory_per_block"]) == spec.max_shared_memory_bytes
    else:
        assert built.attrs["mcpu"] == spec.mcpu
        assert int(built.attrs["num-cores"]) == spec.num_cores


def test_metal_is_not_tvms_silent_default(no_devices):
    from tvm.target import Target

    assert int(Target("metal").attrs["thread_warp_size"]) == 16  # if TVM mends this, the explicit limits may go
    spec = target.resolve("metal")
    assert (spec.warp_width, spec.max_threads_per_block, spec.max_shared_memory_bytes) == (32, 1024, 32768)


def test_key_tells_apart_what_compiles_apart(no_devices):
    specs = [target.resolve(name) for name in target.NAMES]
    llvm, metal, cuda = specs[:3]
    specs += [replace(llvm, mcpu="generic"), replace(llvm, num_cores=99), replace(cuda, arch="sm_90")]
    specs += [replace(metal, warp_width=16), replace(metal, max_threads_per_block=256)]
    assert len({target.key(spec) for spec in specs}) == len(specs)
    assert target.key(llvm) == target.key(target.resolve("llvm"))
    assert str(llvm.mcpu) in target.key(llvm)


def test_best_target_is_the_cpu_only_where_there_is_no_gpu(monkeypatch, no_devices):
    assert target.resolve(None).name == "llvm"
    ready = probe.DeviceState("cuda", probe.Status.READY, "planted")
    monkeypatch.setattr(probe, "device_state", lambda kind: ready)
    monkeypatch.setattr(target, "_ask_device", lambda spec: spec)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert target.resolve(None).name == "cuda"
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert target.resolve(None).name == "metal"


def test_limits_of_a_present_device_replace_the_table(monkeypatch):
    import tvm

    ready = probe.DeviceState("cuda", probe.Status.READY, "planted")
    monkeypatch.setattr(probe, "device_state", lambda kind: ready)
    device = SimpleNamespace(
        max_threads_per_block=1024, max_shared_memory_per_block=65536, warp_size=32, compute_version="9.0"
    )
    monkeypatch.setattr(tvm, "device", lambda kind, index: device)
    spec = target.resolve("cuda")
    assert (spec.arch, spec.max_shared_memory_bytes) == ("sm_90", 65536)


@pytest.mark.parametrize(
    ("name", "head_dim", "needed", "allowed"), [("metal", 512, 139_824, 32_768), ("cuda", 512, 139_824, 49_152)]
)
def test_float32_that_does_not_fit_is_refused_with_the_bytes(name, head_dim, needed, allowed, no_devices):
    spec = target.resolve(name)
    with pytest.raises(UsageError, match=rf"{needed:,} bytes.*allows {allowed:,}; use float16"):
        target.check_dtype(spec, "float32", head_dim)
    # Derived, not remembered: the same pair passes where the memory is there, and smaller heads and halves fit.
    target.check_dtype(replace(spec, max_shared_memory_bytes=needed), "float32", head_dim)
    target.check_dtype(spec, "float16", head_dim)
    target.check_dtype(spec, "float32", 256)
    target.check_dtype(spec, "float32", 128)


@pytest.mark.parametrize("name", target.NAMES)
def test_untested_dtypes_are_refused_everywhere(name, no_devices):
    spec = target.resolve(name)
    with pytest.raises(UsageError, match="bfloat16 is not tested on any target; use float32 or float16"):
        target.check_dtype(spec, "bfloat16", 64)
    with pytest.raises(UsageError, match=r"int8 .* not a known dtype"):
        target.check_dtype(spec, "int8", 64)
    with pytest.raises(UsageError, match="head_dim 0 cannot be"):
        target.check_dtype(spec, "float32", 0)
    target.check_dtype(spec, "float32", 64)


def test_webgpu_refusal_is_in_words(no_devices):
    with pytest.raises(UsageError, match=r"prefill tile \(4, 512, 8, 512\) does not divide among its 64 threads"):
        target.check_dtype(target.resolve("webgpu"), "float32", 512)
    target.check_dtype(target.resolve("webgpu"), "float32", 256)


@pytest.mark.parametrize("name", ["metal", "cuda", "opencl", "webgpu"])
def test_a_head_dimension_without_any_tile_is_usage(name, no_devices):
    with pytest.raises(UsageError, match="no prefill tile for a head dimension this large"):
        target.check_dtype(target.resolve(name), "float16", 8192)
    target.check_dtype(target.resolve("llvm"), "float16", 8192)  # the CPU kernels have no tile


def test_default_dtype(no_devices):
    defaults = {name: target.default_dtype(target.resolve(name)) for name in ("llvm", "cuda", "metal")}
    assert defaults == {"llvm": "float32", "cuda": "float32", "metal": "float16"}
    assert target.default_dtype(target.resolve("cuda"), head_dim=512) == "float16"
    assert target.default_dtype(target.resolve("cuda"), head_dim=256) == "float32"


def test_pairs_cover_every_target_and_dtype(no_devices):
    pairs = {(row.target, row.dtype, row.head_dim): row for row in target.list_pairs()}
    assert len(pairs) == len(target.NAMES) * 3 * len(target.HEAD_DIMS)
    assert pairs["llvm", "float16", 512].status == "runs"
    assert pairs["metal", "float16", 512].status == "source only"
    assert pairs["metal", "float32", 512].status == "refused"
    assert all(row.reason for row in pairs.values() if row.status != "runs")
    assert {row.status for row in target.list_pairs(usable=["metal"]) if row.target == "llvm"} == {
        "source only",
        "refused",
    }


def test_float16_kernels_of_the_cpu_cache_are_right():
    """Why float16 on llvm is listed as running: TVM's CPU merge and in-chunk attention against float64."""
    import tvm
    from tvm.relax.frontend.nn.llm.kv_cache import _attention_prefill_ragged_cpu, _merge_state_inplace_cpu

    built_for = target.to_tvm(target.resolve("llvm"))
    rng = np.random.default_rng(0)
    heads, rows, width = 2, 5, 64
    values = [rng.standard_normal((rows, heads, width)).astype("float16") for _ in range(3)]
    q, k, v = (array.astype("float64") for array in values)

    def build(function):
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        return tvm.compile(module, target=built_for)["main"]

    def ints(*items):
        return tvm.runtime.tensor(np.array(items, "int32"))

    out = tvm.runtime.tensor(np.zeros_like(values[0]))
    lse = tvm.runtime.tensor(np.zeros((rows, heads), "float32"))
    tensors = [tvm.runtime.tensor(array) for array in values]
    ragged = build(_attention_prefill_ragged_cpu(heads, heads, width, width, "float16", {}))
    positions, bounds = ints(*range(rows)), ints(0, rows)
    ragged(tensors[0], bounds, *tensors[1:], bounds, positions, ints(0), out, lse, 1, 0, 1.0, 1e4, width**-0.5)
    scores = np.einsum("qhd,khd->hqk", q, k) * width**-0.5
    weights = np.exp(np.where(np.tri(rows, dtype=bool), scores, -np.inf))
    attended = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    _assert_half(out.numpy(), attended)
    with pytest.raises(AssertionError):  # the negative control: without the causal mask
        _assert_half(out.numpy(), np.einsum("hqk,khd->qhd", np.exp(scores) / np.exp(scores).sum(-1, keepdims=True), v))

    first, second = (rng.standard_normal((rows, heads)).astype("float32") for _ in range(2))
    merged = tvm.runtime.tensor(values[0])
    build(_merge_state_inplace_cpu("float16"))(
        merged, tvm.runtime.tensor(first), tensors[1], tvm.runtime.tensor(second)
    )
    share = (1 / (1 + np.exp2(second.astype("float64") - first)))[..., None]
    _assert_half(merged.numpy(), q * share + k * (1 - share))
    with pytest.raises(AssertionError):
        _assert_half(merged.numpy(), q)


def _assert_half(got, want):
    """Within one rounding to float16 of the float64 result, and a little for the float32 arithmetic before it."""
    np.testing.assert_allclose(got.astype("float64"), want, rtol=2**-10, atol=1e-5)


def test_open_device_tells_its_failures_apart(monkeypatch):
    spec = target.TargetSpec("metal", "metal", "metal", 32, 1024, 32768)
    for status, detail in [
        (probe.Status.NO_RUNTIME, "this TVM wheel has no Metal runtime"),
        (probe.Status.NO_DEVICE, "no Metal device on this machine"),
    ]:
        monkeypatch.setattr(probe, "device_state", lambda kind, s=status, d=detail: probe.DeviceState(kind, s, d))
        with pytest.raises(InfraError, match=detail):
            target.open_device(spec)


def test_open_device_believes_no_gpu_that_fails_the_probe(monkeypatch):
    import tvm

    monkeypatch.setattr(probe, "device_state", lambda kind: probe.DeviceState(kind, probe.Status.READY, "Paravirtual"))
    monkeypatch.setattr(tvm, "device", lambda kind, index=0: f"{kind}:{index}")
    spec = target.TargetSpec("metal", "metal", "metal", 32, 1024, 32768)
    zeros = probe.compare(*(np.zeros_like(array) for array in probe.expected()))
    for result in (zeros, probe.compare(*probe.expected())):
        monkeypatch.setattr(target, "probe_device", lambda spec, r=result: r)
        if result.ok:
            assert target.open_device(spec) == "metal:0"
        else:
            with pytest.raises(InfraError, match="failed the known-answer probe on Paravirtual: device returned zeros"):
                target.open_device(spec)


def test_open_device_on_the_cpu():
    assert "cpu" in str(target.open_device(target.resolve("llvm")))


@pytest.mark.skipif(sys.platform != "linux", reason="asks what the Linux wheel carries")
def test_device_states_of_the_linux_wheel():
    assert probe.device_state("llvm").ready
    metal = probe.device_state("metal")
    assert metal.status is probe.Status.NO_RUNTIME
    assert "this TVM wheel has no Metal runtime" in metal.detail
    cuda = probe.device_state("cuda")  # the wheel has this library: it loads, or the detail names what is missing
    assert cuda.status is not probe.Status.NO_RUNTIME
    assert cuda.status is not probe.Status.BROKEN_RUNTIME or "missing" in cuda.detail


@pytest.mark.parametrize(
    ("message", "short"),
    [
        (
            "libcudart.so.13: cannot open shared object file: No such file or directory",
            "libcudart.so.13 missing (install the CUDA runtime of that version)",
        ),
        ("libcuda.so.1: cannot open shared object file: No such file", "libcuda.so.1 missing (no NVIDIA driver here)"),
        ("dlopen(x.dylib, 6): Library not loaded: @rpath/libtvm_ffi.dylib\n  Referenced", "libtvm_ffi.dylib missing"),
        ("x.so: undefined symbol: f\nmore", "x.so: undefined symbol: f"),
        ("", "no reason given"),
    ],
)
def test_load_errors_are_explained(message, short):
    assert probe.explain_load_error(message) == short


@pytest.mark.parametrize(
    ("mode", "nvrtc", "nvcc", "chosen"),
    [
        ("", True, True, "nvrtc"),
        ("", False, True, "nvcc"),
        ("nvcc", True, False, None),
        ("nvrtc", False, True, None),
        ("", False, False, None),
    ],
)
def test_cuda_compiler_keeps_what_the_user_asked(monkeypatch, mode, nvrtc, nvcc, chosen):
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", mode)
    monkeypatch.setattr(probe, "_has_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(probe, "_has_nvcc", lambda: nvcc)
    assert probe.cuda_compiler() == chosen


def test_probe_is_right_on_the_cpu_and_a_wrong_kernel_is_caught(monkeypatch):
    import tvm

    spec = target.resolve("llvm")
    assert target.probe_device(spec) == probe.ProbeResult(True, "1024 known answers right")
    monkeypatch.setattr(probe, "BLOCKS", probe.BLOCKS - 1)  # the last block is never computed
    wrong = probe.kernel(target.to_tvm(spec))
    monkeypatch.undo()
    monkeypatch.setattr(probe, "kernel", lambda target: wrong)
    result = probe.run(target.to_tvm(spec), tvm.cpu())
    assert not result.ok
    assert "128 of 512 integer results wrong, first at 384" in result.detail


def test_probe_reports_a_compiler_failure(monkeypatch):
    import tvm

    def broken(target):
        raise RuntimeError("trace\nno such intrinsic")

    monkeypatch.setattr(probe, "kernel", broken)
    result = probe.run(target.to_tvm(target.resolve("llvm")), tvm.cpu())
    assert result == probe.ProbeResult(False, "the kernel did not compile or run: RuntimeError: no such intrinsic")


@pytest.mark.parametrize(
    ("spoil", "detail"),
    [
        (lambda i, f: (np.zeros_like(i), np.zeros_like(f)), "device returned zeros for all 512 integer"),
        (lambda i, f: (i, np.zeros_like(f)), "device returned zeros for all 512 float"),
        (lambda i, f: (np.full_like(i, 7), f), "device returned 7 for all 512"),
        (lambda i, f: (np.full_like(i, probe._UNWRITTEN), f), "no integer result was written"),
        (lambda i, f: (i, np.full_like(f, probe._UNWRITTEN)), "no float result was written"),
        (lambda i, f: (i, np.where(np.arange(512) == 300, np.nan, f).astype("float32")), "first at 300: got nan"),
        (lambda i, f: (np.where(np.arange(512) < 33, i, i + 1).astype("int32"), f), "479 of 512 integer"),
        (lambda i, f: (i.astype("int64"), f), "integer result is int64"),
        (lambda i, f: (i[:-1], f), "integer result is int32(511,)"),
    ],
)
def test_a_spoilt_answer_is_reported(spoil, detail):
    result = probe.compare(*spoil(*probe.expected()))
    assert not result.ok
    assert detail in result.detail
    assert probe.compare(*probe.expected()).ok


def test_the_known_answer_is_not_degenerate():
    for array in probe.expected():
        assert len(set(array.tolist())) > probe.THREADS
        assert (array != 0).mean() > 0.9


@pytest.mark.parametrize(
    ("name", "shared", "barrier"),
    [
        ("metal", "threadgroup int", "threadgroup_barrier("),
        ("cuda", "__shared__", "__syncthreads()"),
        ("opencl", "__local", "barrier(CLK_LOCAL_MEM_FENCE)"),
        ("webgpu", "var<workgroup>", "workgroupBarrier()"),
    ],
)
def test_probe_compiles_to_source_with_shared_memory_and_barriers(name, shared, barrier, no_devices):
    text = probe.source(target.to_tvm(target.resolve(name)))
    assert shared in text
    assert text.count(barrier) >= 2
