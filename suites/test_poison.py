"""X: unused and recycled pages and results not yet written, filled with NaN or large numbers, change no byte."""

import pytest

from driftgate.reach import checks


@pytest.mark.check("poison")
def test_memory_that_nobody_wrote_changes_nothing(gate, judged):
    judged(checks.poison(gate))
