"""Every planted fault is caught by the check that is named for it; a clean run is silent."""

import functools

import pytest

from driftgate import run
from driftgate.checks.band import BAND_FACTOR
from driftgate.options import CHECKS, resolve
from driftgate.outcome import Outcome
from driftgate.reach import checks as reach
from fixtures.faults import FAULTS, plant
from fixtures.gate import gate_for, preset

IN_PLAN = [fault for fault in FAULTS.values() if fault.caught_by not in ("boundary", "history", "poison")]
"""The others do not strike the default plan, or do not show in it: ``test_reach.py`` has them."""
STABLE = [fault.name for fault in IN_PLAN if fault.stable]
RANDOM = [fault.name for fault in FAULTS.values() if not fault.stable]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """``judge(check, **options)``: the verdict of one check, as the suites come to it."""
    out = str(tmp_path_factory.mktemp("faults"))

    @functools.cache
    def verdict(check, **options):
        flags = {"runs": "12", "target": "llvm", "out": out, **{k.replace("_", "-"): v for k, v in options.items()}}
        gate = gate_for(resolve(flags, {}, {}, preset))
        try:
            return getattr(run if hasattr(run, check) else reach, check)(gate)
        finally:
            gate.close()

    return verdict


@pytest.mark.parametrize("check", CHECKS)
def test_clean_run_is_silent(judge, check):
    assert judge(check).outcome is Outcome.PASS


@pytest.mark.parametrize("name", [fault.name for fault in IN_PLAN])
def test_fault_is_caught_by_its_check(judge, name):
    verdict = judge(FAULTS[name].caught_by, fault=name)
    assert verdict.outcome is Outcome.DRIFT, verdict.message
    assert verdict.figures["fault_hits"] > 0


@pytest.mark.parametrize("name", STABLE)
def test_stable_fault_exceeds_the_band_tenfold(judge, name):
    figures = judge("reference", fault=name).figures
    assert figures["max_abs"] > 10 * figures["band"]
    assert figures["band"] == pytest.approx(BAND_FACTOR * figures["noise_floor"])


@pytest.mark.parametrize("name", STABLE)
def test_stable_fault_repeats_in_every_byte(judge, name):
    verdict = judge("repeat", fault=name)
    assert verdict.outcome is Outcome.PASS, verdict.message
    assert verdict.figures["fault_hits"] > 0


@pytest.mark.parametrize("name", ["merge-wrong", "rope-restart"])
def test_chunking_catches_what_depends_on_chunks(judge, name):
    assert judge("chunking", fault=name).outcome is Outcome.DRIFT


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"])
def test_bit_flip_hits_one_run_of_all_and_is_named(judge, seed):
    verdict = judge("repeat", fault="bit-flip", seed=seed, keep_going="true")
    struck = plant("bit-flip", None, int(seed), 12).chosen_run
    assert (verdict.figures["runs"], verdict.figures["disagreeing"], verdict.figures["fault_hits"]) == (12, 1, 1)
    assert verdict.evidence["odd_runs"] == [struck]
    assert struck in verdict.evidence["runs"]
    left, right = verdict.evidence["hidden"]["bits"]
    assert left != right


def test_race_of_the_reported_rate_is_found_in_300_runs(judge):
    """0.3% a merge call is 6% a prefill."""
    assert judge("repeat", fault="merge-race:0.003", runs="300").outcome is Outcome.DRIFT


def test_race_that_never_struck_passes_and_the_bound_says_what_that_is_worth(judge):
    verdict = judge("repeat", fault="merge-race:0.0001", runs="3")
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures["fault_hits"] == 0
    assert verdict.figures["bound95"] > 0.5
