"""K: one-shot, odd, tailed and one-token chunkings of the same prompt agree within the band."""

import pytest

from driftgate import run


@pytest.mark.check("chunking")
def test_chunkings_of_one_prompt_agree(gate, judged):
    judged(run.chunking(gate))
