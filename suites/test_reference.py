"""H: the logits agree with HuggingFace at every position, within a band derived from a measured noise floor."""

import pytest

from driftgate import observe
from driftgate.checks import reference


@pytest.mark.check(reference.NAME)
def test_logits_agree_with_huggingface_at_every_position(gate, judged):
    (observed,) = observe.positions(gate.subject, [gate.plan])
    exact, rounded = gate.references
    expected = gate.plan.merge_calls(gate.model.shape.attention_layers)
    judged(reference.judge(observed, exact, rounded, expected))
