"""H: the logits agree with HuggingFace at every position, within a band derived from a measured noise floor."""

import pytest

from driftgate import run
from fixtures.cases import of_check


@pytest.mark.check("reference")
def test_logits_agree_with_huggingface_at_every_position(gate, judged):
    judged(run.reference(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("reference"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
