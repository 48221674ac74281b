"""``driftgate case``: run recorded cases by themselves."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from driftgate.outcome import DriftgateError, Outcome, UsageError, worst
from driftgate.report.result import clean
from driftgate.target import open_device, resolve
from driftgate.versions import versions

SCHEMA = "driftgate-cases/1"
FILE = "cases.json"


def run(
    cases: Sequence[Any],
    named: bool,
    target: str | None,
    out: Path,
    strict: bool,
    run_case: Callable[[Any, Any], Any],
    bench: Callable[..., Any],
    line: Callable[[str], None] = print,
) -> Outcome:
    """Run ``cases``, print a line for each, and write them to ``cases.json`` in ``out``, case by case.

    A case that is ``named`` counts even where its defect is known; ``strict`` counts known and stale ones of all.
    ``run_case`` and ``bench`` are of ``fixtures``, which the engine does not know.
    """
    spec = resolve(target)
    if spec.is_gpu:
        open_device(spec)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / FILE).write_text("")
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
    work = Path(tempfile.mkdtemp(prefix="driftgate-"))
    begun, rows, outcomes = time.monotonic(), [], []
    width = max(len(case.name) for case in cases)
    try:
        stage = bench(spec, work)
        for case in cases:
            started = time.monotonic()
            try:
                row = dataclasses.asdict(run_case(case, stage))
            except DriftgateError as error:
                row = {"case": case.name, "check": case.check, "status": error.outcome.value, "message": str(error)}
            row["seconds"] = round(time.monotonic() - started, 2)
            rows.append(row)
            outcomes.append(_outcome(row["status"], named, strict))
            line(f"  {case.name:{width}}  {case.letters:4} {row['status']:6} {row['message']}")
            _write(out, spec.name, rows, outcomes, time.monotonic() - begun)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    outcome = worst(outcomes)
    line(
        f"{len(rows)} cases: {', '.join(f'{n} {status}' for status, n in _counts(rows).items())}; "
        f"verdict: {outcome.value} (exit code {outcome.exit_code}), {time.monotonic() - begun:.1f} s, {out / FILE}"
    )
    return outcome


def _outcome(status: str, named: bool, strict: bool) -> Outcome:
    if status == "pass":
        return Outcome.PASS
    if status == "known":
        return Outcome.DRIFT if named or strict else Outcome.PASS
    if status == "stale":
        return Outcome.DRIFT if strict else Outcome.PASS
    if status == "fails":
        return Outcome.DRIFT
    return Outcome(status)


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return counts


def _write(out: Path, target: str, rows: Sequence[dict[str, Any]], outcomes: Sequence[Outcome], seconds: float) -> None:
    result = {
        "schema": SCHEMA,
        "verdict": worst(outcomes).value,
        "target": target,
        "versions": versions(),
        "seconds": round(seconds, 2),
        "cases": list(rows),
    }
    (out / FILE).write_text(json.dumps(clean(result), indent=2, allow_nan=False) + "\n")
