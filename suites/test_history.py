"""P: cold, refilled, forked, prefix-shared, batched and removed sequences agree with HuggingFace, twice."""

import pytest

from driftgate.reach import checks


@pytest.mark.check("history")
def test_every_history_agrees_with_huggingface_and_repeats(gate, judged):
    judged(checks.history(gate))
