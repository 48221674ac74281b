"""K: one-shot, odd, tailed and one-token chunkings of the same prompt agree within the band."""

import pytest

from driftgate import observe
from driftgate.checks import chunking


@pytest.mark.check(chunking.NAME)
def test_chunkings_of_one_prompt_agree(gate, judged):
    plans = chunking.chunkings(gate.plan, gate.model.shape.window)
    observed = observe.positions(gate.subject, plans)
    judged(chunking.judge(observed, gate.noise_floor, gate.model.shape))
