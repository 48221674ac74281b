"""Prefill plans: chunk lengths, where they start, and how many merges they cause."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftgate.outcome import UsageError
from driftgate.plan import Plan, chunk_lengths, parse_chunks, split

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12).map(tuple)


def plan(*chunks: int) -> Plan:
    return Plan("p", tuple(range(sum(chunks))), chunks)


@pytest.mark.parametrize(
    ("chunks", "layers", "heads", "calls", "rows"),
    [
        ((8,) * 12, 10, 8, 110, 10 * 8 * 88),
        ((1,) * 20, 10, 8, 0, 0),  # the decode path throughout
        ((96,), 10, 8, 0, 0),  # no past to merge with
        ((16, 16, 16), 10, 8, 20, 10 * 8 * 32),
        ((16, 1, 16, 1), 10, 8, 10, 10 * 8 * 16),  # chunks of one token merge nothing
        ((1, 2), 3, 4, 3, 3 * 4 * 2),  # a first chunk of one token is still a past
        ((64, 64), 18, 4, 18, 18 * 4 * 64),
        ((8, 8), 0, 8, 0, 0),
    ],
)
def test_merges_and_rows_that_a_plan_causes(
    chunks: tuple[int, ...], layers: int, heads: int, calls: int, rows: int
) -> None:
    assert plan(*chunks).merge_calls(layers) == calls
    assert plan(*chunks).rows_merged(layers, heads) == rows


@settings(deadline=None, derandomize=True)
@given(LENGTHS, st.integers(1, 30), st.integers(1, 16))
def test_merge_counts_follow_a_walk_over_the_tokens(chunks: tuple[int, ...], layers: int, heads: int) -> None:
    calls = rows = past = 0
    for length in chunks:
        if past and length > 1:
            calls, rows = calls + layers, rows + length * heads * layers
        past += length
    assert plan(*chunks).merge_calls(layers) == calls
    assert plan(*chunks).rows_merged(layers, heads) == rows
    assert (calls == 0) == (rows == 0)


@settings(deadline=None, derandomize=True)
@given(LENGTHS)
def test_starts_tile_the_prompt(chunks: tuple[int, ...]) -> None:
    starts = plan(*chunks).starts
    covered = [i for start, n in zip(starts, chunks, strict=True) for i in range(start, start + n)]
    assert covered == list(range(sum(chunks)))


@pytest.mark.parametrize(
    ("tokens", "chunk", "expected"),
    [
        (96, 16, (16,) * 6),
        (20, 16, (16, 4)),
        (17, 16, (16, 1)),
        (15, 16, (15,)),
        (16, 16, (16,)),
        (3, 1, (1, 1, 1)),
        (0, 16, ()),
    ],
)
def test_split_shortens_the_last_chunk(tokens: int, chunk: int, expected: tuple[int, ...]) -> None:
    assert split(tokens, chunk) == expected


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 500), st.integers(1, 80))
def test_split_loses_no_token(tokens: int, chunk: int) -> None:
    chunks = split(tokens, chunk)
    assert sum(chunks) == tokens
    assert set(chunks[:-1]) <= {chunk}
    assert all(1 <= n <= chunk for n in chunks)


@pytest.mark.parametrize(("text", "expected"), [("16", (16,)), ("16,16,8", (16, 16, 8)), (" 4, 1 ", (4, 1))])
def test_chunk_text_is_read(text: str, expected: tuple[int, ...]) -> None:
    assert parse_chunks(text) == expected


@pytest.mark.parametrize(
    "text", ["", ",", "16,", ",16", "16,,8", "x", "16;8", "1.5", "16 8", "1e2", "0x10", "nan", "9" * 5000]
)
def test_chunk_text_that_is_no_list_of_lengths_is_usage(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a length or a list of lengths such as 16 or 16,16,8"):
        parse_chunks(text)


@pytest.mark.parametrize("text", ["0", "-1", "16,0", "16,-8,8", "0,0"])
def test_chunks_without_a_token_are_usage(text: str) -> None:
    with pytest.raises(UsageError, match="each length must be at least 1 token"):
        parse_chunks(text)


def test_one_length_is_repeated_over_the_prompt() -> None:
    assert chunk_lengths((16,), None, 40) == (16, 16, 8)
    assert chunk_lengths((16,), 20, 40) == (16, 4)  # what was asked for outranks the plan's own length


def test_a_list_of_lengths_stands_for_the_prompt() -> None:
    assert chunk_lengths((16, 8), None, 40) == (16, 8)
    assert chunk_lengths((16, 8), 24, 40) == (16, 8)


@pytest.mark.parametrize("tokens", [23, 25])
def test_a_list_that_does_not_add_up_is_usage(tokens: int) -> None:
    with pytest.raises(UsageError, match=rf"^chunks 16,8 hold 24 tokens, but {tokens} tokens were asked for$"):
        chunk_lengths((16, 8), tokens, 40)


@pytest.mark.parametrize("ids", [(), (1,), (1, 2, 3)])
def test_a_plan_whose_chunks_do_not_fit_its_prompt_is_usage(ids: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=rf"^chunks 1,1 hold 2 tokens, but the prompt has {len(ids)}$"):
        Plan("p", ids, (1, 1))


def test_a_long_list_of_chunks_is_shown_shortened() -> None:
    with pytest.raises(UsageError) as caught:
        Plan("p", (1,), (1,) * 500)
    assert len(str(caught.value)) < 120
    assert ",... hold 500 tokens" in str(caught.value)


# --- forks and trees --------------------------------------------------------------------------------------------------

IDS = tuple(range(48))


def test_merges_after_a_fork_and_of_a_tree_are_counted_by_block_and_node():
    plan = Plan("t", IDS, (20, 1, 11, 16), ("prefill", "fork", "tree", "prefill"))
    # In itself; one token over two blocks; 11 tokens and a rejected node, 16 tokens, each over two blocks and itself.
    assert plan.merge_calls(10) == 10 * (0 + 1 + 2 + 2)
    assert plan.rows_merged(10, 8) == 80 * (1 + 2 * 12 + 2 * 16)
    assert plan.positions(2) == (21, 22, *range(22, 32))
    assert plan.positions(3) == tuple(range(32, 48))


WRONG_WAYS = [
    ((16, 16, 16), ("prefill", "fork", "prefill"), "a fork has to begin inside a page after the first, not at 16"),
    ((8, 24, 16), ("prefill", "fork", "prefill"), "not at 8"),
    ((20, 12, 16), ("prefill", "branch", "prefill"), "ways are prefill, fork or tree, one a chunk"),
    ((20, 12, 16), ("prefill",), "one a chunk"),
    ((20, 1, 27), ("prefill", "tree", "prefill"), "a tree has at least 2 tokens"),
    ((20, 1, 27), ("prefill", "fork", "fork"), "one fork at most"),
]


@pytest.mark.parametrize(("chunks", "ways", "message"), WRONG_WAYS)
def test_ways_that_cannot_be_are_refused(chunks, ways, message):
    with pytest.raises(UsageError, match=message):
        Plan("t", IDS, chunks, ways)
