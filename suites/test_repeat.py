"""R: N identical chunked prefills are bitwise equal, in one process and in fresh ones."""

import pytest

from driftgate import run


@pytest.mark.check("repeat")
def test_identical_prefills_are_equal_in_every_byte(gate, judged):
    judged(run.repeat(gate))
