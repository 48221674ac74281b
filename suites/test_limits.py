"""L: every GPU kernel of the model's shape keeps to the limits of its target. No GPU is needed.

Negative control: `tests/test_races_limits.py`.
"""

import pytest

from driftgate import run
from fixtures.cases import of_check


@pytest.mark.check("limits")
def test_every_kernel_keeps_to_the_limits(gate, judged):
    judged(run.limits(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("limits"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
