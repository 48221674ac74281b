"""P: do cold, refilled, forked, prefix-shared, batched and removed sequences agree with the reference?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftgate.checks.agreement import figures, said, width, wrong
from driftgate.checks.verdict import Verdict
from driftgate.outcome import Outcome
from driftgate.reach.observations import Compared
from driftgate.reach.script import Script

NAME = "history"


INSIDE = {
    "popn-inside": "a+20 a+12 a-9 a+9",
    "popn-page": "a+16 a+16 a-16 a+12",
    "popn-most": "a+20 a-19 a+20",
    "popn-decode": "a+20 a+1 a+1 a-2 a+1 a+1",
    "fork-first": "a+20 b=a@1 b+17 a+3",
    "fork-inside": "a+12 a+9 b=a@17 b+11 a+5",
    "fork-page": "a+12 a+9 b=a@16 b+11 a+5",
    "fork-before": "a+12 a+9 b=a@15 b+11 a+5",
    "fork-end": "a+20 b=a b+11 a+5 b+1 a+1",
    "fork-twice": "a+20 b=a@18 b+7 c=b@20 c+9 a+4 b+4",
    "shared": "a+16 b=a c=a b+9 c+12 a+4",
    "batch": "a+20,b+11 a+7,b+13 a+1,b+7 a+1,b+1",
    "batch-forked": "a+20 b=a@17 a+6,b+10 a+1,b+1,c+5",
    "removed": "a+20 b+20 c+12 -b d+17 a+9 -a c+10 d+6",
    "fork-removed": "a+20 b=a@18 -a b+9 c+20 b+5",
    "decode": "a+20 a+1 a+1 a+1 a+7",
}
"""At the ends and inside of pages of 16, no sequence longer than 32."""


def texts(chunk: int, window: int | None) -> dict[str, str]:
    """Scripts by name: every kind of history, and past the window what does not fork."""
    found = {"cold": f"a+{chunk} a+{chunk} a+{chunk}", **INSIDE}
    if window is not None and window > 20:
        found["past-window"] = f"a+{window} a+17 a+1 a+17 a-17 a+9,b+20 a+1,b+1 a+5"
        found["window-popn"] = f"a+{window} a+17 a-17 a+{window}"
        found["window-batch"] = f"a+{window},b+20 a+9,b+{window} a+1,b+1 c+{window},a+3"
    return found


def left_out(script: Script, window: int | None) -> bool:
    """Whether ``script`` meets a known defect of sequences with windows: a chunk longer than the window, or a sequence
    that has forked and goes past it. Those are cases of their own."""
    if window is None:
        return False
    return any(n > window for _, n in script.chunks) or any(s + n > window for s, n in script.forked_chunks)


def judge(
    observed: Sequence[Compared],
    scripts: Sequence[Script],
    noise_floor: float,
    commands: Mapping[str, str],
    missed: Sequence[str] = (),
) -> Verdict:
    """Pass if every history agrees with HuggingFace at every position and is the same the second time.

    ``commands`` has for each script the command that runs it alone; ``missed`` names those left out.
    Negative controls: ``fork-short``, ``batch-leak``.
    """
    by_name = {script.name: script for script in scripts}
    kinds = sorted({kind for script in scripts for kind in script.kinds})
    counts: dict[str, Any] = {
        "histories": len(observed),
        "kinds": kinds,
        "left_out": list(missed),
        **figures(observed, noise_floor),
    }
    bad = wrong(observed, counts["band"])
    unlike = [found for found in observed if found.differs]
    if bad or unlike:
        first = (bad or unlike)[0]
        script = by_name[first.name]
        worst = first.worst if bad else first.differs
        evidence = {"history": script.text, **(worst or {}), "reproduce": commands[first.name]}
        what = said(first) if bad else f"{first.name}: the second time differs in bytes from the first"
        message = f"{len(bad or unlike)} of {len(observed)} histories; {what} ({script.text}); {width(noise_floor)}"
        return Verdict(NAME, Outcome.DRIFT, message, counts, evidence)
    if not counts["merge_calls"]:
        return Verdict(NAME, Outcome.NOT_EXERCISED, "no history merged", counts)
    if not kinds:
        plain = "no history did more than prefill one sequence after the other"
        return Verdict(NAME, Outcome.NOT_EXERCISED, plain, counts)
    message = (
        f"{len(observed)} histories ({', '.join(kinds)}), each twice: {counts['positions']} positions, "
        f"max abs {counts['max_abs']:.2e}, {width(noise_floor)}"
    )
    return Verdict(NAME, Outcome.PASS, message, counts)
