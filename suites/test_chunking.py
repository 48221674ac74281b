"""K: one-shot, odd, tailed and one-token chunkings of the same prompt agree within the band."""

import pytest

from driftgate import run
from fixtures.cases import of_check


@pytest.mark.check("chunking")
def test_chunkings_of_one_prompt_agree(gate, judged):
    judged(run.chunking(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("chunking"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
