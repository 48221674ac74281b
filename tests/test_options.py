"""Options: what outranks what, what is refused and how, and a command line that asks for the same again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftgate import options
from driftgate.cli import _parser
from driftgate.options import CHECKS, OPTIONS, Settings, command_line, resolve
from driftgate.outcome import UsageError

PRESETS = {"runs": "11", "chunk": "8", "checks": "repeat", "timeout": "11"}

SOURCES = ["flag", "env", "ini", "preset", "default"]


def resolved(
    flags: dict[str, str | None] | None = None,
    env: dict[str, str] | None = None,
    ini: dict[str, str] | None = None,
    preset: dict[str, str] | None = None,
) -> Settings:
    return resolve(flags or {}, env or {}, ini or {}, lambda model: preset or {})


def option(name: str) -> options.Option:
    return next(o for o in OPTIONS if o.name == name)


# --- what outranks what -----------------------------------------------------------------------------------------------

VALUES: dict[str, list[tuple[str, Any]]] = {
    # From the strongest source to the weakest, text and value; the last is the default.
    "runs": [("7", 7), ("8", 8), ("9", 9), ("10", 10), ("300", 300)],
    "tokens": [("7", 7), ("8", 8), ("9", 9), ("10", 10), ("", None)],
    "chunk": [("4", (4,)), ("5,6", (5, 6)), ("7", (7,)), ("8", (8,)), ("", None)],
    "target": [("a", "a"), ("b", "b"), ("c", "c"), ("d", "d"), ("", None)],
    "timeout": [("1.5", 1.5), ("2", 2.0), ("3", 3.0), ("4", 4.0), ("300", 300.0)],
    "checks": [
        ("repeat", ("repeat",)),
        ("sentinel,repeat", ("sentinel", "repeat")),
        ("reference", ("reference",)),
        ("chunking", ("chunking",)),
        ("", CHECKS),
    ],
    "out": [("a", Path("a")), ("b", Path("b")), ("c", Path("c")), ("d", Path("d")), ("", Path("driftgate-out"))],
    "strict": [("true", True), ("false", False), ("yes", True), ("0", False), ("", False)],
    "fault": [("a:0.5", ("a", 0.5)), ("b", ("b", None)), ("c:1", ("c", 1.0)), ("d", ("d", None)), ("", None)],
    "prompt-ids": [("a", Path("a")), ("b", Path("b")), ("c", Path("c")), ("d", Path("d")), ("", None)],
}


@pytest.mark.parametrize("strongest", range(5), ids=SOURCES)
@pytest.mark.parametrize("name", VALUES)
def test_flag_outranks_environment_outranks_ini_outranks_preset_outranks_default(name: str, strongest: int) -> None:
    texts = [text if i >= strongest else None for i, (text, _) in enumerate(VALUES[name])]
    flag, env, ini, preset, _ = texts
    settings = resolved(
        {name: flag},
        {} if env is None else {option(name).env: env},
        {name: ini or ""},
        {} if preset is None else {name: preset},
    )
    assert getattr(settings, option(name).key) == VALUES[name][strongest][1]


def test_empty_text_counts_as_not_given() -> None:
    settings = resolved({"runs": None}, {"DRIFTGATE_RUNS": ""}, {"runs": ""}, {"runs": "5"})
    assert settings.runs == 5


def test_the_preset_is_that_of_the_model_that_was_asked_for() -> None:
    asked = []

    def preset(model: str) -> dict[str, str]:
        asked.append(model)
        return {"runs": "20"} if model == "m" else {}

    assert resolve({}, {"DRIFTGATE_MODEL": "m"}, {}, preset).runs == 20
    assert resolve({"model": "other"}, {"DRIFTGATE_MODEL": "m"}, {}, preset).runs == 300
    assert resolve({}, {}, {}, preset).model == "gemma4-tiny"
    assert asked == ["m", "other", "gemma4-tiny"]


def test_every_default_is_a_value_and_no_option_is_lost() -> None:
    settings = resolved()
    assert {o.key for o in OPTIONS} | {"flags"} == set(vars(settings))
    assert (settings.runs, settings.blocks, settings.page, settings.seed, settings.timeout) == (300, 3, 16, 0, 300.0)
    assert (settings.checks, settings.plan, settings.strict, settings.keep_going) == (CHECKS, "default", False, False)
    assert settings.flags == ()


@pytest.mark.parametrize("o", OPTIONS, ids=lambda o: o.name)
def test_names_of_an_option_follow_from_one_another_and_the_help_shows_the_default(o: options.Option) -> None:
    key = o.name.replace("-", "_")
    assert (o.key, o.ini, o.env) == (key, f"driftgate_{key}", f"DRIFTGATE_{key.upper()}")
    assert o.described.endswith(f"(default: {o.default or o.otherwise})")
    assert "\n" not in o.described


# --- what is refused --------------------------------------------------------------------------------------------------

LIST = "is not a length or a list of lengths such as 16 or 16,16,8"
PROBABILITY = "the probability per kernel call must be above 0 and at most 1"

BAD_TEXTS: list[tuple[str, str, str]] = [
    # Options, texts that none of them takes, and the message; {0} is the option, {1} the text.
    ("runs blocks tokens page seed", "x 1.5 1e3 nan", "--{0} takes a whole number, not '{1}'"),
    ("runs blocks tokens page", "0 -1", "--{0} is {1}, but must be at least 1"),
    ("seed", "-1", "--{0} is {1}, but must be at least 0"),
    ("chunk", "x 16, 1.5", "chunk '{1}' " + LIST),
    ("chunk", "0 16,0", "chunk '{1}': each length must be at least 1 token"),
    ("timeout", "x 1,5 5s", "--{0} takes seconds, not '{1}'"),
    ("timeout", "0 -1 nan inf", "--{0} is {1} s, but must be more than 0"),
    (
        "checks",
        "x repeat,x Repeat,x , repeat,",
        "unknown check '.*'; the checks are repeat, chunking, reference, sentinel, boundary, history, poison, isolate, "
        "races, limits, codegen",
    ),
    ("fault", "nan-row:x", "--{0} '{1}': 'x' is not a probability per kernel call"),
    ("fault", "nan-row:0 nan-row:-1 nan-row:1.01 nan-row:nan nan-row:inf", "--{0} '{1}': " + PROBABILITY),
    ("strict keep-going", "maybe", "'{1}' is neither true nor false"),
]
BAD = [
    (name, text, message.format(name, text))
    for names, texts, message in BAD_TEXTS
    for name in names.split()
    for text in texts.split()
]


@pytest.mark.parametrize("source", SOURCES[:4])
@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_a_bad_value_is_one_line_that_says_what_is_allowed_and_where_it_stood(
    name: str, text: str, message: str, source: str
) -> None:
    places: dict[str, dict[str, Any]] = {"flag": {name: text}, "env": {option(name).env: text}}
    places |= {"ini": {name: text}, "preset": {name: text}}
    given = [places[kind] if kind == source else {} for kind in SOURCES[:4]]
    named = {"flag": "", "env": f"{option(name).env}: ", "ini": f"{option(name).ini}: ", "preset": "preset: "}
    with pytest.raises(UsageError, match=rf"^{named[source]}{message}$") as caught:
        resolved(*given)
    assert "\n" not in str(caught.value)


def test_a_bad_value_that_is_outranked_does_no_harm() -> None:
    assert resolved({"runs": "5"}, {"DRIFTGATE_RUNS": "x"}).runs == 5


def test_an_unknown_model_is_refused_by_whoever_knows_the_presets() -> None:
    def preset(model: str) -> dict[str, str]:
        raise UsageError(f"unknown model {model!r}")

    with pytest.raises(UsageError, match="unknown model 'x'"):
        resolve({"model": "x"}, {}, {}, preset)


@settings(deadline=None, derandomize=True)
@given(st.sampled_from([o.name for o in OPTIONS if o.parse is not str and o.parse is not Path]), st.text(min_size=1))
def test_any_text_is_a_value_or_a_usage_error(name: str, text: str) -> None:
    try:
        resolved({name: text})
    except UsageError as error:
        assert str(error)


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "on"])
def test_switches_are_on_in_words(text: str) -> None:
    assert resolved(env={"DRIFTGATE_STRICT": text}).strict


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_switches_are_off_in_words(text: str) -> None:
    assert not resolved({}, {"DRIFTGATE_STRICT": text}, {"strict": "true"}).strict


def test_a_check_named_twice_runs_once() -> None:
    assert resolved({"checks": "sentinel, repeat,sentinel"}).checks == ("sentinel", "repeat")


# --- asking for the same again ----------------------------------------------------------------------------------------


def asked_again(line: str, preset: dict[str, str]) -> Settings:
    """What the command line ``line`` asks for, in a bare environment."""
    words = shlex.split(line)
    assert words[:2] == ["driftgate", "gate"]
    parsed = _parser().parse_args(words[1:])
    return resolved({o.name: getattr(parsed, o.key) for o in OPTIONS}, preset=preset)


ASKED = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["gemma4-tiny", "gemma3-270m"]),
        "target": st.sampled_from(["llvm", "metal"]),
        "runs": st.integers(1, 10**6).map(str),
        "blocks": st.integers(1, 64).map(str),
        "tokens": st.integers(1, 4096).map(str),
        "chunk": st.lists(st.integers(1, 512), min_size=1, max_size=5).map(lambda c: ",".join(map(str, c))),
        "plan": st.sampled_from(["default", "hard"]),
        "page": st.just("16"),
        "dtype": st.sampled_from(["float32", "float16"]),
        "checks": st.lists(st.sampled_from(CHECKS), min_size=1, unique=True).map(",".join),
        "seed": st.integers(0, 2**32).map(str),
        "prompt-ids": st.sampled_from(["ids.json", "../a/ids.json"]),
        "fault": st.sampled_from(["merge-race", "nan-row:0.25", "bit-flip:1e-3"]),
        "timeout": st.floats(0.1, 1e4).map(str),
        "strict": st.sampled_from(["true", "false"]),
        "keep-going": st.sampled_from(["true", "yes", "0"]),
    },
)


@settings(deadline=None, derandomize=True)
@given(ASKED, st.sampled_from(["flag", "env", "ini"]), st.sampled_from([{}, PRESETS]))
def test_the_command_line_asks_for_the_same_settings(
    asked: dict[str, str], source: str, preset: dict[str, str]
) -> None:
    flags = asked if source == "flag" else {}
    env = {option(name).env: text for name, text in asked.items()} if source == "env" else {}
    first = resolved(dict(flags), env, asked if source == "ini" else {}, preset)
    again = asked_again(command_line(first), preset)
    for o in OPTIONS:
        assert getattr(again, o.key) == getattr(first, o.key), o.name
    assert command_line(again) == command_line(first)


def test_the_command_line_of_defaults_is_bare() -> None:
    assert command_line(resolved()) == "driftgate gate gemma4-tiny"


def test_the_command_line_leaves_out_where_results_went() -> None:
    line = command_line(resolved({"out": "elsewhere", "junit": "x.xml", "runs": "5", "strict": "true"}))
    assert line == "driftgate gate gemma4-tiny --runs 5 --strict"


def test_changes_outrank_what_was_asked_for_and_may_add_to_it() -> None:
    settings = resolved({"checks": "repeat,sentinel", "runs": "5"})
    line = command_line(settings, checks="repeat", target="llvm", prompt_ids="ids.json")
    assert line == "driftgate gate gemma4-tiny --runs 5 --checks repeat --target llvm --prompt-ids ids.json"
    assert asked_again(line, {}).checks == ("repeat",)


@pytest.mark.parametrize("path", ["my ids.json", "it's.json"])
def test_the_command_line_survives_the_shell(path: str) -> None:
    first = resolved({"prompt-ids": path})
    assert shlex.split(command_line(first))[-1] == path


def test_a_newline_in_a_value_does_not_break_the_line() -> None:
    with pytest.raises(UsageError) as caught:
        resolved(env={"DRIFTGATE_TIMEOUT": "-1\n"})
    assert "\n" not in str(caught.value)


def test_command_that_isolates_again_is_one_that_isolate_takes() -> None:
    settings = resolved({"isolate-on-fail": "true", "runs": "7", "checks": "reference,repeat"})
    assert command_line(settings, checks="isolate") == "driftgate isolate gemma4-tiny --runs 7"
