"""Histories of a cache as text: what a step means, which token lists a history makes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftgate.outcome import UsageError
from driftgate.plan import PAGE
from driftgate.reach.script import MOST_SEQUENCES, Part, Script, Step, parse

CAPACITY = 256


def stream(count: int) -> tuple[int, ...]:
    """Tokens that are told apart from each other, from places and from lengths."""
    return tuple(1000 + 7 * i for i in range(count))


def counting(asked: list[int]) -> Callable[[int], tuple[int, ...]]:
    """The stream, and in ``asked`` how many tokens were drawn from it each time."""

    def drawn(count: int) -> tuple[int, ...]:
        asked.append(count)
        return stream(count)

    return drawn


def read(text: str, capacity: int = CAPACITY) -> Script:
    return parse("h", text, stream, capacity)


def tokens(*places: range) -> tuple[int, ...]:
    return tuple(stream(10_000)[i] for some in places for i in some)


# --- what a step means ------------------------------------------------------------------------------------------------


def test_a_forward_begins_a_sequence_and_a_second_one_goes_on_with_it() -> None:
    script = read("a+3 a+2")
    whole = tokens(range(5))
    assert script.lists == (whole,)
    assert script.steps == (
        Step("forward", (Part(0, whole[:3], 0, 0),)),
        Step("forward", (Part(0, whole[3:], 3, 0),)),
    )


def test_a_batch_is_one_forward_of_several_parts_in_their_order() -> None:
    script = read("b+4,a+2 a+1,b+1,c+3")
    a, b, c = tokens(range(4, 7)), tokens(range(4), range(7, 8)), tokens(range(8, 11))
    assert script.lists == (b, a, c)
    assert script.steps == (
        Step("forward", (Part(0, b[:4], 0, 0), Part(1, a[:2], 0, 1))),
        Step("forward", (Part(1, a[2:], 2, 1), Part(0, b[4:], 4, 0), Part(2, c, 0, 2))),
    )


def test_what_is_refilled_differs_from_what_was_taken_back() -> None:
    script = read("a+5 a-2 a+2")
    assert script.steps[1] == Step("popn", sequence=0, tokens=2)
    assert script.lists == (tokens(range(5)), tokens(range(3), range(5, 7)))
    popped, refilled = script.steps[0].parts[0].ids[3:], script.steps[2].parts[0].ids
    assert not set(popped) & set(refilled)
    assert (script.steps[0].parts[0].whole, script.steps[2].parts[0].whole) == (0, 1)


@pytest.mark.parametrize(("fork", "at"), [("b=a@3", 3), ("b=a@1", 1), ("b=a@6", 6), ("b=a", 6)])
def test_a_fork_shares_the_beginning_of_its_parent_and_nothing_after_it(fork: str, at: int) -> None:
    script = read(f"a+6 {fork} b+4 a+2")
    assert script.steps[1] == Step("fork", sequence=1, parent=0, position=at)
    child = tokens(range(at), range(6, 10))
    parent = tokens(range(6), range(10, 12))
    assert set(script.lists) == {child, parent}
    made = script.steps[2].parts[0]
    assert (made.sequence, made.start, made.ids) == (1, at, tokens(range(6, 10)))
    assert script.lists[made.whole] == child


def test_a_fork_of_a_fork_and_the_loss_of_the_parent_keep_the_beginning() -> None:
    script = read("a+6 b=a@4 b+2 c=b@5 -a -b c+3")
    a, b, c = tokens(range(6)), tokens(range(4), range(6, 8)), tokens(range(4), range(6, 7), range(8, 11))
    assert script.lists == (a, b, c)
    assert [step.kind for step in script.steps] == ["forward", "fork", "forward", "fork", "remove", "remove", "forward"]
    assert [step.sequence for step in script.steps if step.kind == "remove"] == [0, 1]


def test_a_name_that_was_removed_is_another_sequence_when_it_comes_again() -> None:
    script = read("a+4 -a a+3")
    first, again = script.steps[0].parts[0], script.steps[2].parts[0]
    assert (first.sequence, again.sequence) == (0, 1)
    assert (again.start, again.ids) == (0, tokens(range(4, 7)))
    assert len(script.lists) == 2


def test_tokens_are_drawn_once_and_as_many_as_are_prefilled() -> None:
    asked: list[int] = []
    script = parse("h", "a+20 b=a@17 b+9,a+4 a-3 -b a+1", counting(asked), CAPACITY)
    assert asked == [20 + 9 + 4 + 1]
    brought = [i for step in script.steps for part in step.parts for i in part.ids]
    assert brought == list(stream(34))


def test_a_list_that_is_the_beginning_of_another_needs_no_reference_of_its_own() -> None:
    script = read("a+5 a-2 b=a b+4")
    assert script.lists == (tokens(range(5)), tokens(range(3), range(5, 9)))
    assert read("a+5 a+3 a+1").lists == (tokens(range(9)),)


def test_name_and_text_are_kept_as_they_were_given() -> None:
    script = parse("mine", "  a+2\t a+1 ", stream, CAPACITY)
    assert (script.name, script.text) == ("mine", "  a+2\t a+1 ")
    assert len(script.steps) == 2


# --- what a history exercises -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a+5", ()),
        ("a+1", ()),
        ("a+5 a+2", ()),
        ("a+5 a+1", ("decode",)),
        ("a+5,b+5", ("batch",)),
        ("a+5,b+5 a+3,b+1", ("batch", "decode")),
        ("a+5 a-1", ("popn",)),
        ("a+5 b=a", ("fork",)),
        ("a+5 -a", ("remove",)),
        ("a+5,b+1 a-1 c=a -b a+1", ("batch", "decode", "fork", "popn", "remove")),
    ],
)
def test_kinds_are_what_the_steps_do_besides_prefilling(text: str, kinds: tuple[str, ...]) -> None:
    assert read(text).kinds == kinds


def test_chunks_are_start_and_length_of_every_piece() -> None:
    assert read("a+5,b+2 a-3 a+7 c=b@1 c+4,b+1").chunks == ((0, 5), (0, 2), (2, 7), (1, 4), (2, 1))


def test_forked_chunks_are_those_of_child_and_parent_after_the_fork() -> None:
    assert read("a+5 a+6 c+3 b=a@4 c+2 a+7 b+8,a+1").forked_chunks == ((11, 7), (4, 8), (18, 1))
    assert read("a+5 a+6").forked_chunks == ()
    assert read("a+5 b=a -a -b a+6 b+7").forked_chunks == (), "a name used again has not forked"


# --- any history ------------------------------------------------------------------------------------------------------

NAMES = "abcdefghijkl"
Forward = list[tuple[str, int]]


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[tuple[tuple[int, ...], int]]]:
    """A valid script, and by a simulation of its own: of each piece the sequence's tokens after it, and its start."""
    alive: dict[str, list[int]] = {}
    words, pieces, used = [], [], 0

    def forward() -> None:
        nonlocal used
        known = list(alive)
        free = [name for name in NAMES if name not in alive][: MOST_SEQUENCES - len(alive)]
        batch = draw(st.lists(st.sampled_from(known + free), min_size=1, max_size=3, unique=True))
        steps = []
        for name in batch:
            count = draw(st.integers(1, 40))
            before = alive.get(name, [])
            alive[name] = before + list(stream(used + count)[used:])
            used += count
            steps.append(f"{name}+{count}")
            pieces.append((tuple(alive[name]), len(before)))
        words.append(",".join(steps))

    forward()
    for _ in range(draw(st.integers(0, 12))):
        kinds = ["forward"]
        if any(len(held) > 1 for held in alive.values()):
            kinds.append("popn")
        if alive:
            kinds.append("remove")
            if len(alive) < MOST_SEQUENCES:
                kinds.append("fork")
        kind = draw(st.sampled_from(kinds))
        if kind == "forward":
            forward()
        elif kind == "popn":
            name = draw(st.sampled_from([name for name, held in alive.items() if len(held) > 1]))
            count = draw(st.integers(1, len(alive[name]) - 1))
            alive[name] = alive[name][:-count]
            words.append(f"{name}-{count}")
        elif kind == "fork":
            parent = draw(st.sampled_from(sorted(alive)))
            child = draw(st.sampled_from([name for name in NAMES if name not in alive]))
            at = draw(st.integers(1, len(alive[parent])))
            whole = at == len(alive[parent]) and draw(st.booleans())
            alive[child] = alive[parent][:at]
            words.append(f"{child}={parent}" if whole else f"{child}={parent}@{at}")
        else:
            name = draw(st.sampled_from(sorted(alive)))
            del alive[name]
            words.append(f"-{name}")
    return " ".join(words), pieces


@settings(deadline=None, derandomize=True, max_examples=300)
@given(histories())
def test_lists_are_the_maximal_ones_and_every_piece_lies_in_its_own(
    made: tuple[str, list[tuple[tuple[int, ...], int]]],
) -> None:
    text, pieces = made
    script = read(text, capacity=100_000)
    held = {whole for whole, _ in pieces}
    maximal = {one for one in held if not any(len(one) < len(other) and other[: len(one)] == one for other in held)}
    assert set(script.lists) == maximal
    assert len(script.lists) == len(maximal)
    parts = [part for step in script.steps for part in step.parts]
    assert len(parts) == len(pieces)
    for part, (whole, start) in zip(parts, pieces, strict=True):
        assert part.start == start
        assert part.ids == whole[start:]
        assert script.lists[part.whole][: len(whole)] == whole
    assert script.chunks == tuple((start, len(whole) - start) for whole, start in pieces)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(histories(), st.integers(1, 40))
def test_a_history_is_taken_exactly_where_its_pages_fit(made: tuple[str, object], pages: int) -> None:
    text, _ = made
    alive: dict[str, int] = {}
    most = longest = 0
    for word in text.split():
        if "+" in word:
            for name, _, count in (part.partition("+") for part in word.split(",")):
                alive[name] = alive.get(name, 0) + int(count)
                longest = max(longest, int(count))
        elif "=" in word:
            child, _, source = word.partition("=")
            parent, _, at = source.partition("@")
            alive[child] = int(at) if at else alive[parent]
        elif word.startswith("-"):
            del alive[word[1:]]
        else:
            name, _, count = word.partition("-")
            alive[name] -= int(count)
        most = max(most, sum(-(-length // PAGE) for length in alive.values()))
    capacity = pages * PAGE
    if most <= pages and longest <= capacity:
        assert read(text, capacity).text == text
    else:
        with pytest.raises(UsageError, match=rf"the cache of {capacity} holds|1 to {capacity} tokens"):
            read(text, capacity)


# --- what is refused --------------------------------------------------------------------------------------------------

EIGHT = ",".join(f"{name}+1" for name in "abcdefgh")

REFUSED = {
    "nothing": ("", "at least one step, such as a+20"),
    "blanks": (" \t\n ", "at least one step, such as a+20"),
    "no such step": ("a+5 boom", "boom: no such step; there are a+N, a+N,b+N, a-N, b=a@N, b=a and -a"),
    "a long name": ("aa+5", "aa+5: no such step; there are a+N"),
    "a capital": ("A+5", "A+5: no such step; there are a+N"),
    "no number": ("a+5 a+", "a+: no such step; there are a+N"),
    "a negative number": ("a+5 a+-3", "a+-3: no such step; there are a+N"),
    "a comma too many": ("a+5,", "a+5,: no such step; there are a+N"),
    "a batch of other steps": ("a+5 a+1,a-1", "a+1,a-1: no such step; there are a+N"),
    "no tokens": ("a+0", "a+0: 1 to 256 tokens can be prefilled"),
    "no tokens in a batch": ("a+3,b+0", "a+3,b+0: 1 to 256 tokens can be prefilled"),
    "more tokens than the cache": ("a+257", "a+257: 1 to 256 tokens can be prefilled"),
    "more tokens by and by": ("a+200 a+57", "a+57: more tokens than the cache of 256 holds"),
    "more tokens in two sequences": ("a+128 b+129", "b+129: more tokens than the cache of 256 holds"),
    "pages that are not full": ("a+250,b+1", "a+250,b+1: more tokens than the cache of 256 holds"),
    "more tokens by a fork": ("a+250 b=a", "b=a: more tokens than the cache of 256 holds"),
    "none taken back": ("a+5 a-0", "a-0: of 5 tokens 1 to 4 can be taken back"),
    "all taken back": ("a+5 a-5", "a-5: of 5 tokens 1 to 4 can be taken back"),
    "more taken back than are there": ("a+5 a-6", "a-6: of 5 tokens 1 to 4 can be taken back"),
    "taken back from nobody": ("a+5 b-1", "b-1: there is no sequence b then"),
    "a fork at 0": ("a+5 b=a@0", "b=a@0: a has 5 tokens, so a fork is at 1 to 5"),
    "a fork past the end": ("a+5 b=a@6", "b=a@6: a has 5 tokens, so a fork is at 1 to 5"),
    "a fork past what was taken back": ("a+5 a-2 b=a@4", "b=a@4: a has 3 tokens, so a fork is at 1 to 3"),
    "a fork onto a living name": ("a+5,b+5 b=a@3", "b=a@3: sequence b is there already"),
    "a fork onto itself": ("a+5 a=a@3", "a=a@3: sequence a is there already"),
    "a fork of nobody": ("a+5 b=c", "b=c: there is no sequence c then"),
    "nobody removed": ("a+5 -b", "-b: there is no sequence b then"),
    "removed twice": ("a+5 -a -a", "-a: there is no sequence a then"),
    "removed first": ("-a", "-a: there is no sequence a then"),
    "a sequence twice in a batch": ("a+5,b+1,a+2", "a+5,b+1,a+2: a sequence twice in one batch"),
    "nine sequences": (f"{EIGHT} i+1", "i+1: more than 8 sequences at one time"),
    "nine sequences in a batch": (f"{EIGHT},i+1", "i+1: more than 8 sequences at one time"),
    "nine sequences by a fork": (f"{EIGHT} i=a", "i=a: more than 8 sequences at one time"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_bad_history_is_refused_in_one_line_that_names_the_step_and_what_is_allowed(text: str, said: str) -> None:
    asked: list[int] = []
    with pytest.raises(UsageError) as caught:
        parse("h", text, counting(asked), CAPACITY)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert not asked, "no token is drawn for a history that cannot be made"
    if text.strip():
        assert message.startswith(f"history {text!r}: ")


def test_eight_sequences_and_a_ninth_after_one_is_gone_are_taken() -> None:
    script = read(f"{EIGHT} -c i+1 -a j=b j+1")
    assert {part.sequence for step in script.steps for part in step.parts} == set(range(10))


@pytest.mark.parametrize("text", ["a+256", "a+128 b+128", "a+240,b+16", "a+200 a-199 a+255", "a+256 -a a+256"])
def test_a_history_that_fills_the_cache_to_its_end_is_taken(text: str) -> None:
    assert read(text).text == text
