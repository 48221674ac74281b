"""The command line. It alone loads models, suites and fixtures, by name, and only when a command needs them."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from driftgate import __version__
from driftgate.options import CHECKS, ISOLATE, OPTIONS
from driftgate.outcome import INTERRUPTED, DriftgateError, Outcome


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(Outcome.USAGE.exit_code, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parsed = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.run
    try:
        return command(parsed)
    except DriftgateError as error:
        print(f"driftgate: {error}", file=sys.stderr)
        return error.outcome.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # Python would exit with 1, which means drift.
        print(f"driftgate: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
        return Outcome.INFRA.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="driftgate", description="The chunked-prefill regression gate for Gemma-class models on TVM.")
    parser.add_argument("--version", action="version", version=f"driftgate {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    gate = commands.add_parser("gate", help="run the suites on a model and give a verdict")
    _add_options(gate)
    gate.set_defaults(run=_gate)
    isolate = commands.add_parser(
        "isolate",
        help="name the kernel that makes a model drift",
        description="Reproduce a drift, replay and compare every kernel on its own inputs, and confirm by swap. "
        "Exit code 1: a drift was reproduced; 4: there was none.",
    )
    _add_options(isolate, without=("checks", "isolate_on_fail"))
    isolate.set_defaults(run=_gate, checks=ISOLATE, isolate_on_fail=None)
    races = commands.add_parser(
        "races",
        help="find races in GPU kernels on this machine, without a GPU",
        description="Lower kernels, run them on the CPU, and judge every access of every thread. Without KERNEL all "
        "kernels of TVM's KV cache, and known upstream defects do not count; a kernel that is named exits 1 even then.",
    )
    _add_races(races)
    case = commands.add_parser(
        "case",
        help="run recorded cases, or one by name",
        description="Inputs from public bug reports and driftgate's own finds, each with the right answer. Without "
        "NAME all of them, and known upstream defects do not count; a case that is named exits 1 even then.",
    )
    case.add_argument("names", nargs="*", metavar="NAME", help="a case, or a known issue (default: all cases)")
    case.add_argument("--target", metavar="NAME", help="llvm, metal, cuda, ... (default: the best device found)")
    case.add_argument("--out", metavar="DIR", default="driftgate-out", help="folder for cases.json")
    case.add_argument("--strict", action="store_true", help="fail on known defects, and on stale entries")
    case.add_argument("--list", action="store_true", dest="listed", help="describe the cases and run none")
    case.set_defaults(run=_case)
    sweep = commands.add_parser(
        "sweep",
        help="try plans and histories at random, and shrink what fails",
        description="A property test: logits agree with HuggingFace whatever the chunks and the history of the cache. "
        "The smallest example that fails is printed as a command. Needs hypothesis.",
    )
    _add_options(sweep, without=("checks", "isolate_on_fail", "cases", "runs", "blocks", "junit", "history", "library"))
    sweep.add_argument("--examples", metavar="N", default="100", help="plans, and as many histories (default: 100)")
    sweep.set_defaults(run=_sweep)
    matrix = commands.add_parser(
        "matrix",
        help="gate many models and print the table",
        description="The gate on every tiny preset (one a family, one a size of Gemma 4), or on the models named: a "
        "table of model by check, and the distance to HuggingFace in noise floors.",
    )
    matrix.add_argument("models", nargs="*", metavar="MODEL", help="presets or hf:PATH (default: the tiny presets)")
    for name, metavar, text in (
        ("target", "NAME", "where to run (default: llvm)"),
        ("runs", "N", "identical prefills of check repeat (default: 30)"),
        ("checks", "NAME[,...]", f"default: {','.join(CHECKS)}"),
        ("seed", "S", "draws weights, prompts and the part (default: 0)"),
        ("part", "N", "only N of the models, drawn by the seed (default: all)"),
        ("out", "DIR", "folder for matrix.json and each model's result (default: driftgate-out)"),
    ):
        matrix.add_argument(f"--{name}", metavar=metavar, help=text)
    matrix.set_defaults(run=_matrix)
    models = commands.add_parser("models", help="list the presets with their shape")
    models.set_defaults(run=_models)
    doctor = commands.add_parser("doctor", help="print versions, devices, known-bad combinations and what to do")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_options(parser: argparse.ArgumentParser, without: tuple[str, ...] = ()) -> None:
    model, *others = OPTIONS
    parser.add_argument("model", nargs="?", metavar="MODEL", help=model.described)
    for option in others:
        if option.key in without:
            continue
        if option.switch:
            parser.add_argument(
                f"--{option.name}", dest=option.key, action="store_const", const="true", help=option.described
            )
        else:
            parser.add_argument(f"--{option.name}", dest=option.key, metavar=option.metavar, help=option.described)


def _add_races(parser: argparse.ArgumentParser) -> None:
    """Texts are checked by `driftgate.races.request`, which alone knows what is allowed."""
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="merge, decode, append, ... (default: all)")
    described = {
        "target": ("NAME[,...]", "metal, cuda, opencl, webgpu (default: metal)"),
        "head-dim": ("N[,N...]", "default: 512,256,128,64"),
        "heads": ("N", "query heads (default: 8)"),
        "kv-heads": ("N", "KV heads (default: 1)"),
        "dtype": ("NAME[,...]", "float16, float32 (default: both)"),
        "warp": ("W", "warp width, a power of two; 1 is portable (default: the target's; opencl and webgpu 1)"),
        "engine": ("NAME", "fast or reference (default: fast)"),
        "fence": ("POLICY", "practical or formal: whether a barrier of shared scope orders device memory"),
        "candidate": ("FILE.py:function", "judge this kernel in place of the one that is named; the file is run"),
        "out": ("DIR", "folder for result.json, races.sarif and lowered kernels (default: driftgate-out)"),
    }
    for name, (metavar, text) in described.items():
        parser.add_argument(f"--{name}", dest=name.replace("-", "_"), metavar=metavar, help=text)
    switches = {
        "explain": "draw every report, and show what it does to the numbers",
        "source": "judge the generated source as well",
        "prove": "prove merge, append, copy and rotary for all shapes, where the solver can",
        "strict": "fail on known defects as well",
    }
    for name, text in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.set_defaults(run=_races)


def _races(parsed: argparse.Namespace) -> int:
    from driftgate.races.command import run
    from driftgate.races.request import DEFAULT_OUT, request
    from driftgate.report.result import discard

    given = {
        name: value for name, value in vars(parsed).items() if name not in ("run", "kernels") and value is not None
    }
    known = importlib.import_module("fixtures.known_kernels")
    try:
        asked = request(parsed.kernels, **given)
    except DriftgateError:
        discard(Path(given.get("out", DEFAULT_OUT)))
        raise
    return run(asked, known.findings()).exit_code


def _case(parsed: argparse.Namespace) -> int:
    cases = importlib.import_module("fixtures.cases")
    found = [case for name in parsed.names for case in cases.find(name)] if parsed.names else list(cases.cases())
    found = list({case.name: case for case in found}.values())
    if parsed.listed:
        for case in found:
            print(f"{case.name} ({case.letters}{f', known: {case.known}' if case.known else ''}): {case.kind}")
            print(f"  from {case.origin}\n  input: {case.input}\n  right: {case.right}")
        return Outcome.PASS.exit_code
    from driftgate.case import run

    bench = importlib.import_module("fixtures.bench").Bench
    target = parsed.target or os.environ.get("DRIFTGATE_TARGET")
    outcome = run(found, bool(parsed.names), target, Path(parsed.out), parsed.strict, cases.run, bench)
    return outcome.exit_code


def _sweep(parsed: argparse.Namespace) -> int:
    from driftgate.options import resolve, whole

    examples = whole("examples", 1)(parsed.examples)
    gates = importlib.import_module("fixtures.gate")
    flags = {option.name: getattr(parsed, option.key, None) for option in OPTIONS}
    gate = gates.gate_for(resolve(flags, os.environ, {}, gates.preset))
    try:
        outcome: Outcome = importlib.import_module("fixtures.sweep").run(gate, examples)
    finally:
        gate.close()
        # Its result.json is that of no check.
        gate.result.path.unlink(missing_ok=True)
    return outcome.exit_code


def _matrix(parsed: argparse.Namespace) -> int:
    from driftgate.matrix import Request, part, run
    from driftgate.options import parse_checks, whole

    models = importlib.import_module("models")
    for name in parsed.models:
        models.find(name)
    seed = whole("seed", 0)(parsed.seed or "0")
    count = None if parsed.part is None else whole("part", 1)(parsed.part)
    request = Request(
        models=part(parsed.models or models.tiny(), count, seed),
        checks=parse_checks(parsed.checks or ",".join(CHECKS)),
        runs=whole("runs", 1)(parsed.runs or "30"),
        seed=seed,
        target=parsed.target or "llvm",
        out=Path(parsed.out or "driftgate-out"),
        suites=Path(_room("suites")),
    )
    return run(request, () if parsed.models else models.REFUSED).exit_code


def _gate(parsed: argparse.Namespace) -> int:
    import pytest

    # What is meant for other pytest runs must not select, add or hide anything here.
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    suites = Path(_room("suites"))
    display = importlib.import_module("fixtures.display")
    words = [str(suites), f"--rootdir={suites.parent}", f"--config-file={suites.parent / 'pyproject.toml'}"]
    # Plugins that happen to be installed stay out; nothing is captured, since our own display prints while tests run.
    words += ["-p", "no:cacheprovider", "--capture=no", "--disable-plugin-autoload"]
    for option in OPTIONS:
        value = getattr(parsed, option.key)
        if value is not None:
            flag = f"--driftgate-{option.name}"
            words.append(flag if option.switch else f"{flag}={value}")
    return int(pytest.main(words, plugins=[display.Display()]))


def _models(parsed: argparse.Namespace) -> int:
    models = importlib.import_module("models")
    for name in models.names():
        model = models.find(name)
        shape = model.shape
        print(f"{name}: {model.about}")
        print(
            f"  {shape.layers} layers, hidden {shape.hidden}, {shape.heads} query heads, {shape.kv_heads} KV heads, "
            f"head_dim {shape.head_dim}, window {shape.window}, vocabulary {shape.vocab}, "
            f"cache of {shape.capacity} tokens"
        )
        for plan, preset in model.plans.items():
            corrected = "".join(f"; on {t}: {', '.join(names)} swapped in" for t, names in preset.corrections.items())
            print(f"  plan {plan}: {preset.tokens} tokens in chunks {','.join(map(str, preset.chunks))}{corrected}")
    return Outcome.PASS.exit_code


def _doctor(parsed: argparse.Namespace) -> int:
    from driftgate import doctor

    report = doctor.report()
    print(doctor.render(report))
    return report.outcome.exit_code


def _room(name: str) -> str:
    file = importlib.import_module(name).__file__
    assert file is not None
    return str(Path(file).parent)


if __name__ == "__main__":
    sys.exit(main())
