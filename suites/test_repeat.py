"""R: N identical chunked prefills are bitwise equal, in one process and in fresh ones."""

import pytest

from driftgate import observe
from driftgate.checks import repeat


@pytest.mark.check(repeat.NAME)
def test_identical_prefills_are_equal_in_every_byte(gate, judged):
    settings = gate.settings
    observed = observe.repeats(
        gate.subject, gate.plan, settings.runs, settings.blocks, settings.keep_going, gate.progress
    )
    judged(repeat.judge(observed, gate.plan, gate.model.shape))
