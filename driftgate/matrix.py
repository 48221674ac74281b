"""``driftgate matrix``: the gate on many models, as a table of model by check."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftgate.model import slug
from driftgate.options import LETTERS
from driftgate.outcome import InfraError, Outcome, UsageError, worst

FILE = "matrix.json"


@dataclass(frozen=True)
class Request:
    """What the matrix is asked for."""

    models: tuple[str, ...]
    checks: tuple[str, ...]
    runs: int
    seed: int
    target: str
    out: Path
    suites: Path
    """The folder of the suites, which the engine does not know."""


@dataclass(frozen=True)
class Entry:
    """One model's row."""

    model: str
    verdicts: dict[str, str]
    max_abs: float | None
    """Of check reference, in logits."""
    noise_floor: float | None
    seconds: float
    message: str
    """What was wrong with the first check that did not pass, if any."""

    @property
    def ratio(self) -> float | None:
        return self.max_abs / self.noise_floor if self.max_abs is not None and self.noise_floor else None


def part(names: Sequence[str], count: int | None, seed: int) -> tuple[str, ...]:
    """``count`` of ``names`` drawn by ``seed``, in their order; all of them without a count."""
    if count is None:
        return tuple(names)
    if not 1 <= count <= len(names):
        raise UsageError(f"--part {count}: there are {len(names)} models to draw from")
    drawn = set(random.Random(seed).sample(list(names), count))
    return tuple(name for name in names if name in drawn)


def run(request: Request, refused: Sequence[tuple[str, str]], line: Callable[[str], None] = print) -> Outcome:
    """Gate every model in a process of its own and print the table, row by row; ``matrix.json`` has it as well.

    ``refused`` are families that cannot be built, and why: they are printed and are no verdict.
    """
    try:
        request.out.mkdir(parents=True, exist_ok=True)
        (request.out / FILE).write_text("")
    except OSError as error:
        raise UsageError(f"--out {request.out} cannot be written: {error.strerror}") from None
    begun, entries = time.monotonic(), []
    titles = [LETTERS.get(check, check) for check in request.checks]
    line(f"| model | {' | '.join(titles)} | max abs | noise floor | ratio | time |")
    line(f"|---|{'---|' * len(titles)}---|---|---|---|")
    for model in request.models:
        entry = _gate(request, model)
        entries.append(entry)
        line(_row(request, entry))
        if entry.message:
            print(f"{model}: {entry.message}", file=sys.stderr)
        _write(request, entries, time.monotonic() - begun)
    for family, why in refused:
        line(f"| {family} | {' | '.join(['refused'] * len(titles))} | | | | |")
        print(f"{family}: {why}", file=sys.stderr)
    outcome = worst(Outcome(verdict) for entry in entries for verdict in entry.verdicts.values())
    line("")
    line(
        f"{len(entries)} models, {len(titles)} checks, {request.runs} runs each on {request.target}: verdict "
        f"{outcome.value} (exit code {outcome.exit_code}), {time.monotonic() - begun:.0f} s, {request.out / FILE}"
    )
    return outcome


def _gate(request: Request, model: str) -> Entry:
    """The gate without probes of known defects: they do not depend on the model."""
    folder = request.out / slug(model)
    options = {
        "model": model,
        "target": request.target,
        "runs": request.runs,
        "seed": request.seed,
        "checks": ",".join(request.checks),
        "out": folder,
    }
    words = [sys.executable, "-m", "pytest", str(request.suites), f"--rootdir={request.suites.parent}", "-q"]
    words += [f"--config-file={request.suites.parent / 'pyproject.toml'}", "-p", "no:cacheprovider", "-m", "not probe"]
    words += [f"--driftgate-{name}={value}" for name, value in options.items()]
    begun = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        result = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        said = (done.stderr or done.stdout).strip().splitlines()
        if done.returncode == Outcome.USAGE.exit_code and said:
            raise UsageError(said[-1].removeprefix("driftgate: ")) from None
        raise InfraError(f"{model}: the gate left no result: {said[-1] if said else 'it printed nothing'}") from None
    return _entry(request, model, result, time.monotonic() - begun)


def _entry(request: Request, model: str, result: dict[str, Any], seconds: float) -> Entry:
    found = {check["check"]: check for check in result["checks"]}
    verdicts = {c: found[c]["verdict"] if c in found else Outcome.INFRA.value for c in request.checks}
    figures = found.get("reference", {}).get("figures", {})
    bad = [check for check in request.checks if verdicts[check] != Outcome.PASS.value]
    message = ""
    if bad:
        first = found.get(bad[0])
        message = f"{bad[0]}: {first['message'] if first else result['error'] or 'it was not run'}"
        if first and "reproduce" in first["evidence"]:
            message += f"\n  {first['evidence']['reproduce']}"
    return Entry(model, verdicts, figures.get("max_abs"), figures.get("noise_floor"), seconds, message)


def _row(request: Request, entry: Entry) -> str:
    cells = [entry.verdicts[check] for check in request.checks]
    figures = [f"{x:.1e}" if x is not None else "-" for x in (entry.max_abs, entry.noise_floor)]
    ratio = f"{entry.ratio:.1f}" if entry.ratio is not None else "-"
    return f"| {entry.model} | {' | '.join(cells)} | {' | '.join(figures)} | {ratio} | {entry.seconds:.0f} s |"


def _write(request: Request, entries: Sequence[Entry], seconds: float) -> None:
    rows = [
        {
            "model": entry.model,
            "verdicts": entry.verdicts,
            "max_abs": entry.max_abs,
            "noise_floor": entry.noise_floor,
            "ratio": entry.ratio,
            "seconds": round(entry.seconds, 1),
            "message": entry.message,
        }
        for entry in entries
    ]
    head = {"target": request.target, "runs": request.runs, "seed": request.seed, "seconds": round(seconds, 1)}
    (request.out / FILE).write_text(json.dumps({**head, "models": rows}, indent=2) + "\n")
