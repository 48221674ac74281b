"""Every planted fault is caught by the check that is named for it; a clean run is silent."""

import pytest

from driftgate.checks.band import BAND_FACTOR
from fixtures.faults import FAULTS, plant

RUNS = "12"
STABLE = [fault.name for fault in FAULTS.values() if fault.stable]


def test_clean_run_passes_every_check(run):
    ran = run("gate", "--runs", RUNS)
    assert ran.code == 0, ran.out
    assert {c["check"]: c["verdict"] for c in ran.result["checks"]} == dict.fromkeys(
        ("chunking", "reference", "repeat", "sentinel"), "pass"
    )
    assert ran.result["verdict"] == "pass"
    figures = ran.check("repeat")["figures"]
    # 2 later chunks of 16 tokens, 10 attention layers, 8 heads.
    assert (figures["merge_calls"], figures["rows_merged"]) == (20, 20 * 16 * 8)
    assert ran.check("reference")["figures"]["max_abs"] <= 5e-5


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught_by_its_check(run, name):
    check = FAULTS[name].caught_by
    ran = run("gate", "--runs", RUNS, "--fault", name, "--checks", check)
    assert ran.code == 1, ran.out
    found = ran.check(check)
    assert found["verdict"] == "drift"
    assert f"--fault {name}" in found["evidence"]["reproduce"]


@pytest.mark.parametrize("name", STABLE)
def test_stable_fault_exceeds_the_band_tenfold_and_repeats_exactly(run, name):
    ran = run("gate", "--runs", RUNS, "--fault", name, "--checks", "reference,repeat")
    figures = ran.check("reference")["figures"]
    assert figures["max_abs"] > 10 * figures["band"]
    assert figures["band"] == pytest.approx(BAND_FACTOR * figures["noise_floor"])
    assert ran.check("repeat")["verdict"] == "pass"


def test_bit_flip_hits_one_run_of_all_and_names_it(run):
    ran = run("gate", "--runs", "30", "--fault", "bit-flip", "--checks", "repeat", "--keep-going")
    figures = ran.check("repeat")["figures"]
    assert (figures["runs"], figures["disagreeing"], figures["fault_hits"]) == (30, 1, 1)
    evidence = ran.check("repeat")["evidence"]
    assert plant("bit-flip", None, 0, 30).chosen_run in evidence["runs"]
    assert evidence["hidden"]["bits"][0] != evidence["hidden"]["bits"][1]


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_bit_flip_is_seen_whatever_it_draws(run, seed):
    ran = run("gate", "--runs", "6", "--fault", "bit-flip", "--seed", seed, "--checks", "repeat", "--keep-going")
    assert ran.check("repeat")["figures"]["disagreeing"] == 1


def test_rare_race_is_missed_by_few_runs_and_the_bound_says_so(run):
    ran = run("gate", "--runs", "3", "--fault", "merge-race:0.0001", "--checks", "repeat")
    figures = ran.check("repeat")["figures"]
    assert ran.code == 0
    assert figures["fault_hits"] == 0
    assert figures["bound95"] > 0.5
