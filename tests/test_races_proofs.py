"""Two-thread proofs and redundant barriers: what is free of races is proved, and a planted race is a witness."""

import dataclasses
import random

import pytest
import z3

from driftgate.kernels import single_writer
from driftgate.outcome import UsageError
from driftgate.races.catalog import Shape, build
from driftgate.races.kernel import (
    LOCAL,
    SHARED,
    Barrier,
    Buffer,
    Cast,
    Choice,
    Const,
    For,
    If,
    Kernel,
    Load,
    Op,
    Seq,
    Storage,
    Store,
    Var,
    While,
    statements,
)
from driftgate.races.lowering import lower
from driftgate.races.proofs.argument import PROVED, UNSUPPORTED, WITNESS, prove, witness_scalars
from driftgate.races.proofs.assumptions import ASSUMPTIONS, Assumptions, assumptions_for
from driftgate.races.proofs.digits import equal, linear
from driftgate.races.proofs.division import Division
from driftgate.races.proofs.flow import around
from driftgate.races.proofs.redundancy import NOT_PROVED, redundant
from driftgate.target import _SPECS


def lowered(name, head_dim, target="metal", kv_heads=1):
    spec, shape = _SPECS[target], Shape(head_dim, 8, kv_heads, "float16")
    if name == single_writer.FUNCTION:
        function = single_writer.build(8, head_dim, "float16", spec.max_threads_per_block)
    else:
        function = build(name, shape, spec)
    given = assumptions_for(name, shape) if name in ASSUMPTIONS else Assumptions()
    return lower(name, function, spec).launches[0].kernel, given


def proof(name, head_dim, target="metal", warp=1, kv_heads=1):
    kernel, given = lowered(name, head_dim, target, kv_heads)
    return prove(kernel, given, warp)


# The two-thread argument


@pytest.mark.parametrize("head_dim", [256, 512])
@pytest.mark.parametrize("warp", [1, 32])
def test_merge_has_a_witness_where_a_row_has_more_threads_than_a_warp(head_dim, warp):
    found = proof("merge", head_dim, warp=warp)
    assert (found.verdict, found.kind, found.storage) == (WITNESS, "read-write", "S")
    assert witness_scalars(found) == {"N": 1, "H": 8, "D": head_dim}
    (x, row), (other_x, other_row) = found.threads
    assert row == other_row and x // warp != other_x // warp
    assert found.blocks[0] == found.blocks[1]
    assert "reads S" in found.reason and "writes" in found.reason and "N is 1" in found.reason


def test_merge_at_128_is_ordered_by_its_warps_and_by_nothing_else():
    held = proof("merge", 128, warp=32)
    assert (held.verdict, held.same_value) == (PROVED, ("S",))
    assert "equal values to S" in held.reason
    assert proof("merge", 128, warp=1).verdict == WITNESS
    assert proof("merge", 128, warp=16).verdict == WITNESS


@pytest.mark.parametrize("target", ["metal", "webgpu"])
@pytest.mark.parametrize("head_dim", [64, 512])
def test_the_single_writer_has_no_race_and_needs_its_barrier(target, head_dim):
    kernel, given = lowered(single_writer.FUNCTION, head_dim, target)
    held = prove(kernel, given)
    assert (held.verdict, held.same_value) == (PROVED, ())
    found = prove(without_barriers(kernel), given)
    assert (found.verdict, found.storage, found.kind) == (WITNESS, "lse", "read-write")


def test_every_thread_storing_behind_the_barrier_is_a_conflict_of_equal_values():
    kernel, given = lowered(single_writer.FUNCTION, 256)
    everyone = dataclasses.replace(kernel, body=edited(kernel.body, lambda s: s.then if isinstance(s, If) else s))
    found = prove(everyone, given)
    assert (found.verdict, found.same_value) == (PROVED, ("lse",))


@pytest.mark.parametrize("target", ["metal", "webgpu"])
@pytest.mark.parametrize("name", ["append", "rotary", "append_mla", "copy_page_mla"])
@pytest.mark.parametrize(("head_dim", "kv_heads"), [(64, 4), (96, 1), (256, 1), (512, 2)])
def test_the_other_kernels_have_none_under_their_assumptions(name, target, head_dim, kv_heads):
    found = proof(name, head_dim, target, kv_heads=kv_heads)
    assert (found.verdict, found.same_value) == (PROVED, ()), found.reason
    assert found.pairs > 0


@pytest.mark.parametrize(("target", "head_dim", "kv_heads"), [("metal", 256, 1), ("webgpu", 64, 4)])
def test_copying_a_page_has_none_unless_it_is_copied_to_itself(target, head_dim, kv_heads):
    kernel, given = lowered("copy_page", head_dim, target, kv_heads)
    assert prove(kernel, given).verdict == PROVED
    longer = dataclasses.replace(given, cases={"copy_length": range(17, 18)})
    assert prove(kernel, longer).verdict == WITNESS


def test_copying_a_page_onto_a_page_that_may_be_the_same_touches_no_byte_of_another_thread():
    kernel, given = lowered("copy_page_mla", 64)
    held = prove(kernel, dataclasses.replace(given, differ=(), cases={"copy_length": range(1, 3)}))
    assert held.verdict == PROVED


@pytest.mark.parametrize("name", ["append", "append_mla"])
def test_append_to_positions_that_tokens_share_is_a_witness_with_the_positions(name):
    kernel, given = lowered(name, 256)
    found = prove(kernel, dataclasses.replace(given, distinct=()))
    assert (found.verdict, found.kind, found.storage) == (WITNESS, "write-write", "pages")
    assert witness_scalars(found) == {"ntoken": 2, "pages_elem_offset": 0, "position_map_elem_offset": 0}
    assert found.arrays["position_map"][0] == found.arrays["position_map"][1] >= 0


def test_append_of_a_latent_cache_does_not_check_for_a_token_that_is_not_stored():
    kernel, given = lowered("append_mla", 64)
    found = prove(kernel, dataclasses.replace(given, entries={"position_map": -1}))
    assert found.verdict == WITNESS and set(found.arrays["position_map"].values()) == {-1}
    kernel, given = lowered("append", 64)
    assert given.entries == {"position_map": -1}


def test_values_that_a_warp_writes_in_one_statement_are_equal_only_if_nothing_may_have_come_between():
    again = Store(S, number(0), Load("float32", S, number(0), 1), 0)
    found = prove(block(again), Assumptions(), 32)
    assert (found.verdict, found.same_value) == (PROVED, ("s",))
    assert prove(block(loop(2, again)), Assumptions(), 32).verdict == WITNESS
    own = Store(S, number(0), Cast("float32", X), 0)
    assert prove(block(own), Assumptions(), 32).verdict == WITNESS


def test_shared_memory_is_a_blocks_own_and_barriers_order_it():
    axis = (Var("int32", "blockIdx.x"), number(2))
    kernel = dataclasses.replace(block(writes(0), barrier(0), reads(1)), grid=(axis,))
    assert prove(kernel, Assumptions()).verdict == PROVED
    found = prove(dataclasses.replace(kernel, body=Seq((writes(0), reads(1)))), Assumptions())
    assert found.verdict == WITNESS and found.blocks[0] == found.blocks[1]
    device = Buffer("g", "float32", Storage("g", "global", None))
    between = dataclasses.replace(kernel, body=Store(device, X, Cast("float32", axis[0]), 0), pointers=(device,))
    found = prove(between, Assumptions())
    assert found.verdict == WITNESS and found.blocks[0] != found.blocks[1] and "of block" in found.reason


def test_what_the_argument_does_not_cover_is_said():
    kernel, _ = lowered("decode", 256)
    found = prove(kernel, Assumptions())
    assert found.verdict == UNSUPPORTED and "barrier sits in a loop" in found.reason
    with pytest.raises(UsageError, match="no witness: the verdict is unsupported"):
        witness_scalars(found)
    with pytest.raises(UsageError, match="no proof is set up for kernel 'decode'"):
        assumptions_for("decode", Shape(256, 8, 1, "float16"))


def test_a_solver_that_gives_up_is_no_proof(monkeypatch):
    from driftgate.races.proofs import queries

    class Undecided(z3.Solver):
        def check(self, *_):
            return z3.unknown

    kernel, given = lowered("append", 64)
    barrier_kernel = block(writes(0), Barrier(SHARED, 0, 9), reads(0))
    monkeypatch.setattr(queries, "solver", lambda *_: Undecided())
    found, kept = prove(kernel, given), redundant(barrier_kernel, 0)
    assert (found.verdict, found.reason) == (UNSUPPORTED, "the solver gave up")
    assert kept.verdict == NOT_PROVED and kept.reason.startswith("the solver gave up on a write of s")


def test_assumptions_that_allow_no_launch_prove_nothing():
    kernel, given = lowered("merge", 128)
    found = prove(kernel, dataclasses.replace(given, fixed={**given.fixed, "N": 0}), 32)
    assert found.verdict == UNSUPPORTED and "no launch" in found.reason


def test_an_argument_about_a_store_that_nobody_reaches_proves_nothing():
    never = If(Op("bool", "<", (X, number(0))), writes(0), None, 8)
    found = prove(block(never), Assumptions())
    assert found.verdict == UNSUPPORTED and "no thread reaches" in found.reason


@pytest.mark.parametrize(
    "wrong", [{"fixed": {"M": 1}}, {"least": {"M": 1}}, {"distinct": ("nothing",)}, {"entries": {"S": 0}}]
)
def test_an_assumption_about_what_the_kernel_does_not_have_is_refused(wrong):
    kernel, given = lowered("merge", 128)
    with pytest.raises(UsageError, match="kernel merge has no"):
        prove(kernel, dataclasses.replace(given, **wrong))


def test_assumptions_are_in_words():
    for name in ASSUMPTIONS:
        words = assumptions_for(name, Shape(256, 8, 1, "float16")).words
        assert "Integers do not overflow." in words and all(w.endswith(".") for w in words)


# Barriers that can go


@pytest.mark.parametrize(
    ("name", "target", "needed"),
    [("decode", "metal", {0, 1, 2, 3}), ("tree", "metal", {0, 3, 4, 5, 6, 9}), ("tree", "webgpu", {0, 3, 4, 6, 9})],
)
def test_barriers_of_attention_kernels(name, target, needed):
    kernel, _ = lowered(name, 256, target)
    found = {b.number: redundant(kernel, b.number) for b in kernel.barriers}
    assert {n for n, r in found.items() if r.verdict == NOT_PROVED} == needed
    assert all("may meet" in found[n].reason and found[n].sites for n in needed)
    assert all(f"none of the {r.pairs} pairs" in r.reason for n, r in found.items() if n not in needed)


X = Var("int32", "threadIdx.x")
S = Buffer("s", "float32", Storage("s", SHARED, 4096))
HALVES = Buffer("h", "float16", S.storage)
OUT = Buffer("o", "float32", Storage("o", LOCAL, 4))
K = Var("int32", "k")


def number(value):
    return Const("int32", value)


def at(shift, scale=1):
    return Op("int32", "+", (Op("int32", "*", (X, number(scale))), shift if isinstance(shift, Var) else number(shift)))


def writes(shift, scale=1):
    return Store(S, at(shift, scale), Const("float32", 1.0), 0)


def reads(shift, scale=1, buffer=S):
    value = Load(buffer.dtype, buffer, at(shift, scale), 1)
    return Store(OUT, number(0), Cast("float32", value), 2)


def block(*body, threads=32):
    """A kernel of one block of 32 threads; every statement here has the site that tests look at."""
    from driftgate.races.kernel import Site

    sites = tuple(Site(n, "", None, f"statement {n}", n) for n in range(10))
    return Kernel("made", (), ((X, threads),), (), (), (S, OUT), Seq(body), sites, "")


def barrier(number):
    return Barrier(SHARED, number, 9)


def test_a_barrier_between_own_elements_can_go_and_one_between_neighbours_cannot():
    assert redundant(block(writes(0), barrier(0), reads(0)), 0).verdict == PROVED
    found = redundant(block(writes(0), barrier(0), reads(1)), 0)
    assert (found.verdict, found.storage, found.sites) == (NOT_PROVED, "s", (0, 1))


def test_bytes_decide_where_one_memory_is_read_under_two_dtypes():
    assert redundant(block(writes(0), barrier(0), reads(1, 2, HALVES)), 0).verdict == PROVED
    assert redundant(block(writes(0), barrier(0), reads(0, 1, HALVES)), 0).verdict == NOT_PROVED


def test_another_barrier_between_ends_the_argument():
    assert redundant(block(writes(0), barrier(0), barrier(1), reads(1)), 0).verdict == PROVED


def loop(extent, *body):
    return For(K, number(0), extent if isinstance(extent, Var) else number(extent), Seq(body), 7)


def test_the_next_iteration_is_behind_the_barrier_too():
    body = (barrier(0), writes(0), barrier(1), reads(1))
    assert redundant(block(loop(2, *body)), 0).verdict == NOT_PROVED
    assert redundant(block(loop(1, *body)), 0).verdict == PROVED


def test_across_the_back_edge_of_a_loop_threads_are_in_different_iterations():
    # Elements of iteration k are s[32 * k + x]: shared neither by other threads nor by other iterations.
    shift = Op("int32", "*", (K, number(32)))
    own = Op("int32", "+", (X, shift))
    store = Store(S, own, Const("float32", 1.0), 0)
    load = Store(OUT, number(0), Load("float32", S, own, 1), 2)
    assert redundant(block(loop(4, store, barrier(0), load)), 0).verdict == PROVED
    ahead = Store(OUT, number(0), Load("float32", S, Op("int32", "+", (own, number(32))), 1), 2)
    assert redundant(block(loop(4, store, barrier(0), ahead)), 0).verdict == PROVED
    other = Store(OUT, number(0), Load("float32", S, Op("int32", "-", (shift, X)), 1), 2)
    assert redundant(block(loop(4, store, barrier(0), other)), 0).verdict == NOT_PROVED


def test_threads_at_a_barrier_are_in_the_same_iteration():
    own = Op("int32", "+", (X, Op("int32", "*", (K, number(16)))))
    store = Store(S, own, Const("float32", 1.0), 0)
    load = Store(OUT, number(0), Load("float32", S, own, 1), 2)
    kernel = block(loop(4, store, barrier(0), load, barrier(1)))
    assert redundant(kernel, 0).verdict == PROVED
    assert redundant(kernel, 1).verdict == NOT_PROVED


def test_a_loop_that_may_not_run_is_passed_by():
    times = Var("int32", "times")
    body = (writes(0), loop(times, barrier(1)), barrier(0), reads(1))
    kernel = dataclasses.replace(block(*body), scalars=(times,))
    assert redundant(kernel, 0).verdict == NOT_PROVED
    assert redundant(block(writes(0), loop(3, barrier(1)), barrier(0), reads(1)), 0).verdict == PROVED


def test_both_sides_of_a_branch_are_reached():
    low = Op("bool", "<", (X, number(16)))
    kernel = block(If(low, Seq(()), writes(0), 8), barrier(0), If(low, reads(0), reads(1), 8))
    before, after = around(kernel, 0).before, around(kernel, 0).after
    assert {site for site, _ in before} == {0} and {site for site, _ in after} == {1}
    assert redundant(kernel, 0).verdict == NOT_PROVED
    apart = block(If(low, Seq(()), writes(0), 8), barrier(0), If(low, reads(-1), Seq(()), 8))
    assert redundant(apart, 0).verdict == PROVED


def test_each_side_of_a_choice_is_read_under_its_condition():
    low = Op("bool", "<", (X, number(16)))
    mirrored = Load("float32", S, Op("int32", "-", (number(31), X)), 1)
    nothing = Const("float32", 0.0)
    for sides, verdict in (((nothing, mirrored), NOT_PROVED), ((mirrored, nothing), PROVED)):
        chosen = Store(OUT, number(0), Choice("float32", low, *sides), 2)
        assert redundant(block(If(low, writes(0), None, 8), barrier(0), chosen), 0).verdict == verdict


def test_a_threads_own_array_is_followed_until_a_branch_or_loop_may_change_it():
    mine = Buffer("mine", "int32", Storage("mine", LOCAL, 4))
    keep, change = (Store(mine, number(0), value, 3) for value in (X, number(0)))
    store = Store(S, Load("int32", mine, number(0), 4), Const("float32", 1.0), 0)
    maybe = Op("bool", "<", (X, number(16)))
    for between, verdict in (
        (Seq(()), PROVED),
        (If(maybe, change, None, 8), NOT_PROVED),
        (If(maybe, Seq(()), change, 8), NOT_PROVED),
        (loop(2, change), NOT_PROVED),
        (loop(2, writes(0)), PROVED),
    ):
        assert redundant(block(keep, between, store, barrier(0), reads(0)), 0).verdict == verdict


def test_one_thread_alone_and_a_barrier_that_is_not_there():
    assert redundant(block(writes(0), barrier(0), reads(1), threads=1), 0).verdict == NOT_PROVED
    with pytest.raises(UsageError, match="kernel made has no barrier 3: it has 1"):
        redundant(block(writes(0), barrier(0)), 3)


# Arithmetic


def test_quotients_and_remainders_are_those_of_python():
    drawn = random.Random(1)
    for _ in range(60):
        x, y, division = z3.Int("x"), z3.Int("y"), Division("t")
        a, b = drawn.randrange(-2000, 2000), drawn.randrange(-2000, 2000)
        term, value = x * drawn.choice((1, 6, 64)) + y, 0
        value = int(z3.simplify(z3.substitute(term, (x, z3.IntVal(a)), (y, z3.IntVal(b)))).as_long())
        for _ in range(3):
            by, shift, take = drawn.choice((2, 3, 16, 960)), drawn.choice((0, 5)), drawn.randrange(2)
            term, value = division.divide(term + shift * x, by)[take], divmod(value + shift * a, by)[take]
        known = z3.Solver()
        known.add(*division.facts, x == a, y == b)
        assert known.check() == z3.sat
        known.add(term != value)
        assert known.check() == z3.unsat


@pytest.mark.parametrize(("columns", "digits"), [(256, 2), (257, 1)])
def test_indices_are_compared_digit_by_digit_only_where_columns_stay_below_the_radix(columns, digits):
    (row, column), (other_row, other_column) = z3.Ints("row column"), z3.Ints("other_row other_column")
    facts = [c >= 0 for c in (column, other_column)] + [c < columns for c in (column, other_column)]

    def holds(fact):
        asked = z3.Solver()
        asked.add(*facts, z3.Not(fact))
        return asked.check() == z3.unsat

    first, second = 256 * row + column - 512, 256 * other_row + other_column - 512
    found = equal(linear(first), linear(second), holds, holds)
    assert len(found) == digits
    assert holds(z3.And(found) == (first == second))


def edited(stmt, change):
    """``stmt`` with ``change`` made to every statement in it."""
    match stmt:
        case Seq():
            stmt = Seq(tuple(edited(s, change) for s in stmt.body))
        case For() | While():
            stmt = dataclasses.replace(stmt, body=edited(stmt.body, change))
    return change(stmt)


def without_barriers(kernel):
    body = edited(kernel.body, lambda s: Seq(()) if isinstance(s, Barrier) else s)
    assert kernel.barriers and not any(isinstance(s, Barrier) for s in statements(body))
    return dataclasses.replace(kernel, body=body)
