"""Lines for a person: what runs, how far it is, and what came out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from driftgate.options import ISOLATE
from driftgate.outcome import Outcome

if TYPE_CHECKING:
    from driftgate.gate import Gate


def header_lines(gate: Gate) -> list[str]:
    """Model, target, versions and plan."""
    found, settings, spec = gate.result.header["versions"], gate.settings, gate.target
    where = f"{spec.mcpu}, {spec.num_cores} cores" if not spec.is_gpu else f"warp width {spec.warp_width}"
    shape = gate.model.shape
    lines = [
        f"driftgate {found['driftgate']}: {gate.model.name} "
        f"(head_dim {shape.head_dim}, {shape.attention_layers} attention layers)"
        f" on {spec.name} ({where}), {gate.dtype}",
        f"plan {gate.plan.name}: {len(gate.plan.ids)} tokens in chunks {_chunks(gate.plan.chunks)}, "
        f"{settings.runs} runs in {min(settings.blocks, settings.runs)} processes, seed {settings.seed}",
        f"tvm {found['tvm']}, tvm-ffi {found['tvm_ffi']}, transformers {found['transformers']}, torch {found['torch']}",
    ]
    if gate.corrections:
        lines.append(f"corrected kernels swapped in: {', '.join(gate.corrections)}")
    if gate.fault:
        lines.append(f"PLANTED FAULT: {gate.fault['name']}")
    return lines


def summary_lines(gate: Gate) -> list[str]:
    """One line a check, the known issues, and the one verdict line."""
    result = gate.result
    width = max(len(o.value) for o in Outcome)
    lines = []
    for verdict in result.verdicts:
        lines.append(f"  {verdict.check:10} {verdict.outcome.value:{width}}  {verdict.message}")
        table = _kernels if verdict.check == ISOLATE else _judged
        lines.extend(f"  {'':10} {'':{width}}  {line}" for line in table(verdict.rows or []))
        for label in ("likely_causes", "not_told_apart", "reproduce"):
            if value := verdict.evidence.get(label):
                shown = "; ".join(value) if isinstance(value, list) else value
                lines.append(f"  {'':10} {'':{width}}  {label.replace('_', ' ')}: {shown}")
    for name in result.missing:
        lines.append(f"  {name:10} {'not run':{width}}  the run ended before it")
    if result.error:
        lines.append(f"  {result.error[1]}")
    for known in result.known:
        lines.append(f"  known upstream defect {known.name}: {known.status}{_note(known.status, result.strict)}")
    outcome = result.outcome
    lines.append(f"verdict: {outcome.value} (exit code {outcome.exit_code}), {result.seconds:.1f} s, {result.path}")
    return lines


ROWS_SHOWN = 6


def _kernels(rows: list[dict[str, Any]]) -> list[str]:
    """A table of the kernels with most against them; result.json has them all."""
    if not rows:
        return []
    heading = (
        f"{'kernel':28} {'calls':>6} {'replays':>8} {'disagree':>8} {'compared':>8} {'off':>5} {'worst, in bands':>15}"
    )
    lines = [heading]
    for row in rows[:ROWS_SHOWN]:
        name = row["kernel"] if len(row["kernel"]) <= 28 else row["kernel"][:25] + "..."
        worst = f"{row['worst_in_bands']:.3g}" if row["compared"] else "-"
        place = row["first"] or {}
        where = f"  first: run {place['run']}, chunk {place['chunk']}, layer {place['layer']}" if "run" in place else ""
        lines.append(
            f"{name:28} {row['calls']:6} {row['replays']:8} {row['disagreed']:8} {row['compared']:8} {row['off']:5} "
            f"{worst:>15}{where if row['culprit'] else ''}"
        )
    left = len(rows) - ROWS_SHOWN
    return [*lines, f"... and {left} more in result.json"] if left > 0 else lines


def _judged(rows: list[dict[str, Any]]) -> list[str]:
    """What was found in GPU kernels; those in which nothing was are left out."""
    return [f"{row['kernel']}: {row['verdict']}, {_found(row)}" for row in rows if row["verdict"] != "pass"]


def _found(row: dict[str, Any]) -> str:
    if "class" in row:
        return f"{row['class']} of {row['buffer']} ({', '.join(row['sites'][:2])})"
    return str(row["text"]) if "text" in row else "; ".join(row["findings"])


def _note(status: str, strict: bool) -> str:
    if strict:
        return " (--strict: counts as drift)"
    return " (the entry applies to this TVM, but the defect does not show: remove it?)" if status == "stale" else ""


def _chunks(chunks: tuple[int, ...]) -> str:
    if len(chunks) > 8:
        return f"{','.join(map(str, chunks[:6]))},... ({len(chunks)} of them)"
    return ",".join(map(str, chunks))


class Console:
    """The display of ``driftgate gate``: a progress bar on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def start(self, check: str) -> None:
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, transient=True)
            self._bar.start()
            self._task = self._bar.add_task(check, total=None)
        else:
            self.line(f"{check}: running")

    def stage(self, name: str) -> None:
        """A part of the check that runs."""
        if self._bar is not None:
            self._bar.update(self._task, description=name, completed=0, total=None)
        else:
            self.line(f"  {name}")

    def progress(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None)
        elif total >= 40 and done % (total // 4) == 0:
            self.line(f"  {done} of {total} runs")

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
