"""N: is there a NaN, an Inf or a log-sum-exp of minus infinity anywhere along the way?"""

from __future__ import annotations

from dataclasses import asdict

from driftgate.checks.verdict import Verdict
from driftgate.observe import Watched
from driftgate.outcome import Outcome

NAME = "sentinel"


def judge(observed: Watched) -> Verdict:
    """Pass if every value that any cache kernel or VM call saw or wrote was finite. Negative control: ``nan-row``."""
    figures = {key: value for key, value in asdict(observed).items() if key != "first"}
    kernels = sum(observed.kernel_calls.values())
    calls = f"{kernels} kernel calls and {observed.vm_calls} VM calls"
    seen = f"{observed.values} values in {calls} of {observed.runs} prefills"
    if observed.first is not None:
        first = observed.first
        kinds = ", ".join(f"{count} {kind}" for kind, count in observed.bad.items())
        place = f"run {first['run']}, chunk {first['chunk']}, {first['call']}, {first['tensor']} at {first['index']}"
        return Verdict(NAME, Outcome.DRIFT, f"{kinds}; first {first['value']} in {place}", figures, first)
    if not observed.values or not observed.vm_calls or not observed.kernel_calls.get("merge"):
        return Verdict(NAME, Outcome.NOT_EXERCISED, f"merge was not among the calls seen: {seen}", figures)
    return Verdict(NAME, Outcome.PASS, f"all finite: {seen}", figures)
