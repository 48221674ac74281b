"""B: lengths and chunk edges at, one before and one after the edges of page, tile, chunk and window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftgate.checks.agreement import figures, said, width, wrong
from driftgate.checks.verdict import Verdict
from driftgate.outcome import Outcome
from driftgate.plan import Plan, split
from driftgate.reach.observations import Compared

NAME = "boundary"
PERIODS = 2
"""How many times the longest edge a prompt is long whose chunks begin at one offset to an edge after the other."""


def longest(edges: Mapping[str, int], capacity: int) -> int:
    """Tokens of the longest plan."""
    return min(PERIODS * max(edges.values()) + 3, capacity)


def plans(edges: Mapping[str, int], ids: Sequence[int], chunk: int, window: int | None) -> list[Plan]:
    """Plans over beginnings of ``ids``, each named by its chunks; ``chunk`` is the usual length.

    For each edge e and n in e - 1, e, e + 1: a first chunk of n and more after it; a chunk of n onto a past that is no
    multiple of anything; a past of n; n tokens in all. Two edges and three tokens. And a periodic sweep: chunks of
    e - 1 and e + 1 over a long prompt, which begin at one offset to the edge after the other. No chunk is longer than
    the window, which is a known defect and a probe of its own.
    """
    most = len(ids)
    step = min(chunk, window or chunk)
    found: dict[tuple[int, ...], None] = {}

    def add(*chunks: int) -> None:
        chunks = tuple(n for n in chunks if n > 0)
        if chunks and sum(chunks) <= most and max(chunks) <= (window or most):
            found.setdefault(chunks)

    for edge in edges.values():
        for n in (edge - 1, edge, edge + 1):
            add(n, step, 1, 3)
            add(*split(n, step), n)
            add(*split(n, step), step)
            add(*split(n, step))
        add(*split(2 * edge + 3, step), 2)
        for n in (edge - 1, edge + 1):
            if n > 1:
                add(*split(most, n))
    return [Plan(",".join(map(str, chunks)), tuple(ids[: sum(chunks)]), chunks) for chunks in found]


def judge(
    observed: Sequence[Compared],
    noise_floor: float,
    edges: Mapping[str, int],
    corrected: Sequence[str],
    commands: Mapping[str, str],
    beyond: Mapping[str, int] | None = None,
) -> Verdict:
    """Pass if every plan is within the band of HuggingFace at every position.

    ``corrected`` names the plans that ran with a corrected kernel; ``commands`` has for each plan the command that runs
    it alone; ``beyond`` are edges longer than the prompts, which no plan meets. Negative controls: ``page-edge``,
    ``window-edge``.
    """
    counts: dict[str, Any] = {
        "plans": len(observed),
        "edges": dict(edges),
        "beyond": dict(beyond or {}),
        "corrected": len(corrected),
        **figures(observed, noise_floor),
    }
    bad = wrong(observed, counts["band"])
    if bad:
        first = min(bad, key=lambda found: (found.positions, len(found.name)))
        evidence = {"plan": first.name, **first.worst, "reproduce": commands[first.name]}
        message = f"{len(bad)} of {len(observed)} plans; the shortest is {said(first)}; {width(noise_floor)}"
        return Verdict(NAME, Outcome.DRIFT, message, counts, {**evidence, "wrong": [found.name for found in bad]})
    if not counts["merge_calls"]:
        return Verdict(NAME, Outcome.NOT_EXERCISED, "no plan merged: the cache is too small for two chunks", counts)
    where = ", ".join(f"{name} {length}" for name, length in edges.items())
    message = (
        f"{len(observed)} plans around {where}: {counts['positions']} positions, max abs {counts['max_abs']:.2e}, "
        f"{width(noise_floor)}"
    )
    if beyond:
        message += f"; too long to be met: {', '.join(f'{name} {length}' for name, length in beyond.items())}"
    return Verdict(NAME, Outcome.PASS, message, counts)
