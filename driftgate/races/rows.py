"""Rows of result.json, and the verdicts of the checks ``races`` and ``limits``, from what was judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from driftgate.checks.verdict import Verdict
from driftgate.outcome import Outcome
from driftgate.races.judge import Judged, Report
from driftgate.races.known import KnownFinding
from driftgate.report.result import Known

RACES, LIMITS, CODEGEN = "races", "limits", "codegen"
KNOWN = "known"

Row = dict[str, Any]


def race_row(judged: Judged, known: Collection[KnownFinding]) -> Row:
    """The row of one kernel at one configuration: see docs/result.md."""
    found = judged.found
    covered = [names(judged, report.kind, report.buffer, known) for report in found]
    verdict = "pass" if not found else KNOWN if all(covered) else "drift"
    if verdict == "pass" and judged.coverage and judged.coverage.stores[1] and not judged.coverage.stores[0]:
        verdict = Outcome.NOT_EXERCISED.value
    worst = next((r for r, c in zip(found, covered, strict=True) if not c), found[0] if found else None)
    return {
        **configuration(judged),
        "warp": judged.job.warp,
        "verdict": verdict,
        "class": worst.label if worst else "",
        "buffer": worst.buffer if worst else "",
        "sites": places(worst) if worst else [],
        "engine": judged.job.engine,
        "fence": judged.job.fence,
        "coverage": asdict(judged.coverage) if judged.coverage else {},
        "unreached_stores": list(judged.unreached),
        "fence_notes": list(judged.fence_notes),
        **({"proof": asdict(judged.argued)} if judged.argued else {}),
        "known": sorted({name for c in covered for name in c}),
        "reports": [asdict(report) for report in judged.reports],
        "threads": judged.threads,
        "seconds": round(judged.seconds, 3),
    }


def limit_rows(judged: Judged, known: Collection[KnownFinding]) -> list[Row]:
    """One row a limit that is exceeded, or one that says that none is."""
    rows: list[Row] = []
    for excess in judged.excesses:
        covered = names(judged, excess.what, "", known)
        verdict = "pass" if excess.portable else KNOWN if covered else "drift"
        rows.append({
            **configuration(judged), "verdict": verdict, "what": excess.what, "has": excess.has,
            "allowed": excess.allowed, "portable": excess.portable, "text": excess.text, "known": list(covered),
        })  # fmt: skip
    return rows or [{**configuration(judged), "verdict": "pass"}]


def configuration(judged: Judged) -> Row:
    """What a row is about."""
    job = judged.job
    return {
        "kernel": job.kernel,
        "target": job.spec.name,
        "head_dim": job.shape.head_dim,
        "heads": job.shape.heads,
        "kv_heads": job.shape.kv_heads,
        "dtype": job.shape.dtype,
    }


def places(report: Report) -> list[str]:
    """``file:line`` of the accesses of a report, or lines of the lowered kernel; each once."""
    return list(dict.fromkeys(place(access) for access in report.sites))


def place(access: Row) -> str:
    """Where an access is, as a person looks for it."""
    return f"{access['file']}:{access['source_line']}" if access["file"] else f"lowered line {access['line']}"


def names(judged: Judged, kind: str, buffer: str, known: Collection[KnownFinding]) -> tuple[str, ...]:
    """The known issues that cover a finding. A kernel of the user's own has none."""
    job = judged.job
    if job.candidate:
        return ()
    return tuple(k.issue for k in known if k.covers(job.kernel, job.spec.name, job.shape.head_dim, kind, buffer))


def verdict(check: str, rows: Sequence[Row], refused: int, strict_kernels: bool, command: str) -> Verdict:
    """The verdict of ``races``, ``limits`` or ``codegen``. With ``strict_kernels`` a known row counts as drift."""
    counts = {word: sum(row["verdict"] == word for row in rows) for word in ("pass", KNOWN, "drift")}
    idle = sum(row["verdict"] == Outcome.NOT_EXERCISED.value for row in rows)
    figures: Row = {"rows": len(rows), **counts, "not_exercised": idle, "not_built": refused}
    bad = counts["drift"] + (counts[KNOWN] if strict_kernels else 0)
    if not rows:
        message = "no kernel was built, so none was judged"
        return Verdict(check, Outcome.NOT_EXERCISED, message, figures, {"reproduce": command})
    what = {RACES: "clean of races", LIMITS: "within the limits", CODEGEN: "in order in the generated source"}[check]
    message = f"{counts['pass']} of {len(rows)} {what}"
    message += f", {counts[KNOWN]} with a known defect" if counts[KNOWN] else ""
    message += f", {counts['drift']} with another" if counts["drift"] else ""
    message += f", {idle} in which no store ran, so nothing was judged" if idle else ""
    message += f"; {refused} configurations are not built by TVM" if refused else ""
    outcome = Outcome.DRIFT if bad else Outcome.NOT_EXERCISED if idle else Outcome.PASS
    evidence = {} if outcome is Outcome.PASS else {"reproduce": command}
    return Verdict(check, outcome, message, figures, evidence, list(rows))


def known_seen(verdicts: Iterable[Verdict]) -> list[Known]:
    """Each known issue that showed in ``verdicts``, with how many of their rows have it."""
    counts = Counter(name for v in verdicts for row in v.rows or () for name in row.get("known", ()))
    return [Known(name, "fails", {"rows": count}) for name, count in sorted(counts.items())]
