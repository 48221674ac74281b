"""From what an engine saw to one report a defect: which conflicts belong together, how grave, what hides them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from driftgate.races.evidence import (
    OUT_OF_BOUNDS_WRITE,
    READ_WRITE,
    WRITE_WRITE,
    Conflict,
    Evidence,
    Fault,
)
from driftgate.races.kernel import Kernel

WIDTHS = (16, 32, 64)
"""Warp widths of real devices; at width 1 every thread counts for itself."""

NOTE, HIDDEN, DEFECT = "note", "hidden", "defect"


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong with a kernel, or would be at another warp width."""

    kind: str
    """``read-write``, ``write-write``, or a fault's kind."""
    buffer: str
    sites: tuple[int, ...]
    """All accesses that are part of it."""
    grade: str
    """``defect``; ``hidden`` at the width that was asked for; ``note``: threads write what is there already, or the
    same value."""
    relation: str
    """``across warps``, ``within a warp``, ``across blocks``; empty for a fault."""
    changing: bool
    hidden_at: int | None
    """Smallest warp width of `WIDTHS` that hides it; None where none does, and for a fault."""
    conflict: Conflict | None = None
    """The pair of accesses to show."""
    fault: Fault | None = None
    count: int = 1

    @property
    def label(self) -> str:
        """The class, in words."""
        if self.fault is not None:
            return self.kind
        value = "value-changing" if self.changing else "same value"
        return f"{self.kind}, {self.relation}, {value}"

    @property
    def width_note(self) -> str:
        """At which warp widths it shows."""
        if self.hidden_at is None:
            return "at any warp width"
        return f"hidden at width {self.hidden_at}"


def collect(evidences: Iterable[Evidence]) -> tuple[list[Conflict], list[Fault]]:
    """The conflicts and faults of several launches of one kernel: each pair of sites, each site once."""
    conflicts: dict[tuple[str, int, int, bool], Conflict] = {}
    faults: dict[tuple[str, int], Fault] = {}
    for evidence in evidences:
        for c in evidence.conflicts:
            key = c.kind, c.first.site, c.second.site, c.between_blocks
            conflicts[key] = _joined(conflicts[key], c) if key in conflicts else c
        for f in evidence.faults:
            known = faults.get((f.kind, f.site))
            faults[f.kind, f.site] = replace(known, count=known.count + f.count) if known else f
    return list(conflicts.values()), list(faults.values())


def _joined(one: Conflict, other: Conflict) -> Conflict:
    return replace(
        one if one.distance >= other.distance else other,
        same_statement=one.same_statement or other.same_statement,
        changing=one.changing or other.changing,
        count=one.count + other.count,
    )


def shows(conflict: Conflict, warp: int) -> bool:
    """Whether ``conflict`` is one at this warp width, whose lanes run in step: only one instruction can divide them."""
    return conflict.between_blocks or conflict.distance >= warp or conflict.same_statement


def defects(kernel: Kernel, evidences: Iterable[Evidence], warp: int) -> tuple[Defect, ...]:
    """One entry a defect, gravest first."""
    conflicts, faults = collect(evidences)
    found = [_defect(group, warp) for group in _groups(conflicts)]
    found += _faults(kernel, faults)
    order = {DEFECT: 0, HIDDEN: 1, NOTE: 2}
    return tuple(sorted(found, key=lambda d: (order[d.grade], d.sites)))


def _groups(conflicts: list[Conflict]) -> list[list[Conflict]]:
    """Conflicts of one storage that share a site, directly or by others, are one defect."""
    groups: list[list[Conflict]] = []
    for conflict in conflicts:
        sites = {conflict.first.site, conflict.second.site}
        near = [g for g in groups if g[0].storage == conflict.storage and any(sites & _sites(c) for c in g)]
        groups = [g for g in groups if g not in near] + [[c for g in near for c in g] + [conflict]]
    return groups


def _sites(conflict: Conflict) -> set[int]:
    return {conflict.first.site, conflict.second.site}


def _grave(conflict: Conflict, warp: int) -> tuple[bool, bool, bool, int]:
    visible = conflict.changing and shows(conflict, warp)
    return visible, conflict.changing, conflict.kind == READ_WRITE, conflict.distance


def _defect(group: list[Conflict], warp: int) -> Defect:
    worst = max(group, key=lambda c: _grave(c, warp))
    changing = [c for c in group if c.changing]
    visible = [c for c in changing if shows(c, warp)]
    grade = DEFECT if visible else HIDDEN if changing else NOTE
    if worst.between_blocks:
        relation = "across blocks"
    else:
        relation = "across warps" if worst.distance >= max(warp, 2) or warp == 1 else "within a warp"
    return Defect(
        worst.kind,
        worst.storage,
        tuple(sorted(set().union(*(_sites(c) for c in group)))),
        grade,
        relation,
        worst.changing,
        _hiding_width(changing or group),
        conflict=worst,
        count=sum(c.count for c in group),
    )


def _hiding_width(group: list[Conflict]) -> int | None:
    return next((w for w in WIDTHS if not any(shows(c, w) for c in group)), None)


def _faults(kernel: Kernel, faults: list[Fault]) -> list[Defect]:
    """Faults of one kind at one buffer are one defect: more often than not they have one cause."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        buffer = kernel.sites[fault.site].buffer
        groups.setdefault((fault.kind, buffer.storage.name if buffer else ""), []).append(fault)
    return [
        Defect(
            kind,
            buffer,
            tuple(sorted(f.site for f in group)),
            DEFECT,
            "",
            kind == OUT_OF_BOUNDS_WRITE,
            None,
            fault=group[0],
            count=sum(f.count for f in group),
        )
        for (kind, buffer), group in groups.items()
    ]


def is_race(defect: Defect) -> bool:
    """Whether it is a conflict between threads, not a fault of one."""
    return defect.kind in (READ_WRITE, WRITE_WRITE)
