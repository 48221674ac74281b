"""X: unused and recycled pages and results not yet written, filled with NaN or large numbers, change no byte."""

import pytest

from driftgate.reach import checks
from fixtures.cases import of_check


@pytest.mark.check("poison")
def test_memory_that_nobody_wrote_changes_nothing(gate, judged):
    judged(checks.poison(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("poison"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
