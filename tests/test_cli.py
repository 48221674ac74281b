"""The command line: outcomes, exit codes, one-line errors, and nothing lost."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import clean_environment


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "the models are gemma4-tiny, "),
        (["--target", "abacus"], "llvm"),
        (["--chunk", "0"], "at least 1 token"),
        (["--chunk", "16,x"], "list of lengths"),
        (["--tokens", "513"], "holds 512"),
        (["--chunk", "300,300"], "holds 512"),
        (["--tokens", "40", "--chunk", "16,16"], "40 tokens were asked for"),
        (["--runs", "0"], "at least 1"),
        (["--runs", "many"], "whole number"),
        (["--page", "32"], "use 16"),
        (["--plan", "soft"], "default, hard"),
        (["--dtype", "bfloat16"], "bfloat16"),
        (["--checks", "repeat,luck"], "repeat, chunking, reference, sentinel"),
        (["--fault", "gremlin"], "merge-race"),
        (["--fault", "merge-race:2"], "at most 1"),
        (["--timeout", "0"], "more than 0"),
        (["--prompt-ids", "absent.json"], "cannot be read"),
        (["--bogus"], "--bogus"),
    ],
)
def test_bad_option_is_one_line_and_exit_code_2(run, words, said):
    ran = run("gate", *words)
    assert ran.code == 2
    assert said in one_line(ran.err)


def test_missing_device_is_infra(run):
    ran = run("gate", "--target", "metal", "--runs", "1", "--checks", "repeat")
    if sys.platform == "darwin":
        pytest.skip("this machine may have a Metal device")
    assert ran.code == 3
    assert "Metal" in ran.check("repeat")["message"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2, 512]", "0 to 511"),
        ("[-1]", "out of vocabulary"),
        ('{"ids": 1}', "JSON list"),
        ("[1.5]", "JSON list"),
        ("[", "JSON list"),
        ("[]", "JSON list"),
        ("[5, 5, 5, 5]", "take a prompt that varies"),
    ],
)
def test_bad_prompt_file_is_one_line_and_exit_code_2(run, tmp_path, content, said):
    path = tmp_path / "ids.json"
    path.write_text(content)
    ran = run("gate", "--prompt-ids", str(path))
    assert ran.code == 2
    assert said in one_line(ran.err)


def test_unwritable_output_folder_is_usage(run, tmp_path):
    (tmp_path / "file").write_text("")
    ran = run("gate", "--out", str(tmp_path / "file" / "out"))
    assert ran.code == 2
    assert "cannot be written" in one_line(ran.err)


def test_prompt_of_one_chunk_is_not_exercised(run):
    ran = run("gate", "--tokens", "16", "--runs", "2", "--checks", "repeat")
    assert ran.code == 4
    assert ran.result["verdict"] == "not-exercised"


def test_prompt_file_is_what_runs(run, tmp_path):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(list(range(20, 60))))
    ran = run("gate", "--prompt-ids", str(path), "--chunk", "16,16,8", "--runs", "2", "--checks", "repeat")
    assert ran.code == 0
    assert ran.result["plan"]["ids"] == list(range(20, 60))
    assert ran.result["plan"]["chunks"] == [16, 16, 8]


def test_hard_plan_crosses_the_window_with_the_corrected_kernel_and_is_judged(run):
    ran = run("gate", "--plan", "hard", "--runs", "2")
    assert ran.code == 0, ran.out
    assert ran.result["plan"]["corrections"] == ["cpu-sliding-prefill"]
    assert ran.check("reference")["figures"]["positions"] == 96


def test_chunk_over_the_window_is_drift_and_names_its_likely_cause(run):
    ran = run("gate", "--tokens", "96", "--chunk", "95,1", "--checks", "reference")
    assert ran.code == 1
    assert ran.check("reference")["evidence"]["likely_causes"] == ["chunk-over-window"]


def test_planted_fault_fails_the_gate_and_its_command_line_plants_it_again(run):
    ran = run("gate", "--fault", "merge-wrong", "--checks", "reference,repeat", "--runs", "2")
    assert ran.code == 1
    assert "PLANTED FAULT: merge-wrong" in ran.out
    assert "--fault merge-wrong" in ran.check("reference")["evidence"]["reproduce"]
    assert ran.check("repeat")["verdict"] == "pass"


def test_known_issues_are_reported(run):
    ran = run("gate", "--checks", "sentinel", "--runs", "1")
    assert ran.code == 0, ran.out
    (known,) = ran.result["known"]
    assert (known["name"], known["status"]) == ("cpu-sliding-nan", "fails")
    assert known["figures"]["corrected_passes"] is True


def test_strict_fails_on_known_issues(run):
    ran = run("gate", "--checks", "sentinel", "--runs", "1", "--strict")
    assert ran.code == 1, ran.out
    assert {check["verdict"] for check in ran.result["checks"]} == {"pass"}


def test_pytest_suites_gives_the_same_verdict_and_exit_codes(run, request):
    suites = str(request.config.rootpath / "suites")
    program = ("-m", "pytest", suites, "-p", "no:cacheprovider")
    ran = run("--runs", "2", "--checks", "repeat", program=program)
    assert ran.code == 0, ran.out
    assert "verdict: pass (exit code 0)" in ran.out
    assert run("--runs", "9", "--checks", "repeat", "--fault", "merge-race", program=program).code == 1
    assert run("--model", "nonsense", program=program).code == 2
    assert run("--bogus", program=program).code == 2
    assert run("--collect-only", program=program).code == 0
    assert run("-k", "no_such_test", program=program).code == 4
    assert run("suites/test_luck.py", program=("-m", "pytest"), cwd=request.config.rootpath).code == 2
    assert run("--tokens", "16", "--runs", "2", "--checks", "repeat", program=program).code == 4


def test_environment_stands_in_for_flags(run):
    assert run("gate", DRIFTGATE_CHUNK="0").err.startswith("driftgate: DRIFTGATE_CHUNK: ")


def test_junit_carries_the_figures(run, tmp_path):
    ran = run("gate", "--runs", "2", "--checks", "repeat", "--junit", str(tmp_path / "junit.xml"))
    assert ran.code == 0
    assert '<property name="merge_calls" value="20"' in (tmp_path / "junit.xml").read_text()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_interrupted_gate_keeps_what_it_finished(tmp_path, sent, code):
    out = tmp_path / "out"
    words = ["gate", "--target", "llvm", "--runs", "100000", "--checks", "chunking,repeat", "--out", str(out)]
    # A shell that runs us in the background has SIGINT ignored, and children inherit that.
    listening = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", listening + "from driftgate.cli import main; sys.exit(main())", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=clean_environment()) as gate:
        try:
            result = wait_for_first_check(gate, out / "result.json")
            os.kill(gate.pid, sent)
            assert gate.wait(timeout=60) == code
        finally:
            gate.kill()
    kept = json.loads((out / "result.json").read_text())
    assert [c["check"] for c in kept["checks"]] == [c["check"] for c in result["checks"]] == ["chunking"]
    assert kept["verdict"] != "pass"
    assert kept["complete"] is False


def wait_for_first_check(gate, path):
    while gate.poll() is None:
        if path.exists() and (result := json.loads(path.read_text()))["checks"]:
            return result
        time.sleep(0.1)
    raise AssertionError("the gate ended before its first check")


def test_models_and_version(run):
    listed = run("models")
    assert listed.code == 0
    assert "gemma4-tiny" in listed.out
    assert "head_dim 512" in listed.out
    assert run("--version").out.startswith("driftgate ")


def test_no_command_is_usage(run):
    assert run().code == 2


def test_what_other_pytest_runs_are_told_does_not_select_checks_away(run):
    ran = run(
        "gate", "--runs", "2", "--checks", "repeat,sentinel", "--fault", "rope-restart", PYTEST_ADDOPTS="-k repeat"
    )
    assert {check["check"] for check in ran.result["checks"]} == {"repeat", "sentinel"}


def test_one_run_is_no_repeat(run):
    ran = run("gate", "--runs", "1", "--checks", "repeat")
    assert ran.code == 4
    assert "compared with nothing" in ran.check("repeat")["message"]


def test_refused_run_leaves_no_older_verdict(run):
    folder = run("gate", "--runs", "0").folder
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text('{"verdict": "pass"}')
    assert run("gate", "--runs", "0").code == 2
    assert not (folder / "result.json").exists()


def test_unwritable_junit_is_usage_before_anything_runs(run, tmp_path):
    (tmp_path / "file").write_text("")
    ran = run("gate", "--junit", str(tmp_path / "file" / "junit.xml"))
    assert ran.code == 2
    assert "--junit" in one_line(ran.err)
