"""The CPU schedules: right for every shape and CPU, the same bits for any threads and rows, nothing else touched."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from driftgate.schedules import cpu_pipeline

HOST = tvm.target.codegen.llvm_get_system_cpu()
# (K, N): what no vector, tile or chunk divides, and what they do.
SHAPES = [(1, 1), (7, 17), (33, 52), (40, 32), (130, 72)]
FEW_SHAPES = [(7, 17), (40, 32)]
ROWS = [1, 2, 3, 15, 16, 17, 31, 33, 65]


def _target(cpu: str = HOST) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})


def _runs_here(cpu: str) -> bool:
    """Whether this machine has what LLVM would use for `cpu`."""
    features = {"haswell": ["avx2", "fma"]}
    return "x86_64" in tvm.target.codegen.llvm_get_system_triple() and all(
        tvm.target.codegen.target_has_features([feature], _target()) for feature in features.get(cpu, [])
    )


CPUS = sorted({cpu for cpu in ("x86-64", "haswell") if _runs_here(cpu)} | {HOST})


def _compile(module: tvm.IRModule, cpu: str = HOST) -> relax.VirtualMachine:
    target = _target(cpu)
    return relax.VirtualMachine(tvm.compile(module, target, relax_pipeline=cpu_pipeline(target)), tvm.cpu())


def _module(build: Any, **inputs: Any) -> tvm.IRModule:
    """An IRModule whose function `f` is `build(self, ...)`, a function of nn tensors."""
    kind = type("Module", (nn.Module,), {"f": build})
    return kind().export_tvm({"f": inputs})[0]


@functools.cache
def _layers(cpu: str, dtype: str = "float32", by_row: bool = True) -> relax.VirtualMachine:
    builder = relax.BlockBuilder()
    for k, n in SHAPES if dtype == "float32" and by_row else FEW_SHAPES:
        rows = tvm.tirx.Var("n", "int64")
        x = relax.Var("x", relax.TensorType([1, rows, k], dtype))
        w = relax.Var("w", relax.TensorType([n, k] if by_row else [k, n], dtype))
        with builder.function(f"layer_{k}_{n}", [x, w]):
            with builder.dataflow():
                weight = builder.emit(relax.op.permute_dims(w)) if by_row else w
                out = builder.emit_output(relax.op.matmul(x, weight))
            builder.emit_func_output(out)
    return _compile(builder.get(), cpu)


def _layer(
    machine: relax.VirtualMachine, m: int, k: int, n: int, dtype: str = "float32", by_row: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(result, exact result, the sum of the products' magnitudes)."""
    random = np.random.default_rng(1000 * k + n)
    w = random.standard_normal((n, k)).astype(dtype)
    x = random.standard_normal((max(ROWS), k)).astype(dtype)[:m]
    weight = np.ascontiguousarray(w if by_row else w.T)
    y = machine[f"layer_{k}_{n}"](tvm.runtime.tensor(x[None]), tvm.runtime.tensor(weight)).numpy()[0]
    x64, w64 = x.astype("float64"), w.astype("float64")
    return y, x64 @ w64.T, np.abs(x64) @ np.abs(w64.T)


@pytest.mark.parametrize("cpu", CPUS)
def test_every_shape_is_right(cpu: str) -> None:
    machine = _layers(cpu)
    for k, n in SHAPES:
        for m in ROWS:
            y, exact, scale = _layer(machine, m, k, n)
            assert y.shape == (m, n)
            assert np.all(np.abs(y - exact) <= k * 2.0**-23 * scale), f"{cpu}: M {m} K {k} N {n}"


@pytest.mark.parametrize("cpu", CPUS)
def test_a_row_does_not_depend_on_how_many_there_are(cpu: str) -> None:
    machine = _layers(cpu)
    for k, n in SHAPES:
        whole = _layer(machine, max(ROWS), k, n)[0]
        for m in ROWS:
            assert _layer(machine, m, k, n)[0].tobytes() == whole[:m].tobytes(), f"{cpu}: M {m} K {k} N {n}"


def test_transposed_weights() -> None:
    """`matmul(x, w)` with w [K, N] gives the same bits as `matmul(x, permute_dims(w))`."""
    machine = _layers(HOST, by_row=False)
    for k, n in FEW_SHAPES:
        for m in (1, 5, 33):
            assert _layer(machine, m, k, n, by_row=False)[0].tobytes() == _layer(_layers(HOST), m, k, n)[0].tobytes()


@pytest.mark.parametrize("cpu", CPUS)
def test_float16_is_summed_in_float32(cpu: str) -> None:
    machine = _layers(cpu, "float16")
    for k, n in FEW_SHAPES:
        for m in (1, 17):
            y, exact, scale = _layer(machine, m, k, n, "float16")
            assert y.dtype == np.float16
            # One rounding to float16 at the end; k of them would show.
            assert np.all(np.abs(y - exact) <= 2.0**-11 * np.abs(exact) + k * 2.0**-23 * scale + 2.0**-24)


def test_bits_do_not_depend_on_threads() -> None:
    k, n, m = 256, 1000, 130
    module = _module(
        lambda _, x, w: nn.op.matmul(nn.op.gelu(x, "tanh"), nn.op.permute_dims(w)),
        x=nn.spec.Tensor([1, "n", k], "float32"),
        w=nn.spec.Tensor([n, k], "float32"),
    )
    machine = _compile(module)
    random = np.random.default_rng(0)
    configure = tvm.get_global_func("runtime.config_threadpool")
    w = tvm.runtime.tensor(random.standard_normal((n, k), dtype=np.float32))
    x = tvm.runtime.tensor(random.standard_normal((1, m, k), dtype=np.float32))
    results = set()
    try:
        for threads in (1, 2, 4):
            configure(1, threads)
            results.add(machine["f"](x, w).numpy().tobytes())
    finally:
        configure(1, 0)
    assert len(results) == 1


@pytest.mark.parametrize("shape", [("n", 40), (2, "n", 40), ("b", 1, 40), ("b", "n", 40), (1, 1, 40), (3, 40)])
def test_leading_dimensions(shape: tuple[Any, ...]) -> None:
    module = _module(
        lambda _, x, w: nn.op.matmul(x, nn.op.permute_dims(w)),
        x=nn.spec.Tensor(list(shape), "float32"),
        w=nn.spec.Tensor([24, 40], "float32"),
    )
    random = np.random.default_rng(0)
    x = random.standard_normal([{"n": 5, "b": 3}.get(d, d) for d in shape], dtype=np.float32)
    w = random.standard_normal((24, 40), dtype=np.float32)
    y = _compile(module)["f"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-5, atol=1e-5)


def test_batched_matrices_take_the_ordinary_way() -> None:
    spec = nn.spec.Tensor(["b", "n", "n"], "float32")
    x = np.random.default_rng(0).standard_normal((3, 6, 6), dtype=np.float32)
    y = _compile(_module(lambda _, x: nn.op.matmul(x, x), x=spec))["f"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(y, x @ x, rtol=1e-5, atol=1e-5)


def _ulps(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    return np.abs(y.astype(np.longdouble) - exact) / np.spacing(np.abs(exact).astype(np.float32))


def _activation(name: str, x: np.ndarray, cpu: str, pipeline: bool = True) -> np.ndarray:
    functions = {"gelu": lambda _, x: nn.op.gelu(x, "tanh"), "tanh": lambda _, x: nn.op.tanh(x)}
    module = _module(functions[name], x=nn.spec.Tensor(["n", 64], "float32"))
    machine = _compile(module, cpu) if pipeline else relax.VirtualMachine(tvm.compile(module, _target(cpu)), tvm.cpu())
    return machine["f"](tvm.runtime.tensor(x.reshape(-1, 64))).numpy().reshape(x.shape)


def _exact(name: str, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.longdouble)
    if name == "tanh":
        return np.tanh(x)
    inner = np.sqrt(2 / np.longdouble(np.pi)) * (x + np.longdouble(0.044715) * x**3)
    return x / (1 + np.exp(-2 * inner))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_activations_are_accurate(name: str, cpu: str) -> None:
    x = np.concatenate([np.linspace(-9, 9, 6400), np.linspace(-2e-4, 2e-4, 640)]).astype(np.float32)
    exact = _exact(name, x)
    assert _ulps(_activation(name, x, cpu), exact).max() <= 1
    # The control: the formula TVM uses by default is off by far more, so the measure can fail.
    assert _ulps(_activation(name, x, cpu, pipeline=False), exact).max() > 16


@pytest.mark.parametrize("cpu", CPUS)
def test_activations_far_out(cpu: str) -> None:
    x = np.zeros(64, np.float32)
    x[:8] = [50, -50, 1e4, -1e4, 3e38, -3e38, np.nan, np.inf]
    gelu, tanh = _activation("gelu", x, cpu), _activation("tanh", x, cpu)
    np.testing.assert_array_equal(gelu[:8], np.float32([50, 0, 1e4, 0, 3e38, 0, np.nan, np.inf]))
    np.testing.assert_array_equal(tanh[:8], np.float32([1, -1, 1, -1, 1, -1, np.nan, 1]))


def test_norm_and_softmax() -> None:
    def build(_: nn.Module, x: nn.Tensor, w: nn.Tensor) -> nn.Tensor:
        return nn.op.softmax(nn.op.rms_norm(x, w, [-1], 1e-6) + x, -1)

    for width in (64, 50, 2560):
        module = _module(build, x=nn.spec.Tensor([1, "n", width], "float32"), w=nn.spec.Tensor([width], "float32"))
        random = np.random.default_rng(0)
        x = random.standard_normal((1, 7, width), dtype=np.float32)
        w = random.standard_normal(width, dtype=np.float32)
        x64 = x.astype("float64")
        z = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6) * w + x64
        z = np.exp(z - z.max(-1, keepdims=True))
        y = _compile(module)["f"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
        np.testing.assert_allclose(y, z / z.sum(-1, keepdims=True), rtol=2e-5, atol=1e-9)


def _with_cache_kernels() -> tvm.IRModule:
    """A module with two of TVM's cache kernels, one of them called, and a linear layer."""

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def twice(x: T.handle, y: T.handle):
            n = T.int64()
            X = T.match_buffer(x, (n, 32), "float32")
            Y = T.match_buffer(y, (n, 32), "float32")
            for i, j in T.grid(n, 32):
                with T.sblock("twice"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    Y[vi, vj] = X[vi, vj] * T.float32(2)

        @R.function
        def f(x: R.Tensor(("n", 32), "float32"), w: R.Tensor((48, 32), "float32")) -> R.Tensor(("n", 48), "float32"):
            n = T.int64()
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.twice, (x,), out_ty=R.Tensor((n, 32), "float32"))
                b = R.add(a, x)
                y = R.matmul(b, R.permute_dims(w))
                R.output(y)
            return y

    module = Module
    module["merge"] = kv_cache._merge_state_inplace_cpu("float32").with_attr("global_symbol", "merge")
    return module


def test_functions_that_were_there_are_left_alone() -> None:
    before = _with_cache_kernels()
    after = cpu_pipeline(_target())(before)
    for name in ("twice", "merge"):
        given, left = before[name], after[name]
        assert left.attrs["tirx.noalias"]
        tvm.ir.assert_structural_equal(left.with_attr("tirx.noalias", True), given.with_attr("tirx.noalias", True))
    # The control: what the pipeline makes itself is scheduled, so being left alone is not what happens to everything.
    assert any("linear" in name.name_hint for name in after.functions)


def test_every_function_is_marked_noalias() -> None:
    module = _module(
        lambda _, x, w: nn.op.matmul(x, nn.op.permute_dims(w)),
        x=nn.spec.Tensor([1, "n", 64], "float32"),
        w=nn.spec.Tensor([48, 64], "float32"),
    )
    functions = {
        name.name_hint: func
        for name, func in cpu_pipeline(_target())(module).functions.items()
        if isinstance(func, tvm.tirx.PrimFunc)
    }
    assert "shape_func" in functions, "the function that the mark is for is gone; is it still needed?"
    assert all(func.attrs.get("tirx.noalias") for func in functions.values())


def test_only_cpus() -> None:
    with pytest.raises(ValueError, match="llvm, but got cuda"):
        cpu_pipeline({"kind": "cuda", "arch": "sm_90"})
