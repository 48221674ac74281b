"""The whole model compiled to Metal source, float16: as far as a Mac's GPU can be tested without one."""

import re

import pytest

import models
from driftgate.compile import lowered
from driftgate.outcome import UsageError
from driftgate.target import check_dtype, resolve, to_tvm


@pytest.fixture(scope="module")
def source():
    spec = resolve("metal")
    model = models.find("gemma4-tiny")
    built = lowered(model.module(to_tvm(spec), "float16"), spec)
    return metal_source(built.mod)


def metal_source(module):
    """The Metal source of every kernel of a compiled module."""
    texts = [part.inspect_source() for part in module.imports if part.kind == "metal"]
    return "\n".join(texts + [metal_source(part) for part in module.imports])


def test_every_cache_kernel_is_in_the_metal_source(source):
    for kernel in (
        "batch_prefill_paged_kv",
        "batch_prefill_ragged_kv",
        "batch_decode_paged_kv",
        "merge_state",
        "append",
    ):
        assert re.search(rf"kernel void \w*{kernel}\w*", source), kernel


def test_matmuls_norms_and_softcap_are_in_the_metal_source(source):
    assert len(re.findall(r"kernel void", source)) > 40
    assert "tanh" in source
    assert "simdgroup" in source or "threadgroup" in source


def test_no_kernel_declares_more_threadgroup_memory_than_the_target_allows(source):
    limit = resolve("metal").max_shared_memory_bytes
    for body in re.split(r"kernel void ", source)[1:]:
        declared = sum(size(d) for d in re.findall(r"threadgroup (\w+) \w+\[(\d+)\]", body))
        assert declared <= limit, body[:80]


def size(declaration):
    dtype, count = declaration
    return {"half": 2, "float": 4, "int": 4, "uint": 4, "char": 1, "uchar": 1, "bool": 1, "half4": 8, "float4": 16}[
        dtype
    ] * int(count)


def test_float32_at_head_dim_512_is_refused_with_the_bytes():
    with pytest.raises(UsageError, match=r"139824 bytes|139,824"):
        check_dtype(resolve("metal"), "float32", 512)
