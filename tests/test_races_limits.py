"""Check L: what a kernel takes of the device, compared with what the target and its language allow."""

from dataclasses import replace

import pytest

from driftgate.outcome import UsageError
from driftgate.races import catalog
from driftgate.races.catalog import Shape
from driftgate.races.kernel import Const, Var
from driftgate.races.limits import VECTOR_LANES, limits, shared_bytes
from driftgate.races.lowering import lower
from driftgate.target import _SPECS

GPUS = ("metal", "cuda", "opencl", "webgpu")


def kernel(name, target, head_dim=256, dtype="float16", heads=8, kv_heads=2, spec=None):
    spec = spec or _SPECS[target]
    (launch,) = lower(name, catalog.build(name, Shape(head_dim, heads, kv_heads, dtype), spec), spec).launches
    return launch.kernel


def vectors(lanes, dtype, *, stride=1, scope="global"):
    """A kernel in which every thread copies ``lanes`` elements as one vector."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def copy(a: T.handle, b: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        source = T.match_buffer(a, (64 * lanes * stride,), dtype)
        target = T.match_buffer(b, (64 * lanes * stride,), dtype)
        for block in T.thread_binding(1, thread="blockIdx.x"):
            for thread in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("copy"):
                    T.reads()
                    T.writes()
                    own = T.sblock_alloc_buffer((lanes,), dtype, scope="local")
                    for i in T.vectorized(lanes):
                        own[i] = source[block + (thread * lanes + i) * stride]
                    for i in T.vectorized(lanes):
                        target[(thread * lanes + i) * stride] = own[i]

    return copy


def lowered(function, target):
    (launch,) = lower("copy", function, _SPECS[target]).launches
    return launch.kernel


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("name", ["merge", "append", "copy_page", "compact_copy", "rotary"])
def test_small_kernels_keep_every_limit(name, target):
    assert limits(kernel(name, target), _SPECS[target]) == ()


@pytest.mark.parametrize("target", ["metal", "cuda"])
@pytest.mark.parametrize("name", ["decode", "prefill_paged", "tree"])
def test_attention_fits_metal_and_cuda_at_256(name, target):
    assert limits(kernel(name, target), _SPECS[target]) == ()


def test_decode_on_metal_wants_too_much_where_every_head_has_its_own_keys():
    (excess,) = limits(kernel("decode", "metal", dtype="float32", kv_heads=8), _SPECS["metal"])
    assert (excess.what, excess.has, excess.allowed, excess.portable) == ("bytes of shared memory", 32928, 32768, False)
    assert excess.text == "bytes of shared memory: 32,928, allowed are 32,768 (the figure of target metal)"
    assert limits(kernel("decode", "metal", dtype="float32", kv_heads=4), _SPECS["metal"]) == ()


@pytest.mark.parametrize(("target", "dtype", "head_dim"), [("cuda", "float32", 512), ("opencl", "float32", 256)])
def test_prefill_wants_too_much_where_the_target_is_refused(target, dtype, head_dim):
    (excess,) = limits(kernel("prefill_paged", target, head_dim, dtype), _SPECS[target])
    assert excess.what == "bytes of shared memory"
    assert excess.has > excess.allowed == _SPECS[target].max_shared_memory_bytes


def test_shared_memory_counts_once_under_several_dtypes():
    prefill = kernel("prefill_paged", "metal")
    shared = [buffer for buffer in prefill.buffers if buffer.scope == "shared"]
    assert len({buffer.storage for buffer in shared}) < len(shared)
    assert shared_bytes(prefill) == sum({buffer.storage: buffer.storage.bytes for buffer in shared}.values())


def test_cuda_declares_no_more_than_48_kib_however_much_the_device_has():
    spec = replace(_SPECS["cuda"], max_shared_memory_bytes=232448)
    (excess,) = limits(kernel("prefill_paged", "cuda", 512, "float32", spec=spec), spec)
    assert excess.allowed == 49152
    assert "static" in excess.source


def test_threads_of_a_block_are_compared_with_the_target():
    merge = kernel("merge", "metal", 512)
    assert limits(merge, _SPECS["metal"]) == ()
    (excess,) = limits(merge, replace(_SPECS["metal"], max_threads_per_block=512))
    assert (excess.what, excess.has, excess.allowed) == ("threads of a block", 1024, 512)


def test_a_browser_that_grants_the_default_has_less():
    found = {e.what: e for e in limits(kernel("prefill_paged", "webgpu"), _SPECS["webgpu"])}
    assert found.keys() == {"bytes of shared memory", "buffers"}
    assert all(excess.portable for excess in found.values())
    assert (found["buffers"].has, found["buffers"].allowed) == (10, 8)
    assert found["bytes of shared memory"].allowed == 16384
    assert "every device grants 8" in found["buffers"].text


def test_more_than_the_target_allows_is_not_excused_as_a_default():
    (excess, _) = limits(kernel("prefill_paged", "webgpu", 192), _SPECS["webgpu"])
    assert (excess.what, excess.allowed, excess.portable) == ("bytes of shared memory", 32768, False)


@pytest.mark.parametrize("target", GPUS)
def test_a_vector_of_four_halves_is_one_everywhere(target):
    assert limits(lowered(vectors(4, "float16"), target), _SPECS[target]) == ()


@pytest.mark.parametrize("target", ["metal", "webgpu"])
def test_a_vector_of_eight_lanes_is_none_in_metal_and_wgsl(target):
    found = limits(lowered(vectors(8, "float16"), target), _SPECS[target])
    assert {(e.has, e.allowed, e.source) for e in found} == {(8, 4, VECTOR_LANES[target][1])}
    assert {e.what.rpartition(" ")[2] for e in found} >= {"source", "target"}


def test_opencl_has_vectors_of_eight_but_not_of_six():
    assert limits(lowered(vectors(8, "float16"), "opencl"), _SPECS["opencl"]) == ()
    assert {(e.has, e.allowed) for e in limits(lowered(vectors(6, "float16"), "opencl"), _SPECS["opencl"])} == {(6, 4)}


def test_cuda_moves_sixteen_bytes_at_once():
    assert limits(lowered(vectors(8, "float16"), "cuda"), _SPECS["cuda"]) == ()
    found = limits(lowered(vectors(8, "float32"), "cuda"), _SPECS["cuda"])
    assert {(e.what, e.has, e.allowed) for e in found} == {
        ("bytes of one access to source", 32, 16),
        ("bytes of one access to target", 32, 16),
    }
    # Elements that do not lie next to one another are moved one by one.
    assert limits(lowered(vectors(8, "float32", stride=2), "cuda"), _SPECS["cuda"]) == ()


def axis(name, extent):
    return Var("int32", name), extent


@pytest.mark.parametrize(
    ("target", "field", "axes", "what"),
    [
        ("cuda", "block", (axis("threadIdx.z", 65),), "threads along z"),
        ("webgpu", "block", (axis("threadIdx.z", 65),), "threads along z"),
        ("cuda", "grid", (axis("blockIdx.y", Const("int32", 65536)),), "blocks along y"),
        ("webgpu", "grid", (axis("blockIdx.z", Const("int32", 2)),), "blocks along z"),
    ],
)
def test_axes_are_compared_one_by_one(target, field, axes, what):
    planted = replace(kernel("merge", target), **{field: axes})
    assert [excess.what for excess in limits(planted, _SPECS[target])] == [what]
    within = replace(planted, **{field: tuple((v, e - 1 if field == "block" else Const("int32", 1)) for v, e in axes)})
    assert limits(within, _SPECS[target]) == ()


def test_too_many_parameters():
    merge = kernel("merge", "metal")
    assert [(e.what, e.has) for e in limits(replace(merge, pointers=merge.pointers[:1] * 31), _SPECS["metal"])] == [
        ("buffers", 32)
    ]
    assert limits(replace(merge, pointers=merge.pointers[:1] * 30), _SPECS["metal"]) == ()
    (excess,) = limits(replace(kernel("merge", "opencl"), pointers=merge.pointers[:1] * 128), _SPECS["opencl"])
    assert (excess.what, excess.allowed, excess.portable) == ("bytes of parameters", 1024, True)


def test_a_cpu_has_no_limits_of_this_kind():
    with pytest.raises(UsageError, match="target llvm has no blocks"):
        limits(kernel("merge", "metal"), _SPECS["llvm"])
