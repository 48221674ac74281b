"""The corrected sliding prefill against dense attention in float64, and TVM's own kernel as the control."""

import re

import numpy as np
import pytest

from driftgate.kernels.attention import NO_KEY
from driftgate.kernels.sliding_prefill import FUNCTION, build
from driftgate.target import resolve, to_tvm

PAGE = 16


def compiled(func, name):
    import tvm

    return tvm.compile(tvm.IRModule({name: func}), to_tvm(resolve("llvm")))[name]


def attention(q, keys, values, past, window):
    """Rows of one chunk over its past: row r sees the last window - r - 1 keys. Output, and LSE to base 2."""
    group = q.shape[1] // keys.shape[1]
    out, lse = np.zeros(q.shape), np.full(q.shape[:2], NO_KEY)
    for r in range(len(q)):
        first = max(past - max(window - r - 1, 0), 0)
        for h in range(q.shape[1]):
            scores = keys[first:, h // group] @ q[r, h] * np.log2(np.e) / 8
            if len(scores):
                lse[r, h] = scores.max() + np.log2(np.exp2(scores - scores.max()).sum())
                out[r, h] = np.exp2(scores - lse[r, h]) @ values[first:, h // group]
    return out, lse


def call(kernel, rng, past, chunk, window, heads, kv_heads, dim):
    """The kernel on shuffled pages whose unused slots hold NaN, and the dense answer."""
    import tvm

    q = rng.standard_normal((chunk, heads, dim)).astype(np.float32)
    keys, values = rng.standard_normal((2, past, kv_heads, dim)).astype(np.float32)
    used = -(-past // PAGE)
    order = rng.permutation(used + 2)[:used]
    pages = np.full((used + 2, 2, kv_heads, PAGE, dim), np.nan, np.float32)
    for i in range(past):
        pages[order[i // PAGE], 0, :, i % PAGE] = keys[i]
        pages[order[i // PAGE], 1, :, i % PAGE] = values[i]
    ints = [
        np.array([0, chunk]),
        np.array([0, used]),
        order,
        np.array([[(past - 1) % PAGE + 1], [0], [0]]),
        np.array([0]),
        np.arange(past, past + chunk),
    ]
    q_indptr, page_indptr, page_values, length, k_rope, q_rope = (tvm.runtime.tensor(i.astype(np.int32)) for i in ints)
    out = tvm.runtime.tensor(np.full(q.shape, 7, np.float32))
    lse = tvm.runtime.tensor(np.full(q.shape[:2], 7, np.float32))
    tensors = (
        tvm.runtime.tensor(q),
        q_indptr,
        tvm.runtime.tensor(pages),
        page_indptr,
        page_values,
        length,
        k_rope,
        q_rope,
    )
    kernel(*tensors, out, lse, 1, 0, 1.0, 1e4, 1 / 8)
    return (out.numpy(), lse.numpy()), attention(q, keys.astype(float), values.astype(float), past, window)


CASES = [
    pytest.param(40, 8, 32, 8, 1, 64, id="window 32, past 40, chunk 8"),
    pytest.param(16, 16, 16, 2, 2, 64, id="chunk = window: the last row sees no key"),
    pytest.param(64, 64, 64, 4, 2, 64, id="chunk = window = 64, grouped heads"),
    pytest.param(7, 5, 64, 8, 1, 64, id="past inside the window, partial page"),
    pytest.param(33, 40, 32, 3, 1, 64, id="chunk over window: many rows without a key"),
]


@pytest.mark.parametrize(("past", "chunk", "window", "heads", "kv_heads", "dim"), CASES)
def test_corrected_sliding_prefill_equals_dense_attention(past, chunk, window, heads, kv_heads, dim):
    kernel = compiled(build(heads, kv_heads, dim, window, "float32", PAGE), FUNCTION)
    (out, lse), (right, right_lse) = call(kernel, np.random.default_rng(0), past, chunk, window, heads, kv_heads, dim)
    np.testing.assert_allclose(out, right, atol=1e-5)
    np.testing.assert_allclose(lse, right_lse, atol=1e-5)


def test_stock_sliding_prefill_gives_nan_where_the_corrected_one_does_not():
    from tvm.relax.frontend.nn.llm._prefill_kernels import _attention_prefill_cpu

    stock = _attention_prefill_cpu(1, 4, 64, "float32", True, {}, sliding_window_size=16)
    kernel = compiled(stock, stock.attrs["global_symbol"])
    (out, _), (right, _) = call(kernel, np.random.default_rng(0), 16, 16, 16, 4, 1, 64)
    assert np.isnan(out[-1]).any()
    assert (right[-1] == 0).all()


# --- the single-writer merge ------------------------------------------------------------------------------------------

LIMITS = {"max_threads_per_block": 1024, "max_num_threads": 1024, "thread_warp_size": 32}
GPUS = {
    "metal": ({"kind": "metal", "max_shared_memory_per_block": 32768, **LIMITS}, "threadgroup_barrier"),
    "cuda": ({"kind": "cuda", "arch": "sm_80", **LIMITS}, "__syncthreads"),
}


@pytest.mark.parametrize("head_dim", [128, 256, 512])
@pytest.mark.parametrize("gpu", GPUS)
def test_single_writer_merge_reads_then_waits_then_one_thread_stores(gpu, head_dim):
    import tvm

    from driftgate.kernels.single_writer import FUNCTION
    from driftgate.kernels.single_writer import build as single_writer

    target, barrier = GPUS[gpu]
    module = tvm.IRModule({FUNCTION: single_writer(8, head_dim, "float16", 1024)})
    source = tvm.compile(module, tvm.target.Target(target, host="llvm")).mod.imports[0].inspect_source()
    kernel = source[source.index("{", source.rindex(f"{FUNCTION}_kernel")) :]
    lines = kernel.splitlines()
    lse = [i for i, line in enumerate(lines) if "lse_ptr[" in line]
    stores = [i for i in lse if re.match(r"\s*lse_ptr\[[^=]*\] = ", lines[i])]
    reads = [i for i in lse if i not in stores]
    waits = [i for i, line in enumerate(lines) if barrier in line]
    assert len(stores) == 1
    assert len(reads) == 2
    assert max(reads) < min(waits) < stores[0], kernel
    assert "== 0" in lines[stores[0] - 1]


def test_single_writer_refuses_what_a_block_cannot_hold():
    from driftgate.kernels.single_writer import build as single_writer

    with pytest.raises(ValueError, match="head_dim 510 has to be a multiple of 4"):
        single_writer(8, 510, "float16", 1024)
    with pytest.raises(ValueError, match="at most 1024"):
        single_writer(8, 2048, "float16", 256)
