"""Isolation names the kernel that is wrong and no other, and blames nobody on a sound model."""

import functools

import numpy as np
import pytest

from driftgate.checks import isolate
from driftgate.isolation.delta import smallest
from driftgate.isolation.flow import blamed
from driftgate.isolation.observations import (
    NONE,
    OFF_REFERENCE,
    UNSTABLE,
    Confirmation,
    Findings,
    Rate,
    Row,
    Swapped,
    Swept,
    Symptom,
    Synced,
)
from driftgate.modes.replay import Results
from driftgate.options import resolve
from driftgate.outcome import InfraError, Outcome
from driftgate.run import isolate as run_isolation
from driftgate.stats import fisher
from fixtures.faults import FAULTS
from fixtures.gate import gate_for, preset
from fixtures.kernel_text import Last, Line, Text, changed_text
from fixtures.library_faults import BY_NAME

# --- end to end -------------------------------------------------------------------------------------------------------

SUBSET = ["lib-merge-race", "lib-copy-half"]
"""Compiled into the library: a race, and a kernel that only a fork runs. The rest of the table, each of them half a
minute of compiling, is printed by `python -m benchmarks.faults`."""


@pytest.fixture(scope="module")
def isolated(tmp_path_factory):
    """``isolated(**options)``: the verdict of an isolation of gemma4-tiny."""
    out = str(tmp_path_factory.mktemp("isolation"))

    @functools.cache
    def verdict(**options):
        given = {"runs": "40", "target": "llvm", "out": out, "checks": "isolate", "replays": "10", **options}
        gate = gate_for(resolve(given, {}, {}, preset))
        try:
            return run_isolation(gate)
        finally:
            gate.close()

    return verdict


def test_nobody_is_blamed_on_a_sound_model(isolated):
    verdict = isolated()
    assert verdict.outcome is Outcome.NOT_EXERCISED, verdict.message
    assert verdict.figures["symptom"] == NONE
    assert verdict.figures["culprits"] == []
    assert not any(row["culprit"] or row["disagreed"] or row["off"] for row in verdict.rows)
    assert verdict.figures["kernels_swept"] > 50
    assert "failure rate below 7.22% at 95%" in verdict.message


@pytest.mark.parametrize("name", SUBSET)
def test_kernel_with_a_fault_compiled_into_it_is_named_and_no_other(isolated, name):
    fault = BY_NAME[name]
    verdict = isolated(fault=name, plan=fault.plan)
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.figures["culprits"] == [fault.kernel], verdict.message
    assert verdict.figures["confirmed_by_swap"], verdict.message
    assert verdict.figures["symptom"] == (UNSTABLE if fault.random else OFF_REFERENCE)
    assert [row["kernel"] for row in verdict.rows if row["culprit"]] == [fault.kernel]
    assert verdict.evidence["first"]["chunk"] >= 0


def test_rare_race_is_confirmed_by_replays_of_the_kernel(isolated):
    """One merge in 500: too rare for the prefills that were asked for to confirm."""
    verdict = isolated(fault="merge-race:0.002", replays="100")
    assert verdict.figures["culprits"] == ["merge"], verdict.message
    assert verdict.figures["confirmed_by"] == "replays"
    assert verdict.figures["confirmed_by_swap"], verdict.message
    assert verdict.figures["p_value"] < 0.01


def test_fault_at_the_seam_is_named_with_its_first_divergence(isolated):
    verdict = isolated(fault="merge-race", swap="merge=tvm-cpu", sync="kernel")
    assert verdict.figures["culprits"] == ["merge"], verdict.message
    assert "0 of" in verdict.message
    assert "with tvm-cpu" in verdict.message
    assert verdict.evidence["first_divergence"]["kernel"] == "merge"
    assert verdict.evidence["first_divergence"]["inputs_equal"]
    assert verdict.evidence["sync"]["says"] == "survives: it lies inside a kernel"


def test_positions_of_a_chunk_are_named_as_the_vm_s(isolated):
    verdict = isolated(fault="rope-restart")
    assert verdict.figures["culprits"] == [FAULTS["rope-restart"].named], verdict.message
    assert verdict.figures["confirmed_by_swap"], verdict.message


def test_what_strikes_once_and_never_again_is_drift_with_nobody_to_blame(isolated):
    verdict = isolated(fault="bit-flip", runs="12", replays="2")
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.figures["culprits"] == []
    assert "no kernel is to blame" in verdict.message
    assert "takes about --runs" in verdict.message


# --- the command ------------------------------------------------------------------------------------------------------


def test_command_names_the_kernel_and_exits_with_1(run):
    ran = run("isolate", "--fault", "merge-wrong", "--replays", "2")
    assert ran.code == 1, ran.err
    found = ran.result
    (check,) = found["checks"]
    assert (check["check"], check["figures"]["culprits"]) == ("isolate", ["merge"])
    assert check["evidence"]["reproduce"].startswith("driftgate isolate gemma4-tiny")
    assert "merge: logits off by" in ran.out
    assert found["command"].startswith("driftgate isolate")


def test_failing_gate_goes_on_to_isolate_if_asked(run):
    words = ("--checks", "reference", "--fault", "append-drop", "--isolate-on-fail", "--replays", "2")
    ran = run("gate", *words)
    assert ran.code == 1, ran.err
    checks = ran.result["checks"]
    assert [check["check"] for check in checks] == ["reference", "isolate"]
    assert checks[1]["figures"]["culprits"] == ["append"]


def test_passing_gate_isolates_nothing(run):
    ran = run("gate", "--checks", "repeat", "--runs", "2", "--isolate-on-fail")
    assert ran.code == 0, ran.err
    found = ran.result
    assert [check["check"] for check in found["checks"]] == ["repeat"]
    assert found["complete"]


REFUSED = [
    (
        ("--swap", "matmul=numpy"),
        "unknown kernel 'matmul'; the kernels are append, prefill_ragged, prefill_paged, decode",
    ),
    (("--swap", "merge"), "merge can be replaced by numpy, tvm-cpu, single-writer; write merge=numpy"),
    (("--swap", "append=tvm-cpu"), "append can be replaced by numpy; write append=numpy"),
    (("--swap", "merge=numpy,merge=tvm-cpu"), "names a kernel twice"),
    (("--swap", "merge=single-writer"), "it is a GPU kernel, and llvm is none"),
    (("--sync", "all"), "--sync 'all': there are none, call, kernel"),
    (("--replays", "0"), "--replays is 0, but must be at least 1"),
    (("--library", "/nowhere.so"), "--library /nowhere.so: there is no such file"),
    (("--fault", "lib-softcap:0.1"), "it takes no probability"),
    (("--runs", "1"), "isolation compares identical prefills, so it takes two or more"),
    (("--fault", "lib-nothing"), "unknown fault 'lib-nothing'; the faults are merge-race"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(run, words, message):
    ran = run("isolate", *words)
    assert ran.code == 2, ran.out
    assert message in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not (ran.folder / "result.json").exists()


def test_library_that_is_none_is_infra(run, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    ran = run("isolate", "--library", str(broken))
    assert ran.code == 3
    assert "cannot be loaded" in ran.out


# --- the verdict ------------------------------------------------------------------------------------------------------

FIRST = {"run": 0, "chunk": 1, "layer": 2, "call": 3}


def findings(kind=UNSTABLE, rows=(), culprits=(), confirmation=None, **more):
    swept = Swept({row.kernel: row for row in rows}, (), ("merge", "append", "tree"), 1)
    failures = 3 if kind == UNSTABLE else 0
    symptom = Symptom(kind, Rate(failures, 30), 0.5 if kind == OFF_REFERENCE else 0.0, 0.1, 31)
    return Findings(symptom, swept, tuple(culprits), confirmation, **more)


BAD = Row("merge", calls=20, replays=1000, disagreed=30, compared=20, worst_in_bands=9.0, first=FIRST)
GOOD = Row("append", calls=15, replays=750, compared=15)
ALONE = Swapped(("merge",), "numpy", Rate(0, 30))
OTHERS = {"merge": Swapped(("append",), "numpy", Rate(1, 4))}


def confirmed(baseline=(9, 30), alone=ALONE, others=OTHERS, p_value=0.001):
    return Confirmation(Rate(*baseline), alone, others, p_value=p_value, prefills=64)


def test_confirmed_culprit():
    verdict = isolate.judge(findings(rows=[GOOD, BAD], culprits=["merge"], confirmation=confirmed()))
    assert verdict.outcome is Outcome.DRIFT
    assert verdict.figures["confirmed_by_swap"]
    assert [row["kernel"] for row in verdict.rows] == ["merge", "append"]
    assert "with every other kernel replaced that has a replacement it stays" in verdict.message
    assert "never called under this plan: tree" in verdict.evidence["not_told_apart"]


UNCONFIRMED = [
    (
        confirmed(alone=Swapped(("merge",), "numpy", Rate(2, 30))),
        "NOT confirmed: with numpy in place it is still there",
    ),
    (confirmed(p_value=0.2), "which may be chance (p 0.20)"),
    (confirmed(others={"merge": Swapped(("append",), "numpy", Rate(0, 90))}), "but also with every other kernel"),
]


@pytest.mark.parametrize(("confirmation", "message"), UNCONFIRMED)
def test_swap_that_does_not_confirm_is_said_to(confirmation, message):
    verdict = isolate.judge(findings(rows=[BAD], culprits=["merge"], confirmation=confirmation))
    assert verdict.outcome is Outcome.DRIFT
    assert not verdict.figures["confirmed_by_swap"]
    assert message in verdict.message


def test_culprit_without_a_replacement_is_named_and_said_to_be_unconfirmed():
    verdict = isolate.judge(findings(rows=[Row("vm:f", 1, 50, 3)], culprits=["vm:f"]))
    assert verdict.figures["culprits"] == ["vm:f"]
    assert not verdict.figures["confirmed_by_swap"]
    assert "nothing to replace it with" in verdict.message


def test_swap_that_failed_is_said_to_have_and_the_name_stands():
    found = findings(rows=[BAD], culprits=["merge"], notes=("swap: a process was ended by signal 9",))
    verdict = isolate.judge(found)
    assert verdict.figures["culprits"] == ["merge"]
    assert "not confirmed: swap: a process was ended by signal 9" in verdict.message


def test_symptom_without_a_culprit_is_drift():
    verdict = isolate.judge(findings(rows=[GOOD]))
    assert verdict.outcome is Outcome.DRIFT
    assert "no kernel is to blame" in verdict.message


def test_no_symptom_is_not_exercised():
    verdict = isolate.judge(findings(NONE, [GOOD]))
    assert verdict.outcome is Outcome.NOT_EXERCISED
    assert "failure rate below 9.50% at 95%" in verdict.message


SYNCS = [
    ("kernel", (0, 40), 0.0001, "vanishes: it lies between kernels (ordering, lifetime, aliasing)"),
    ("kernel", (12, 40), 0.5, "survives: it lies inside a kernel"),
    ("call", (12, 40), 0.5, "survives a sync after every VM call: it lies inside one VM call"),
    ("kernel", (0, 40), 0.3, "too rare to say"),
]


@pytest.mark.parametrize(("level", "after", "p_value", "says"), SYNCS)
def test_sync_experiment_says_where_an_instability_lies(level, after, p_value, says):
    synced = Synced(level, Rate(12, 40), Rate(*after), p_value)
    found = findings(rows=[BAD], culprits=["merge"], confirmation=confirmed(), synced=synced)
    assert isolate.judge(found).evidence["sync"]["says"] == says


def test_stable_error_is_not_blamed_for_an_instability():
    racing = Row("merge", 20, 1000, 3)
    wrong = Row("append", 15, 750, 0, 15, 15)
    swept = Swept({"append": wrong, "merge": racing}, (), (), 1)
    symptom = Symptom(UNSTABLE, Rate(1, 5), 0.5, 0.1, 6)
    assert blamed(symptom, swept) == ("merge",)
    verdict = isolate.judge(Findings(symptom, swept, ("merge",)))
    assert "off its reference as well, but the same every time: append" in verdict.evidence["not_told_apart"]


def test_results_are_counted_by_their_bytes():
    results = Results()
    for value in (0.0, -0.0, 0.0, 1.0, 0.0, np.nan, np.nan):
        results.add({0: np.array([value], np.float32)})
    assert results.odd == 4
    distinct = Results()
    for value in range(50):
        distinct.add({0: np.array([value], np.float32)})
    assert distinct.odd == 49


# --- delta debugging --------------------------------------------------------------------------------------------------

KERNELS = tuple("abcdefghij")


@pytest.mark.parametrize("guilty", ["a", "j", "ab", "aj", "cfi", "abcdefghij"])
def test_delta_debugging_finds_the_guilty_and_no_other(guilty):
    asked = []

    def enough(names):
        asked.append(names)
        return set(guilty) <= set(names)

    assert "".join(smallest(KERNELS, enough)) == guilty
    assert len(asked) < 60


# --- statistics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table", [(9, 300, 0, 300), (5, 1500, 0, 1500), (1, 1, 0, 1), (3, 7, 2, 9), (8, 53000, 0, 53000)]
)
def test_fisher_agrees_with_scipy(table):
    from scipy.stats import fisher_exact

    a, n, b, m = table
    assert fisher(*table) == pytest.approx(fisher_exact([[a, n - a], [b, m - b]], alternative="greater")[1], rel=1e-9)


# --- faults in the text of a kernel -----------------------------------------------------------------------------------

TEXT = "def f(x):\n    for i in range(4):\n        x[i] = x[i] + 1"


def test_changes_keep_the_indentation():
    changed = changed_text(TEXT, Line("x[i] =", ("{line}", "if i == 3:", "    x[i] = 0")), "t")
    assert changed.splitlines()[2:] == ["        x[i] = x[i] + 1", "        if i == 3:", "            x[i] = 0"]
    assert changed_text(TEXT, Text("+ 1", "+ 2"), "t").endswith("x[i] + 2")
    assert changed_text(TEXT, Last(("x[0] = 1",)), "t").endswith("\n    x[0] = 1")


@pytest.mark.parametrize("change", [Line("y[i]", ()), Text("y[i]", "")])
def test_fault_that_finds_nothing_to_change_says_so(change):
    with pytest.raises(InfraError, match="fault t: the kernel has no 'y"):
        changed_text(TEXT, change, "t")


def test_there_are_at_least_24_faults_and_one_in_the_code_of_every_kernel_that_a_plan_runs():
    assert len(FAULTS) + len(BY_NAME) >= 24
    from driftgate.seam import KERNELS as CACHE

    assert {fault.kernel for fault in BY_NAME.values() if not fault.kernel.startswith("vm:")} == set(CACHE.values()) - {
        "tree_paged"
    }
