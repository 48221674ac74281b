"""P: cold, refilled, forked, prefix-shared, batched and removed sequences agree with HuggingFace, twice."""

import pytest

from driftgate.reach import checks
from fixtures.cases import of_check


@pytest.mark.check("history")
def test_every_history_agrees_with_huggingface_and_repeats(gate, judged):
    judged(checks.history(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("history"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
