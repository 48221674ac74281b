"""N: no NaN, no Inf and no log-sum-exp of minus infinity, anywhere along the way."""

import pytest

from driftgate import run
from fixtures.cases import of_check


@pytest.mark.check("sentinel")
def test_every_value_along_the_way_is_finite(gate, judged):
    judged(run.sentinel(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("sentinel"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
