"""Failure-rate bounds: the published table, SciPy's own test, and what they must never say."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binomtest

from driftgate.stats import lower_bound, upper_bound

CLEAN_RUNS = {
    0.95: {0.10: 29, 0.05: 59, 0.01: 299, 0.005: 598, 0.001: 2995},
    0.99: {0.10: 44, 0.05: 90, 0.01: 459, 0.005: 919, 0.001: 4603},
}
"""Confidence and rate to how many clean runs it takes to show that the rate is lower: ceil(ln(1 - c) / ln(1 - p))."""

COUNTS = st.integers(1, 400).flatmap(lambda runs: st.tuples(st.integers(0, runs), st.just(runs)))
CONFIDENCE = st.sampled_from([0.8, 0.9, 0.95, 0.99, 0.999])


@pytest.mark.parametrize(
    ("confidence", "rate", "runs"), [(c, p, n) for c, row in CLEAN_RUNS.items() for p, n in row.items()]
)
def test_so_many_clean_runs_bound_the_rate_and_one_fewer_does_not(confidence: float, rate: float, runs: int) -> None:
    assert upper_bound(0, runs, confidence) <= rate < upper_bound(0, runs - 1, confidence)


def test_300_clean_runs_bound_the_rate_as_the_report_prints_it() -> None:
    assert f"{upper_bound(0, 300, 0.95):.2%} {upper_bound(0, 300, 0.99):.2%}" == "0.99% 1.52%"


@pytest.mark.parametrize(("failures", "runs"), [(1, 300), (9, 300), (1, 2), (5, 10), (299, 300), (3, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_bounds_are_those_of_scipys_exact_binomial_test(failures: int, runs: int, confidence: float) -> None:
    above = binomtest(failures, runs, alternative="less").proportion_ci(confidence, method="exact").high
    below = binomtest(failures, runs, alternative="greater").proportion_ci(confidence, method="exact").low
    assert upper_bound(failures, runs, confidence) == pytest.approx(above, rel=1e-9)
    assert lower_bound(failures, runs, confidence) == pytest.approx(below, rel=1e-9)


@pytest.mark.parametrize("runs", [1, 7, 300])
def test_the_closed_form_without_failures_is_the_quantile(runs: int) -> None:
    assert upper_bound(0, runs, 0.95) == pytest.approx(beta.ppf(0.95, 1, runs), rel=1e-9)


@settings(deadline=None, derandomize=True)
@given(COUNTS, CONFIDENCE)
def test_bounds_enclose_the_observed_rate_and_the_upper_one_is_never_zero(
    counts: tuple[int, int], confidence: float
) -> None:
    failures, runs = counts
    low, high = lower_bound(failures, runs, confidence), upper_bound(failures, runs, confidence)
    assert 0 <= low <= failures / runs <= high <= 1
    assert high > 0
    assert (low == 0) == (failures == 0)


@settings(deadline=None, derandomize=True)
@given(COUNTS, CONFIDENCE)
def test_bounds_move_as_evidence_does(counts: tuple[int, int], confidence: float) -> None:
    failures, runs = counts
    here = upper_bound(failures, runs, confidence)
    assert upper_bound(failures, runs + 1, confidence) < here
    assert upper_bound(failures + 1, runs + 1, confidence) >= here
    assert lower_bound(failures, runs + 1, confidence) <= lower_bound(failures, runs, confidence)
    assert upper_bound(failures, runs, 0.9995) >= here


@pytest.mark.parametrize("runs", [0, 1, 5])
def test_all_failed_or_none_ran_bounds_nothing(runs: int) -> None:
    assert upper_bound(runs, runs, 0.95) == 1.0


def test_a_clean_bound_needs_no_scipy() -> None:
    calls = "upper_bound(0, 9, 0.95), lower_bound(0, 9, 0.95)"
    code = f"import sys; from driftgate.stats import *; {calls}; print('scipy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
