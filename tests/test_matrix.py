"""The table of models by checks, and the sweep that shrinks what fails."""

import json
import shlex

import pytest

import models
from driftgate.matrix import part
from driftgate.outcome import UsageError


def test_a_part_is_drawn_by_the_seed_and_keeps_the_order():
    names = models.tiny()
    assert part(names, None, 0) == names
    drawn = {part(names, 2, seed) for seed in range(40)}
    assert part(names, 2, 7) == part(names, 2, 7)
    assert len(drawn) > 10
    assert {name for pair in drawn for name in pair} == set(names)
    assert all(len(pair) == 2 and names.index(pair[0]) < names.index(pair[1]) for pair in drawn)


@pytest.mark.parametrize("count", [0, 9])
def test_a_part_of_more_or_fewer_models_than_there_are_is_usage(count):
    with pytest.raises(UsageError, match=rf"^--part {count}: there are 8 models to draw from$"):
        part(models.tiny(), count, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "unknown model 'nonsense'"),
        (["--part", "9"], "there are 8 models"),
        (["--part", "x"], "whole number"),
        (["--checks", "luck"], "unknown check 'luck'"),
        (["--runs", "0"], "at least 1"),
        (["--out", "/proc/none"], "cannot be written"),
    ],
)
def test_a_matrix_that_cannot_be_is_one_line_and_exit_code_2(run, words, said):
    ran = run("matrix", *words)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_matrix_is_a_row_for_each_model_and_the_worst_of_them(run, tmp_path):
    out = tmp_path / "m"
    ran = run("matrix", "gemma3-tiny", "--checks", "reference,repeat", "--runs", "1", "--out", str(out))
    # One run is compared with nothing.
    assert ran.code == 4, ran.err
    row = next(line for line in ran.out.splitlines() if line.startswith("| gemma3-tiny "))
    assert [cell.strip() for cell in row.split("|")][2:4] == ["pass", "not-exercised"]
    (entry,) = json.loads((out / "matrix.json").read_text())["models"]
    assert entry["verdicts"] == {"reference": "pass", "repeat": "not-exercised"}
    assert 0 < entry["ratio"] < 10
    assert "repeat" in entry["message"]
    assert json.loads((out / "gemma3-tiny" / "result.json").read_text())["known"] == []


def test_a_sweep_of_a_sound_model_passes_and_says_what_it_tried(run):
    ran = run("sweep", "gemma3-tiny", "--examples", "8")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("pass: ")
    assert "plans and" in ran.out
    assert not (ran.folder / "result.json").exists()


def test_a_sweep_shrinks_what_fails_to_a_command_that_shows_it(run):
    ran = run("sweep", "gemma3-tiny", "--examples", "80", "--fault", "page-edge")
    assert ran.code == 1, ran.err
    found, command = ran.out.strip().splitlines()
    assert found.startswith("drift after ")
    # The smallest past of one token over a page, and a chunk that is no decode step.
    assert "plan " in found
    chunks = shlex.split(command)[shlex.split(command).index("--chunk") + 1]
    assert sum(map(int, chunks.split(",")[:-1])) == 17
    assert chunks.endswith(",2")
    again = run(*shlex.split(command.removeprefix("reproduce: driftgate ")))
    assert again.code == 1
    assert again.check("reference")["verdict"] == "drift"


@pytest.mark.parametrize(("words", "said"), [(["--examples", "0"], "at least 1"), (["--fix", "luck"], "unknown corr")])
def test_a_sweep_that_cannot_be_is_one_line_and_exit_code_2(run, words, said):
    ran = run("sweep", "gemma3-tiny", *words)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1
