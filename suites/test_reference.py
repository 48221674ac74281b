"""H: the logits agree with HuggingFace at every position, within a band derived from a measured noise floor."""

import pytest

from driftgate import run


@pytest.mark.check("reference")
def test_logits_agree_with_huggingface_at_every_position(gate, judged):
    judged(run.reference(gate))
