"""S: which kernel? Runs where it is asked for (`driftgate isolate`), or after a drift with `--isolate-on-fail`.

A healthy model has nothing to isolate: not exercised, and nothing is blamed. That each planted fault is named, and no
other kernel, is held by `tests/test_isolation.py` and printed by `python -m benchmarks.faults`.
"""

import pytest

from driftgate import run
from fixtures.cases import of_check


@pytest.mark.check("isolate")
def test_drift_is_traced_to_its_kernel(gate, judged, drifted):
    if not drifted:
        pytest.skip("no check found drift")
    judged(run.isolate(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("isolate"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
