"""``driftgate races``: judge kernels, print one report a defect, leave result.json, SARIF and the lowered kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from driftgate.checks.verdict import Verdict
from driftgate.outcome import DriftgateError, Outcome, UsageError
from driftgate.races import explain, sarif
from driftgate.races.catalog import KERNELS, Shape
from driftgate.races.defects import DEFECT
from driftgate.races.judge import FORMAL, Argued, Judged, Report
from driftgate.races.known import KnownFinding
from driftgate.races.request import Request
from driftgate.races.rows import CODEGEN, KNOWN, LIMITS, RACES, Row, known_seen, limit_rows, place, race_row, verdict
from driftgate.races.source.emitted import REFUSED, codegen_rows
from driftgate.races.sweep import sweep
from driftgate.report.result import ResultFile, discard
from driftgate.versions import versions

Line = Callable[[str], None]
SCRIPTS = "kernels"
"""Folder, in that of the results, of the lowered kernels that have a report."""


def run(request: Request, known: Collection[KnownFinding], line: Line = print) -> Outcome:
    """Judge what was asked for and say it with ``line``. ``known`` are upstream defects: a sweep over all kernels
    passes with them, a kernel that was named does not. Raises DriftgateError where nothing can be judged."""
    begun = time.monotonic()
    checks = (RACES, LIMITS, CODEGEN) if request.source else (RACES, LIMITS)
    header = {
        "model": {"name": "kernels of TVM's paged KV cache"},
        "versions": versions(),
        "command": request.command,
    }
    discard(request.out)
    result = ResultFile(request.out, header, checks, request.strict, finished=False)
    result.open()
    try:
        judged = _judge_all(request, known, result, line)
        if request.source:
            result.add(_codegen(request, known))
    except DriftgateError as error:
        result.finished = True
        result.fail(error.outcome, str(error))
        raise
    except KeyboardInterrupt:
        result.fail(Outcome.INFRA, "the run was interrupted")
        raise
    result.known = known_seen(result.verdicts)
    result.finished, result.seconds = True, time.monotonic() - begun
    _write_beside(request, judged, result)
    result.write()
    _say(request, judged, result, line)
    return result.outcome


def _judge_all(request: Request, known: Collection[KnownFinding], result: ResultFile, line: Line) -> list[Judged]:
    jobs = request.jobs
    line(f"{len(jobs)} kernels and configurations, {request.engine} engine, fence {request.fence}")
    done: list[Judged] = []
    for one in sweep(jobs):
        done.append(one)
        result.verdicts[:] = _verdicts(request, done, known)
        result.write()
        if len(jobs) > 8 and len(done) % max(len(jobs) // 8, 1) == 0:
            line(f"  {len(done)} of {len(jobs)}")
    order = {job: n for n, job in enumerate(jobs)}
    done.sort(key=lambda one: order[one.job])
    result.verdicts[:] = _verdicts(request, done, known)
    if request.kernels and all(one.refused for one in done):
        raise UsageError(done[0].refused)
    return done


def _verdicts(request: Request, judged: list[Judged], known: Collection[KnownFinding]) -> list[Verdict]:
    built = [one for one in judged if not one.refused]
    named, refused = bool(request.kernels), len(judged) - len(built)
    races = [race_row(one, known) for one in built]
    limits = [row for one in built for row in limit_rows(one, known)]
    return [
        verdict(RACES, races, refused, named, request.command),
        verdict(LIMITS, limits, refused, named, request.command),
    ]


def _codegen(request: Request, known: Collection[KnownFinding]) -> Verdict:
    kernels, formal = request.kernels or KERNELS, request.fence == FORMAL
    shapes = [Shape(d, request.heads, request.kv_heads, dtype) for dtype in request.dtypes for d in request.head_dims]
    rows = [row for spec in request.targets for row in codegen_rows(spec, shapes, kernels, known, formal)]
    built = [row for row in rows if row["verdict"] != REFUSED]
    return verdict(CODEGEN, built, len(rows) - len(built), bool(request.kernels), f"{request.command} --source")


def _write_beside(request: Request, judged: list[Judged], result: ResultFile) -> None:
    scripts = request.out / SCRIPTS
    try:
        for one in judged:
            if any(report.grade == DEFECT for report in one.reports):
                scripts.mkdir(exist_ok=True)
                (scripts / sarif.script_name(one)).write_text(one.script + "\n")
        sarif.write(request.out / "races.sarif", judged, scripts)
    except OSError as error:
        result.fail(Outcome.USAGE, f"--out {request.out}: {error.filename} cannot be written: {error.strerror}")


# What a person sees


def _say(request: Request, judged: list[Judged], result: ResultFile, line: Line) -> None:
    rows = {v.check: v.rows or [] for v in result.verdicts}
    built = [one for one in judged if not one.refused]
    pairs = list(zip(rows[RACES], built, strict=True))
    everything = bool(request.kernels) or request.prove
    shown = pairs if everything else [(row, one) for row, one in pairs if row["verdict"] != "pass"]
    if shown:
        line(f"  {'kernel':15} {'target':7} {'head_dim':>8} {'dtype':8} {'warp':>4} {'verdict':7} class")
    for row, one in shown:
        line(
            f"  {row['kernel']:15} {row['target']:7} {row['head_dim']:8} {row['dtype']:8} {row['warp']:4} "
            f"{row['verdict']:7} {_class(row, one)}"
        )
        if request.kernels and one.coverage:
            line(f"  {'':15} reached: {one.coverage.text}; {row['seconds']:.1f} s")
        if one.argued:
            line(f"  {'':15} {_proof(one.argued)}")
        for text in row["fence_notes"]:
            line(f"  {'':15} note: only a barrier of shared scope orders {text} (see --fence formal)")
    if unreached := [(row, one) for row, one in pairs if one.unreached]:
        line(f"stores that no launch reached: {len(unreached)} rows, such as {_unreached(*unreached[0])}")
    for reports in _by_defect(pairs):
        row, one, report = reports[0]
        if not request.kernels and report.grade == DEFECT and row["verdict"] == KNOWN and not request.explain:
            continue
        line("")
        where = [f"{r['target']} {r['head_dim']} {r['dtype']}" for r, _, _ in reports]
        for text in explain.summary(row["kernel"], report, where):
            line(text)
        if request.explain:
            for text in explain.drawing(one, report):
                line(text)
            if report.changing and one.coverage and one.coverage.epochs <= 1:
                for text in explain.effect(one):
                    line(text)
    for row in rows[LIMITS]:
        if row["verdict"] != "pass":
            line(f"limit: {_about(row)}: {row['text']} ({row['verdict']})")
    for row in rows.get(CODEGEN, []):
        if row["verdict"] != "pass":
            line(f"source: {_about(row)}: {'; '.join(row['findings'])}")
    if request.kernels:
        for refused in (one for one in judged if one.refused):
            line(f"not built: {refused.refused}")
    line("")
    for found in result.verdicts:
        line(f"  {found.check:8} {found.outcome.value:13} {found.message}")
    for issue in result.known:
        line(f"  known upstream defect {issue.name}: {issue.figures['rows']} rows")
    outcome = result.outcome
    line(f"verdict: {outcome.value} (exit code {outcome.exit_code}), {result.seconds:.1f} s, {result.path}")


def _class(row: Row, one: Judged) -> str:
    if row["class"]:
        report = one.found[0]
        return f"{row['class']}: {row['buffer']}, {report.width_note} ({explain.shortened(row['sites'][:2])})"
    if row["verdict"] == Outcome.NOT_EXERCISED.value:
        return "no store ran"
    return "; ".join(explain.hidden(one.reports)) or "clean"


def _proof(argued: Argued) -> str:
    ran = {None: "", True: " (run: it does)", False: " (run: it does NOT)"}[argued.confirmed]
    taken = f", given: {' '.join(argued.assumptions)}" if argued.verdict == "proved" else ""
    return f"for all shapes: {argued.verdict}{ran}: {argued.reason}{taken}"


def _unreached(row: Row, one: Judged) -> str:
    return f"{_about(row)}: {one.unreached[0]}"


def _about(row: Row) -> str:
    return f"{row['kernel']} {row['target']} {row['head_dim']} {row['dtype']}"


def _by_defect(pairs: list[tuple[Row, Judged]]) -> list[list[tuple[Row, Judged, Report]]]:
    """The reports that count, one list a defect: the same kernel, buffer and lines in several configurations."""
    groups: dict[tuple[str, ...], list[tuple[Row, Judged, Report]]] = {}
    for row, one in pairs:
        for report in one.found:
            lines = sorted({place(a) for a in report.sites if a["file"]})
            groups.setdefault((row["kernel"], report.kind, report.buffer, *lines), []).append((row, one, report))
    return list(groups.values())
