"""The NumPy references against TVM's own kernels, compiled for the CPU, on random inputs with every turn they take."""

import numpy as np
import pytest

from driftgate.kernels.references import references
from driftgate.kernels.rope import Rope, rotated
from driftgate.kernels.signatures import SIGNATURES, check
from driftgate.outcome import InfraError, UsageError
from driftgate.seam import CacheConfig
from driftgate.target import resolve, to_tvm

HEADS, KV_HEADS, DIM, PAGE, WINDOW, THETA = 6, 2, 64, 16, 24, 1e4
CONFIG = CacheConfig(HEADS, KV_HEADS, DIM, DIM, WINDOW, 0, 1.0, THETA)


def compiled(func):
    import tvm

    func = func.with_attr("global_symbol", "kernel")
    return tvm.compile(tvm.IRModule({"kernel": func}), to_tvm(resolve("llvm")))["kernel"]


def stock(kernel, dtype="float32", scaling=None):
    from tvm.relax.frontend.nn.llm import _decode_kernels, _page_kernels, _prefill_kernels
    from tvm.relax.frontend.nn.llm.position_embedding import llama4_rope_with_position_map, llama_rope_with_position_map
    from tvm.relax.frontend.nn.llm.tree_attn import tree_attn_cpu, tree_attn_with_paged_kv_cache_cpu

    scaling = scaling or {}
    llama4 = scaling.get("rope_type") == "llama4"
    heads = (KV_HEADS, HEADS, DIM, dtype)
    prefill, decode = _prefill_kernels._attention_prefill_cpu, _decode_kernels._attention_decode_cpu
    return {
        "append": lambda: _page_kernels._kv_cache_transpose_append(KV_HEADS, DIM, dtype),
        "prefill_ragged": lambda: _prefill_kernels._attention_prefill_ragged_cpu(
            KV_HEADS, HEADS, DIM, DIM, dtype, scaling
        ),
        "prefill_paged": lambda: prefill(*heads, False, scaling),
        "prefill_sliding": lambda: prefill(*heads, True, scaling, sliding_window_size=WINDOW),
        "decode": lambda: decode(*heads, False, scaling),
        "decode_sliding": lambda: decode(*heads, True, scaling),
        "tree_paged": lambda: tree_attn_with_paged_kv_cache_cpu(*heads, scaling),
        "tree": lambda: tree_attn_cpu(*heads, scaling),
        "merge": lambda: _decode_kernels._merge_state_inplace_cpu(dtype),
        "rotary": lambda: (llama4_rope_with_position_map if llama4 else llama_rope_with_position_map)(
            THETA, 1.0, DIM, HEADS, KV_HEADS, dtype, scaling, scaling.get("rotary_dim", DIM)
        ),
        "copy_page": lambda: _page_kernels._copy_single_page_cpu(KV_HEADS, PAGE, DIM, dtype),
        "compact_copy": lambda: _page_kernels._compact_kv_copy_cpu(KV_HEADS, DIM, dtype),
    }[kernel]()


def floats(rng, *shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype)


def ints(*values):
    return np.array(values, np.int32)


def pool(rng, pages=9, dtype="float32"):
    return floats(rng, pages, 2, KV_HEADS, PAGE, DIM, dtype=dtype)


def results(rng, n, dtype="float32"):
    return floats(rng, n, HEADS, DIM, dtype=dtype), floats(rng, n, HEADS)


TABLE = (ints(0, 3, 5), ints(7, 2, 5, 0, 4))
"""Page tables of two sequences: three pages and two."""
NODES = ints([0, 6], [1, 6], [2, 4], [3, 4], [4, 6], [5, 6])
"""A token tree: 0 over 1, 1 over 2 and 4, 2 over 3, 4 over 5; entered, left."""


def paged(rng, causal=1, mode=0, info=None, dtype="float32"):
    info = ints(5, 16) if info is None else info
    q = floats(rng, 7, HEADS, DIM, dtype=dtype)
    tables = *TABLE, info, ints(3, 0), np.arange(20, 27, dtype=np.int32)
    return q, ints(0, 4, 7), pool(rng, dtype=dtype), *tables, *results(rng, 7, dtype), causal, mode, 0.5, 5e3, 0.3


def decode(rng, mode=0, info=None):
    q, _, *rest = paged(rng, 1, mode, info)
    rest = [a[:2] if isinstance(a, np.ndarray) and i in (5, 6, 7) else a for i, a in enumerate(rest)]
    return q[:2], *rest[:8], *rest[9:]


def tree(rng, mode=0):
    qkv = floats(rng, 8, HEADS, DIM), ints(0, 6, 8), floats(rng, 8, KV_HEADS, DIM), floats(rng, 8, KV_HEADS, DIM)
    order = np.concatenate([NODES, ints([0, 1], [1, 2])])
    return (
        *qkv,
        ints(0, 6, 8),
        np.arange(8, dtype=np.int32),
        ints(0, 6, 8),
        order,
        *results(rng, 8),
        mode,
        1.0,
        THETA,
        0.3,
    )


def tree_paged(rng):
    _, _, pages, *tables = paged(rng)[:8]
    order = np.concatenate([NODES, ints([0, 2], [1, 2])])
    turn = 0, 1.0, THETA, 0.3
    return (
        floats(rng, 6, HEADS, DIM),
        ints(0, 4, 6),
        pages,
        *tables[:4],
        tables[4][:6],
        *results(rng, 6),
        *turn,
        ints(0, 6, 8),
        order,
    )


def ragged(rng, causal=1, mode=0):
    qkv = floats(rng, 7, HEADS, DIM), ints(0, 4, 7), floats(rng, 9, KV_HEADS, DIM), floats(rng, 9, KV_HEADS, DIM)
    return (
        *qkv,
        ints(0, 6, 9),
        np.arange(3, 10, dtype=np.int32),
        ints(1, 5),
        *results(rng, 7),
        causal,
        mode,
        2.0,
        7e3,
        0.3,
    )


def qkv(rng, apply=1, dtype="float32"):
    out = [floats(rng, 5, n, DIM, dtype=dtype) for n in (HEADS, KV_HEADS, KV_HEADS)]
    return floats(rng, 5, HEADS + 2 * KV_HEADS, DIM, dtype=dtype), ints(0, 3, 17, 90, 200), *out, apply


def merge(rng, dtype="float32", empty=()):
    v, s = floats(rng, 5, HEADS, DIM, dtype=dtype), 4 * floats(rng, 5, HEADS)
    other, s_other = floats(rng, 5, HEADS, DIM, dtype=dtype), 4 * floats(rng, 5, HEADS)
    if "own" in empty:
        s[2] = -np.inf
    if "other" in empty:
        s_other[3] = -np.inf
    return v, s, other, s_other


SLIDING = np.array([[5, 16], [0, 3], [0, 2]], np.int32)
"""Tokens in the last page, offset of the window, sink: of two sequences."""
CASES = {
    "append": (
        "append",
        lambda r: (pool(r), floats(r, 4, KV_HEADS, DIM), floats(r, 4, KV_HEADS, DIM), ints(17, -1, 80, 3)),
    ),
    "ragged": ("prefill_ragged", ragged),
    "ragged, not causal": ("prefill_ragged", lambda r: ragged(r, 0)),
    "ragged, inline RoPE": ("prefill_ragged", lambda r: ragged(r, 1, 1)),
    "paged": ("prefill_paged", lambda r: paged(r, 0)),
    "paged, causal": ("prefill_paged", paged),
    "paged, inline RoPE": ("prefill_paged", lambda r: paged(r, 1, 1)),
    "sliding, not causal": ("prefill_sliding", lambda r: paged(r, 0, 0, SLIDING)),
    "sliding, inline RoPE": ("prefill_sliding", lambda r: paged(r, 0, 1, SLIDING)),
    "decode": ("decode", decode),
    "decode, inline RoPE": ("decode", lambda r: decode(r, 1)),
    "decode, window and sink": ("decode_sliding", lambda r: decode(r, 0, SLIDING)),
    "tree": ("tree", tree),
    "tree, inline RoPE": ("tree", lambda r: tree(r, 1)),
    "paged tree": ("tree_paged", tree_paged),
    "merge": ("merge", merge),
    "merge, one side empty": ("merge", lambda r: merge(r, empty=("own", "other"))),
    "rotary, split alone": ("rotary", lambda r: qkv(r, 0)),
    "page copy": ("copy_page", lambda r: (pool(r), 2, 6, 11)),
    "compact": ("compact_copy", lambda r: (pool(r), ints(0, 3, 4), ints([18, 19, 90, 5], [17, 18, 19, 4]), 2)),
}


def run(kernel, args):
    import tvm

    tensors = [tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
    kernel(*tensors)
    return [t.numpy() if hasattr(t, "numpy") else t for t in tensors]


@pytest.mark.parametrize("case", CASES)
def test_reference_agrees_with_tvm_s_kernel_in_every_argument(case):
    name, make = CASES[case]
    args = make(np.random.default_rng(0))
    check(name, args)
    theirs = run(compiled(stock(name)), args)
    references(CONFIG)[name](*args)
    for argument, ours, right in zip(SIGNATURES[name], args, theirs, strict=True):
        if isinstance(ours, np.ndarray):
            np.testing.assert_allclose(ours, right, atol=2e-5, rtol=2e-6, err_msg=argument.name)


LLAMA = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS = {
    "plain": {},
    "gptj": {"rope_type": "gptj"},
    "half of the head": {"rotary_dim": 32},
    "llama3": {"rope_type": "llama3", **LLAMA},
    "llama4": {"rope_type": "llama4", **LLAMA},
    "llama4, no ramp": {"rope_type": "llama4", **LLAMA, "high_freq_factor": 1.0},
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_rotary_reference_agrees_in_every_mode(kind):
    scaling = SCALINGS[kind]
    rng = np.random.default_rng(0)
    args = qkv(rng)
    check("rotary", args)
    theirs = run(compiled(stock("rotary", scaling=scaling)), args)
    references(CONFIG, Rope(THETA, 1.0, scaling.get("rotary_dim", DIM), scaling))["rotary"](*args)
    for ours, right in zip(args[:5], theirs[:5], strict=True):
        # TVM takes sine and cosine of a float32 angle: up to 200 radians here.
        np.testing.assert_allclose(ours, right, atol=1e-4)


YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 64}


def test_yarn_of_tvm_turns_only_half_of_each_pair_as_the_paper_says():
    """TVM's ramp takes the element's index where it means the pair's; our reference follows the paper."""
    scaling = {**YARN, "inv_theta_log_scale": 1 / (2 * np.log(THETA))}
    args = qkv(np.random.default_rng(0))
    theirs = run(compiled(stock("rotary", scaling=scaling)), args)
    references(CONFIG, Rope(THETA, 1.0, DIM, scaling))["rotary"](*args)
    off = np.abs(args[2] - theirs[2]).max(axis=(0, 1))
    print(off)
    assert off[: DIM // 2].max() < 3e-4
    assert off[DIM // 2 :].max() > 0.1


LONG = {"rope_type": "longrope", "max_position_embeddings": 256, "original_max_position_embeddings": 64}


def test_tvm_cannot_build_longrope():
    """Its factory asks whether a buffer is true. What the reference says of it is held by the formula alone, below."""
    with pytest.raises(Exception, match="Cannot use and / or / not operator"):
        stock("rotary", scaling=LONG)


@pytest.mark.parametrize(("tokens", "which"), [(5, slice(DIM // 2, None)), (65, slice(0, DIM // 2))])
def test_longrope_divides_by_the_factors_for_its_length(tokens, which):
    rng = np.random.default_rng(0)
    factors = rng.uniform(1, 2, DIM).astype(np.float32)
    x = floats(rng, tokens, HEADS + 2 * KV_HEADS, DIM)
    q, k, v = (np.zeros((tokens, n, DIM), np.float32) for n in (HEADS, KV_HEADS, KV_HEADS))
    args = x, np.arange(tokens, dtype=np.int32), q, k, v, factors
    check("rotary", args)
    references(CONFIG, Rope(THETA, 1.0, DIM, LONG))["rotary"](*args)
    turn = np.arange(tokens)[:, None, None] * THETA ** (-2 * np.arange(DIM // 2) / DIM) / factors[which]
    size = np.sqrt(1 + np.log(4) / np.log(64))
    pairs = (x[..., : DIM // 2] + 1j * x[..., DIM // 2 :]) * np.exp(1j * turn) * size
    np.testing.assert_allclose(q, np.concatenate([pairs.real, pairs.imag], -1)[:, :HEADS], atol=1e-5)
    assert v.tobytes() == x[:, -KV_HEADS:].tobytes()


def test_unknown_scaling_is_refused_with_those_there_are():
    with pytest.raises(
        UsageError, match="rope_type 'ntk' has no reference; there are gptj, llama3, llama4, longrope, yarn"
    ):
        rotated(np.zeros((1, 1, 4)), np.zeros(1), Rope(THETA, 1.0, 4, {"rope_type": "ntk"}))


def test_sliding_prefill_sees_the_last_keys_of_the_window_alone():
    """TVM's own CPU kernel gives NaN here, so dense attention is the judge."""
    args = paged(np.random.default_rng(0), info=np.array([[5, 16], [0, 3], [0, 0]], np.int32))
    q, _, pages = args[:3]
    references(CONFIG)["prefill_sliding"](*args)
    held = np.concatenate([pages[page] for page in TABLE[1][:3]], axis=2)[:, :, :37]
    for row in range(4):
        keys, values = held[:, 0, 37 - (WINDOW - row - 1) :].astype(float)
        scores = keys @ q[row, 0] * 0.3
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(args[8][row, 0], weights @ values / weights.sum(), atol=1e-5)
        np.testing.assert_allclose(args[9][row, 0], np.log2(np.exp(scores).sum()), atol=1e-5)


def test_merge_of_nothing_with_nothing_is_nothing():
    v, s, v_other, s_other = merge(np.random.default_rng(0))
    s[1] = s_other[1] = -np.inf
    references(CONFIG)["merge"](v, s, v_other, s_other)
    assert (v[1] == 0).all()
    assert np.isneginf(s[1]).all()
    assert np.isfinite(np.delete(v, 1, axis=0)).all()


@pytest.mark.parametrize("where", range(4))
def test_merge_repairs_no_nan(where):
    args = merge(np.random.default_rng(0))
    args[where][2, 0] = np.nan
    references(CONFIG)["merge"](*args)
    assert np.isnan(args[0][2, 0]).all()
    assert np.isfinite(args[0][3]).all()


def test_key_out_of_sight_has_no_part_whatever_it_holds():
    args = ragged(np.random.default_rng(0))
    args[3][5] = np.nan
    references(CONFIG)["prefill_ragged"](*args)
    assert np.isfinite(args[7][:3]).all()
    assert np.isnan(args[7][3]).all()


MISFITS = [
    (
        merge(np.random.default_rng(0))[:3],
        "merge is called with 3 arguments, but its reference takes 4: v, s, v_other, s_other",
    ),
    ((*merge(np.random.default_rng(0))[:3], 7), "argument 3 (s_other) is int, not a tensor"),
    ((*merge(np.random.default_rng(0))[:3], np.zeros(4, np.float32)), "argument 3 (s_other) has 1 dimensions, not 2"),
    (
        (*merge(np.random.default_rng(0))[:3], np.zeros((4, 4), np.int32)),
        "argument 3 (s_other) has dtype int32, not float32",
    ),
]


@pytest.mark.parametrize(("args", "message"), MISFITS)
def test_call_that_does_not_fit_its_reference_is_refused_and_the_argument_named(args, message):
    with pytest.raises(InfraError) as error:
        check("merge", args)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
