"""The source check: the merge's order in generated source, and barriers that code generation has to keep."""

import re
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from driftgate.kernels import single_writer
from driftgate.kernels.attention import merged
from driftgate.outcome import UsageError
from driftgate.races import catalog, reference
from driftgate.races.catalog import Shape
from driftgate.races.evidence import Setup
from driftgate.races.lowering import lower
from driftgate.races.source import syntax
from driftgate.races.source.check import HEAD_DIMS, check, merge_order
from driftgate.races.source.codegen import emit
from driftgate.races.source.kept import barriers_kept, device_name
from driftgate.races.source.reading import read
from driftgate.target import _SPECS, to_tvm
from fixtures.merge_kernels import VARIANTS

TARGETS = syntax.KINDS
BARRIER = {
    "metal": "threadgroup_barrier(mem_flags::mem_threadgroup);",
    "cuda": "__syncthreads();",
    "opencl": "barrier(CLK_LOCAL_MEM_FENCE);",
    "webgpu": "workgroupBarrier();",
}


@cache
def merge(variant, target, head_dim=256, dtype="float16"):
    """The generated source of a variant of the merge; ``shipped`` is TVM's."""
    spec, shape = _SPECS[target], Shape(head_dim, 8, 1, dtype)
    if variant == "shipped":
        return emit(lower("merge", catalog.build("merge", shape, spec), spec))
    return emit(lower("merge", VARIANTS[variant](8, head_dim, dtype, spec), spec))


@cache
def kernel(name, target, head_dim=256, dtype="float16"):
    """A kernel of TVM and its generated source."""
    spec = _SPECS[target]
    lowered = lower(name, catalog.build(name, Shape(head_dim, 8, 2, dtype), spec), spec)
    (launch,) = lowered.launches
    return launch.kernel, emit(lowered)


def kinds(findings):
    return [finding.kind for finding in findings]


def line_of(text, part):
    """Number of the last line of ``text`` with ``part``."""
    return max(n for n, line in enumerate(text.split("\n"), 1) if part in line)


def moved(text, line, to):
    """``text`` with its line number ``line`` before number ``to``."""
    lines = text.split("\n")
    taken = lines.pop(line - 1)
    lines.insert(to - 1 - (line < to), taken)
    return "\n".join(lines)


def without(text, line):
    lines = text.split("\n")
    lines[line - 1] = ""
    return "\n".join(lines)


# --- the order in the merge -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_shipped_merge_lacks_a_barrier_and_a_guard(target, head_dim):
    text = merge("shipped", target, head_dim)
    missing, unguarded = merge_order(text, target)
    (first, _), (second, stored) = missing.lines
    assert (missing.kind, unguarded.kind) == ("no barrier", "no guard")
    assert f"no barrier between line {first} and line {second}" in missing.text
    assert f"every thread stores S_ptr at line {second}" in unguarded.text
    lines = text.split("\n")
    assert lines[second - 1].strip() == stored
    assert stored.startswith("S_ptr[")
    assert "= S_ptr[" in lines[first - 1]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_merge_that_waits_and_lets_one_thread_store_is_in_order(target, head_dim):
    assert merge_order(merge("corrected", target, head_dim), target) == ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("variant", "lacks"),
    [
        ("unguarded", ["no guard"]),
        ("unsynchronised", ["no barrier"]),
        ("as_shipped", ["no barrier", "no guard"]),
    ],
)
def test_each_half_of_the_fix_alone_is_told_apart(variant, lacks, target):
    assert kinds(merge_order(merge(variant, target, dtype="float32"), target)) == lacks


@pytest.mark.parametrize("target", TARGETS)
def test_driftgates_own_merge_is_in_order(target):
    spec = _SPECS[target]
    text = emit(lower("merge", single_writer.build(8, 256, "float16", spec.max_threads_per_block), spec))
    assert merge_order(text, target, "lse") == ()


@pytest.mark.parametrize("target", TARGETS)
def test_a_barrier_inside_the_guard_is_no_barrier_for_all(target):
    text = merge("corrected", target)
    guarded = moved(text, line_of(text, BARRIER[target]), line_of(text, "  S_ptr["))
    (finding,) = merge_order(guarded, target)
    assert finding.kind == "divergent barrier"
    assert "under a condition on a thread index" in finding.text


@pytest.mark.parametrize("target", TARGETS)
def test_a_barrier_before_the_read_or_after_the_store_is_none_between(target):
    text = merge("corrected", target)
    barrier, read_at = line_of(text, BARRIER[target]), line_of(text, "= S_ptr[")
    assert kinds(merge_order(moved(text, barrier, read_at), target)) == ["no barrier"]
    end = line_of(text, "  S_ptr[") + 2
    assert kinds(merge_order(moved(text, barrier, end), target)) == ["no barrier"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_read_after_the_store_needs_a_barrier_of_its_own(target):
    text = merge("corrected", target)
    lines = text.split("\n")
    after = line_of(text, "  S_ptr[") + 1
    lines.insert(after, lines[line_of(text, "= S_ptr[") - 1])
    (finding,) = merge_order("\n".join(lines), target)
    assert finding.kind == "no barrier"
    assert "stores S_ptr" in finding.text.split(":")[1].split(",")[0]
    lines.insert(after, BARRIER[target])
    assert merge_order("\n".join(lines), target) == ()


@pytest.mark.parametrize("condition", ["{x} < 2", "{x} < 1 || true", "{y} == 0", "0 < 1"])
def test_a_condition_that_leaves_several_threads_of_a_row_is_no_guard(condition):
    text = merge("corrected", "metal")
    x, y = "((int)threadIdx.x)", "((int)threadIdx.y)"
    assert f"if ({x} < 1) {{" in text
    weak = text.replace(f"if ({x} < 1) {{", f"if ({condition.format(x=x, y=y)}) {{")
    (finding,) = merge_order(weak, "metal")
    assert finding.kind == "no guard"
    assert "thread index x" in finding.text


@pytest.mark.parametrize("condition", ["{x} == 0", "({x} == 3) && ({y} < 100)", "{x} <= 0"])
def test_a_condition_that_leaves_one_thread_of_a_row_is_a_guard(condition):
    x, y = "((int)threadIdx.x)", "((int)threadIdx.y)"
    text = merge("corrected", "metal").replace(f"if ({x} < 1) {{", f"if ({condition.format(x=x, y=y)}) {{")
    assert merge_order(text, "metal") == ()


def test_threads_that_leave_early_do_not_come_to_the_barrier():
    text = merge("corrected", "cuda")
    lines = text.split("\n")
    lines.insert(line_of(text, "= S_ptr[") - 1, "  if (((int)threadIdx.x) > 7) { return; }")
    assert kinds(merge_order("\n".join(lines), "cuda")) == ["divergent barrier"]
    # WGSL returns for blocks that the grid was padded with: no thread of a block is left behind.
    assert "{ return; }" in merge("corrected", "webgpu")


@pytest.mark.parametrize("target", TARGETS)
def test_by_the_letter_only_cuda_orders_device_memory(target):
    findings = merge_order(merge("corrected", target), target, formal=True)
    assert kinds(findings) == ([] if target == "cuda" else ["no fence"])


def test_a_source_that_cannot_be_read_is_refused_by_line():
    text = merge("corrected", "metal")
    at = line_of(text, BARRIER["metal"])
    for odd in ("atomic_store(S_ptr, 1);", "__syncthreads();", "S_ptr[0] += 1;"):
        lines = text.split("\n")
        lines.insert(at, odd)
        with pytest.raises(UsageError, match=rf"line {at + 1}: cannot read"):
            merge_order("\n".join(lines), "metal")
    with pytest.raises(UsageError, match="ends inside a block"):
        merge_order("\n".join(text.split("\n")[:at]), "metal")
    with pytest.raises(UsageError, match="has no argument 'LSE': there are S_ptr"):
        merge_order(text, "metal", "LSE")
    with pytest.raises(UsageError, match="never stores to S_other_ptr"):
        merge_order(text, "metal", "S_other")
    with pytest.raises(UsageError, match="no kernel 'other'"):
        merge_order(text, "metal", function="other")
    with pytest.raises(UsageError, match="'vulkan' is not read"):
        merge_order(text, "vulkan")


@pytest.mark.parametrize("target", TARGETS)
def test_in_a_source_of_several_kernels_one_is_named(target):
    second = merge("shipped", target).replace("main_kernel", "other_kernel")
    both = merge("corrected", target) + second
    assert merge_order(both, target, function="main_kernel") == ()
    findings = merge_order(both, target, function="other_kernel")
    assert kinds(findings) == ["no barrier", "no guard"]
    line, text = findings[1].lines[0]
    assert both.split("\n")[line - 1].strip() == text
    with pytest.raises(UsageError, match="2 kernels, so one has to be named: main_kernel, other_kernel"):
        merge_order(both, target)


# --- barriers that are kept -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", catalog.KERNELS)
def test_code_generation_keeps_every_kernels_barriers(name, target):
    assert barriers_kept(*kernel(name, target), target) == ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "head_dim", "dtype"),
    [
        ("decode", 64, "float32"),
        ("prefill_ragged", 64, "float16"),
        ("tree_paged", 512, "float16"),
        ("prefill_mla", 64, "float32"),
    ],
)
def test_at_other_sizes_as_well(name, head_dim, dtype, target):
    assert barriers_kept(*kernel(name, target, head_dim, dtype), target) == ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["decode", "prefill_paged", "tree"])
def test_every_barrier_that_is_deleted_is_named(name, target):
    lowered, text = kernel(name, target)
    lines = [s.line for s in read(text, target).statements if s.kind == "barrier"]
    assert len(lines) == len(lowered.barriers) > 3
    for number, line in enumerate(lines):
        (finding,) = barriers_kept(lowered, without(text, line), target)
        assert finding.kind == "missing"
        # Of barriers with nothing but reads between them the source does not say which one it lacks.
        assert number in [int(n) for n in re.findall(r"barrier (\d+)", finding.text.split(" of the kernel")[0])]


@pytest.mark.parametrize("target", TARGETS)
def test_a_barrier_that_changes_places_with_a_store_is_named(target):
    lowered, text = kernel("decode", target)
    statements = read(text, target).statements
    shared = {buffer.storage.name for buffer in lowered.buffers if buffer.scope == "shared"}
    first, second = next(
        (a, b)
        for a, b in pairwise(statements)
        if {a.kind, b.kind} == {"barrier", "store"} and a.blocks == b.blocks
        if (a.name or b.name).removesuffix("_ptr") in shared
    )
    (finding,) = barriers_kept(lowered, moved(text, second.line, first.line), target)
    assert finding.kind == "moved"
    assert "stands elsewhere in the source, at line" in finding.text


@pytest.mark.parametrize("target", TARGETS)
def test_what_else_code_generation_could_change_is_named(target):
    lowered, text = kernel("decode", target)
    statements = read(text, target).statements
    barrier = next(s for s in statements if s.kind == "barrier")
    loop = next(s for s in statements if s.kind == "head" and s.text.startswith("for") and s.line < barrier.line)
    out = moved(text, barrier.line, loop.line)
    assert barriers_kept(lowered, out, target)[0].text.startswith("barrier 0")
    twice = moved(text + "\n" + barrier.text, text.count("\n") + 2, barrier.line)
    (finding,) = barriers_kept(lowered, twice, target)
    assert finding.kind == "added"
    store = next(s for s in statements if s.kind == "store" and s.name.startswith("K_smem"))
    assert "missing" in kinds(barriers_kept(lowered, without(text, store.line), target))
    assert kinds(barriers_kept(lowered, text.replace(store.text, store.text.replace("K_smem", "V_smem"), 1), target))


def test_a_read_on_the_other_side_of_a_barrier_is_named():
    lowered, text = kernel("decode", "metal")
    statements = read(text, "metal").statements
    load = next(s for s in statements if s.text.startswith("V_local[0] = V_smem["))
    later = next(s for s in statements if s.line > load.line and s.kind == "barrier")
    findings = barriers_kept(lowered, moved(text, load.line, later.line + 1), "metal")
    assert kinds(findings) == ["read", "read"]
    assert "the kernel alone reads V_smem" in findings[0].text


def test_a_shared_array_of_another_size_is_named():
    lowered, text = kernel("decode", "metal")
    (declared,) = re.findall(r"threadgroup half4 K_smem\[\d+\];", text)
    findings = barriers_kept(lowered, text.replace(declared, "threadgroup half4 K_smem[8];"), "metal")
    assert kinds(findings) == ["declaration"]
    assert "K_smem with 64 bytes" in findings[0].text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["merge", "decode"])
def test_what_is_generated_here_has_the_barriers_of_what_tvm_compiles(name, target):
    import tvm

    spec = _SPECS[target]
    lowered, _ = kernel(name, target)
    function = catalog.build(name, Shape(256, 8, 2, "float16"), spec).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": function}), target=to_tvm(spec)).mod.imports[0].inspect_source()
    assert device_name(lowered) == "main_kernel"
    assert barriers_kept(lowered, built, target) == ()


# --- the check --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_the_check_fails_on_the_shipped_merge_and_passes_on_a_corrected_one(target):
    spec = _SPECS[target]
    rows = check(spec)
    assert [row["head_dim"] for row in rows] == list(HEAD_DIMS)
    for row in rows:
        assert (row["kernel"], row["target"], row["dtype"], row["verdict"]) == ("merge", target, "float16", "fail")
        assert len(row["findings"]) == 2
        assert len(row["lines"]) == 2
    fixed = check(spec, build=lambda _, s, spec: VARIANTS["corrected"](s.heads, s.head_dim, s.dtype, spec))
    assert [(row["verdict"], row["findings"], row["lines"]) for row in fixed] == [("pass", [], [])] * 3


def test_what_tvm_does_not_build_is_refused_with_its_reason():
    copy_page, prefill = check(_SPECS["metal"], [512], dtype="float32", kernels=["copy_page", "prefill_paged"])
    assert (copy_page["verdict"], prefill["verdict"]) == ("pass", "refused")
    assert "shared-memory limit" in prefill["findings"][0]


def test_the_check_is_for_gpus_and_known_kernels():
    with pytest.raises(UsageError, match="no generated source that is read"):
        check(_SPECS["llvm"])
    with pytest.raises(UsageError, match="unknown kernel 'merges'"):
        check(_SPECS["metal"], kernels=["merges"])


# --- the variants of the merge ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_merges_where_nothing_races(variant):
    rng = np.random.default_rng(0)
    heads, head_dim = 2, 128
    v, v_other = rng.standard_normal((2, 1, heads, head_dim)).astype(np.float32)
    s, s_other = rng.standard_normal((2, 1, heads)).astype(np.float32)
    spec = _SPECS["metal"]
    (launch,) = lower("merge", VARIANTS[variant](heads, head_dim, "float32", spec), spec).launches
    arrays = {"V": v.ravel(), "S": s.ravel(), "V_other": v_other.ravel(), "S_other": s_other.ravel()}
    setup = Setup({name: array.copy() for name, array in arrays.items()}, {"N": 1, "H": heads, "D": head_dim})
    # All threads in step: no thread stores before every thread has read.
    outputs = reference.run(launch.kernel, setup).outputs
    values, lse = merged(v, s, v_other, s_other)
    np.testing.assert_allclose(outputs["V"], values.ravel(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["S"], lse.ravel(), rtol=1e-5, atol=1e-6)


def test_a_variant_is_refused_where_a_row_does_not_fit():
    with pytest.raises(ValueError, match="head_dim 130"):
        VARIANTS["corrected"](8, 130, "float16", _SPECS["metal"])
    with pytest.raises(ValueError, match="head_dim 2048"):
        VARIANTS["corrected"](8, 2048, "float16", _SPECS["webgpu"])
