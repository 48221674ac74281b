"""B: lengths and chunk edges at, before and after those of page, tile, chunk and window agree with HuggingFace."""

import pytest

from driftgate.reach import checks
from fixtures.cases import of_check


@pytest.mark.check("boundary")
def test_every_length_around_an_edge_agrees_with_huggingface(gate, judged):
    judged(checks.boundary(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("boundary"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
