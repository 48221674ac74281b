"""The findings as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftgate import __version__
from driftgate.races.judge import Judged, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES = {
    "read-write": "A thread may read what another has overwritten: nothing orders the two accesses.",
    "write-write": "Two threads write different values to one place: nothing orders them.",
    "out-of-bounds read": "A thread reads outside of a buffer.",
    "out-of-bounds write": "A thread writes outside of a buffer.",
    "uninitialised read": "A thread uses memory that nothing has written.",
    "divergent barrier": "Some threads of a block do not reach a barrier that others wait at.",
}


def write(path: Path, judged: Sequence[Judged], scripts: Path) -> None:
    """Write the findings of ``judged`` to ``path``; those without a source file point into ``scripts``."""
    results = [_result(one, report, scripts) for one in judged for report in one.found]
    kinds = sorted({report.kind for one in judged for report in one.found})
    driver = {
        "name": "driftgate races",
        "version": __version__,
        "rules": [{"id": _id(kind), "shortDescription": {"text": _RULES[kind]}} for kind in kinds],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    path.write_text(json.dumps(document, indent=2) + "\n")


def _id(kind: str) -> str:
    return kind.replace(" ", "-")


def _result(judged: Judged, report: Report, scripts: Path) -> dict[str, Any]:
    job = judged.job
    where = f"{job.kernel}, {job.spec.name}, head_dim {job.shape.head_dim}, {job.shape.dtype}, warp width {job.warp}"
    text = f"{report.label} of {report.buffer or 'a barrier'} ({where}); {report.width_note}."
    if report.remedy:
        text += f" {report.remedy[0].upper()}{report.remedy[1:]}."
    first, *others = report.sites
    return {
        "ruleId": _id(report.kind),
        "level": "error",
        "message": {"text": text},
        "locations": [_location(first, judged, scripts)],
        "relatedLocations": [{"id": n, **_location(a, judged, scripts)} for n, a in enumerate(others, 1)],
    }


def _location(access: dict[str, Any], judged: Judged, scripts: Path) -> dict[str, Any]:
    uri, line = access["file"], access["source_line"]
    if uri is None:
        uri, line = f"{scripts.name}/{script_name(judged)}", access["line"]
    elif judged.job.candidate and (given := Path(judged.job.candidate.rpartition(":")[0])).name == uri:
        # A report has the name alone; its text may also be from another file, which then stays a name.
        uri = _below_here(given)
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": max(int(line), 1)}}}


def _below_here(file: Path) -> str:
    """``file`` as code hosts look for it, from the folder of the run; only its name where it lies elsewhere."""
    file, here = file.resolve(), Path.cwd().resolve()
    return file.relative_to(here).as_posix() if file.is_relative_to(here) else file.name


def script_name(judged: Judged) -> str:
    """File name of the lowered kernel."""
    job = judged.job
    return f"{job.kernel}-{job.spec.name}-{job.shape.head_dim}-{job.shape.dtype}.py"
