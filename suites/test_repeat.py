"""R: N identical chunked prefills are bitwise equal, in one process and in fresh ones."""

import pytest

from driftgate import run
from fixtures.cases import of_check


@pytest.mark.check("repeat")
def test_identical_prefills_are_equal_in_every_byte(gate, judged):
    judged(run.repeat(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("repeat"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
