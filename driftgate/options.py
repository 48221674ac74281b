"""The options of the gate: one table, one function that merges where their values come from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftgate.outcome import UsageError
from driftgate.plan import parse_chunks

DEFAULT_MODEL = "gemma4-tiny"
CHECKS = ("repeat", "chunking", "reference", "sentinel", "boundary", "history", "poison")
"""What a gate runs."""
LETTERS = dict(zip(CHECKS, "RKHNBPX", strict=True))
"""How cases and tables call them."""
ISOLATE = "isolate"
KERNEL_CHECKS = ("races", "limits", "codegen")
"""What a gate judges of GPU kernels where it is asked to; they need no device."""
EVERY_CHECK = (*CHECKS, ISOLATE, *KERNEL_CHECKS)
SYNCS = ("none", "call", "kernel")


@dataclass(frozen=True)
class Option:
    """One option, as a flag ``--name``, a variable ``DRIFTGATE_NAME`` and an ini key ``driftgate_name``."""

    name: str
    default: str | None
    help: str
    parse: Callable[[str], Any] = str
    switch: bool = False
    """A flag without a value; in the environment and the ini file it takes ``true`` or ``false``."""
    metavar: str | None = None
    otherwise: str = "none"
    """What stands in for a default that depends on other things."""

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def ini(self) -> str:
        return f"driftgate_{self.key}"

    @property
    def env(self) -> str:
        return self.ini.upper()

    @property
    def described(self) -> str:
        return f"{self.help} (default: {self.default or self.otherwise})"


@dataclass(frozen=True)
class Settings:
    """Every option with its value. Names as in the table, dashes as underscores."""

    model: str
    target: str | None
    runs: int
    blocks: int
    tokens: int | None
    chunk: tuple[int, ...] | None
    plan: str
    page: int
    dtype: str | None
    checks: tuple[str, ...]
    seed: int
    prompt_ids: Path | None
    fault: tuple[str, float | None] | None
    out: Path
    junit: Path | None
    timeout: float
    strict: bool
    keep_going: bool
    library: Path | None
    replays: int
    swap: tuple[tuple[str, str], ...]
    sync: str
    isolate_on_fail: bool
    cases: bool
    fix: tuple[str, ...] | None
    history: str | None
    flags: tuple[tuple[str, str], ...] = ()
    """What was asked for other than by default, as flags: enough to ask for it again."""


def whole(name: str, least: int) -> Callable[[str], int]:
    """A parser of whole numbers from ``least`` on, for option ``name``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"--{name} takes a whole number, not {text!r}") from None
        if value < least:
            raise UsageError(f"--{name} is {value}, but must be at least {least}")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"--timeout takes seconds, not {text!r}") from None
    if not 0 < value < float("inf"):
        raise UsageError(f"--timeout is {value:g} s, but must be more than 0")
    return value


def parse_checks(text: str) -> tuple[str, ...]:
    """``NAME[,NAME...]`` to names, each once. Raises UsageError with those that exist."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in EVERY_CHECK]
    if unknown:
        raise UsageError(f"unknown check {unknown[0]!r}; the checks are {', '.join(EVERY_CHECK)}")
    return names


def _swap(text: str) -> tuple[tuple[str, str], ...]:
    from driftgate.kernels.replacements import parse

    return parse(text) if text else ()


def _fix(text: str) -> tuple[str, ...]:
    from driftgate.kernels.corrections import parse

    return parse(text)


def _sync(text: str) -> str:
    if text not in SYNCS:
        raise UsageError(f"--sync {text!r}: there are {', '.join(SYNCS)}")
    return text


def _fault(text: str) -> tuple[str, float | None]:
    name, _, rate = text.partition(":")
    if not name:
        raise UsageError(f"--fault {text!r} names no fault; write NAME or NAME:P")
    if not rate:
        return name, None
    try:
        value = float(rate)
    except ValueError:
        raise UsageError(f"--fault {text!r}: {rate!r} is not a probability per kernel call") from None
    if not 0 < value <= 1:
        raise UsageError(f"--fault {text!r}: the probability per kernel call must be above 0 and at most 1")
    return name, value


def _truth(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise UsageError(f"{text!r} is neither true nor false")


OPTIONS = (
    Option("model", DEFAULT_MODEL, "preset to test; `driftgate models` lists them"),
    Option("target", None, "llvm, metal, cuda, ...: where to run", otherwise="the best device found"),
    Option("runs", "300", "identical prefills, of check repeat and of isolate", whole("runs", 1), metavar="N"),
    Option("blocks", "3", "fresh processes that share those runs", whole("blocks", 1), metavar="N"),
    Option("tokens", None, "prompt length in tokens", whole("tokens", 1), metavar="N", otherwise="the plan's"),
    Option(
        "chunk",
        None,
        "chunk length, or a list of them such as 16,16,8",
        parse_chunks,
        metavar="N[,N...]",
        otherwise="the plan's",
    ),
    Option("plan", "default", "prefill plan of the preset, such as default or hard"),
    Option("page", "16", "tokens of a KV-cache page; TVM's kernels take 16 alone", whole("page", 1), metavar="N"),
    Option("dtype", None, "float32 or float16", otherwise="the target's own"),
    Option("checks", ",".join(CHECKS), "checks to run", parse_checks, metavar="NAME[,NAME...]"),
    Option("seed", "0", "draws random weights, prompts and planted faults", whole("seed", 0), metavar="S"),
    Option(
        "prompt-ids", None, "JSON file with a list of token ids", Path, metavar="FILE", otherwise="the preset's prompt"
    ),
    Option("fault", None, "plant a fault, at probability P per kernel call", _fault, metavar="NAME[:P]"),
    Option("out", "driftgate-out", "folder for result.json", Path, metavar="DIR"),
    Option("junit", None, "also write JUnit XML", Path, metavar="FILE"),
    Option("timeout", "300", "seconds without a sign of life until a process counts as hung", _seconds, metavar="S"),
    Option("strict", "false", "fail on known issues as well, and on stale ones", _truth, switch=True),
    Option("keep-going", "false", "do not stop at the first disagreeing run", _truth, switch=True),
    Option(
        "library",
        None,
        "test this compiled library of the model; it is native code and is run",
        Path,
        metavar="FILE",
        otherwise="compiled from the preset",
    ),
    Option(
        "replays",
        "50",
        "check isolate: runs of every kernel on the inputs of each call",
        whole("replays", 1),
        metavar="K",
    ),
    Option(
        "swap",
        "",
        "check isolate: what replaces a kernel, such as merge=tvm-cpu",
        _swap,
        metavar="KERNEL=HOW[,...]",
        otherwise="numpy for each",
    ),
    Option(
        "sync",
        "none",
        "check isolate: wait for the device after every VM call, or around every kernel as well",
        _sync,
        metavar="|".join(SYNCS),
    ),
    Option("isolate-on-fail", "false", "where a check finds drift, go on to isolate the kernel", _truth, switch=True),
    Option("cases", "false", "also run the recorded cases of the checks that are asked for", _truth, switch=True),
    Option(
        "fix",
        None,
        "swap corrected kernels in for the whole gate, or none",
        _fix,
        metavar="NAME[,NAME...]",
        otherwise="those that the plan is known to need",
    ),
    Option(
        "history",
        None,
        "check history: this one alone, such as 'a+20 b=a@17 b+9,a+4 a-3 -b'",
        metavar="STEPS",
        otherwise="one of every kind",
    ),
)


def resolve(
    flags: Mapping[str, str | None],
    env: Mapping[str, str],
    ini: Mapping[str, str],
    preset: Callable[[str], Mapping[str, str]],
) -> Settings:
    """Merge the sources of every option: flag, then environment, then ini file, then the model's preset, then default.

    ``flags`` and ``ini`` are by option name; ``preset`` gives the values that a model sets. Raises UsageError, which
    names the source where it is not a flag.
    """

    def given(option: Option) -> tuple[str, str] | None:
        for source, text in (
            ("flag", flags.get(option.name)),
            (option.env, env.get(option.env)),
            (option.ini, ini.get(option.name)),
        ):
            if text not in (None, ""):
                return source, str(text)
        return None

    asked = {option.name: found for option in OPTIONS if (found := given(option))}
    from_preset = preset(asked["model"][1] if "model" in asked else DEFAULT_MODEL)
    values: dict[str, Any] = {}
    for option in OPTIONS:
        source, text = asked.get(option.name, ("preset", from_preset.get(option.name) or option.default))
        try:
            values[option.key] = None if text is None else option.parse(text)
        except UsageError as error:
            raise error if source == "flag" else UsageError(f"{source}: {error}") from None
    repeatable = tuple((name, text) for name, (_, text) in asked.items() if name not in ("model", "out", "junit"))
    return Settings(**values, flags=repeatable)


def asked_folder(flags: Mapping[str, str | None], env: Mapping[str, str], ini: Mapping[str, str]) -> Path:
    """The output folder that was asked for, where the other options may be beyond repair."""
    (out,) = (option for option in OPTIONS if option.name == "out")
    return Path(flags.get("out") or env.get(out.env) or ini.get("out") or str(out.default))


def command_line(settings: Settings, **changes: str) -> str:
    """The ``driftgate gate`` or ``isolate`` command that asks for ``settings`` again, ``changes`` by option key."""
    switches = {option.name for option in OPTIONS if option.switch}
    flags = {**dict(settings.flags), **{name.replace("_", "-"): text for name, text in changes.items()}}
    isolates = flags.get("checks", "") == ISOLATE
    words = [f"driftgate {ISOLATE if isolates else 'gate'}", shlex.quote(settings.model)]
    if isolates:
        del flags["checks"]
        flags.pop("isolate-on-fail", None)
    for name, text in flags.items():
        if text == "":
            continue
        if name not in switches:
            words.append(f"--{name} {shlex.quote(text)}")
        elif _truth(text):
            words.append(f"--{name}")
    return " ".join(words)
