"""Outcomes: the worst wins, and each has its exit code."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftgate.outcome import INTERRUPTED, DriftgateError, InfraError, Outcome, UsageError, worst

WORST_FIRST = [Outcome.USAGE, Outcome.DRIFT, Outcome.INFRA, Outcome.NOT_EXERCISED, Outcome.PASS]


@pytest.mark.parametrize(
    ("word", "code"), [("pass", 0), ("drift", 1), ("usage", 2), ("infra", 3), ("not-exercised", 4)]
)
def test_every_outcome_has_its_exit_code(word: str, code: int) -> None:
    assert Outcome(word).exit_code == code


def test_exit_codes_are_distinct_and_no_outcome_lacks_one() -> None:
    codes = [outcome.exit_code for outcome in Outcome]
    assert sorted(codes) == [0, 1, 2, 3, 4]
    assert INTERRUPTED == 130


@pytest.mark.parametrize(
    ("worse", "better"), [(a, b) for i, a in enumerate(WORST_FIRST) for b in WORST_FIRST[i + 1 :]], ids=str
)
def test_the_worse_of_two_wins_in_either_order(worse: Outcome, better: Outcome) -> None:
    assert worst([worse, better]) is worse
    assert worst([better, worse]) is worse


def test_the_worst_of_all_is_usage_whatever_the_order() -> None:
    assert {worst(order) for order in permutations(Outcome)} == {Outcome.USAGE}


def test_nothing_shown_is_not_exercised_rather_than_pass() -> None:
    assert worst([]) is Outcome.NOT_EXERCISED
    assert worst(iter(())) is Outcome.NOT_EXERCISED


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(Outcome), min_size=1))
def test_all_must_pass_for_the_whole_to_pass(outcomes: list[Outcome]) -> None:
    assert (worst(outcomes) is Outcome.PASS) == (set(outcomes) == {Outcome.PASS})
    assert worst(outcomes) in outcomes
    assert worst([worst(outcomes[:1]), worst(outcomes)]) is worst(outcomes)


@pytest.mark.parametrize(("error", "outcome"), [(UsageError, Outcome.USAGE), (InfraError, Outcome.INFRA)])
def test_an_error_carries_its_outcome_and_its_line(error: type[DriftgateError], outcome: Outcome) -> None:
    with pytest.raises(DriftgateError, match=r"^one line$") as caught:
        raise error("one line")
    assert caught.value.outcome is outcome
