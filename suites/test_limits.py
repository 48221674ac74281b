"""L: every GPU kernel of the model's shape keeps to the limits of its target. No GPU is needed.

Negative control: `tests/test_races_limits.py`.
"""

import pytest

from driftgate import run


@pytest.mark.check("limits")
def test_every_kernel_keeps_to_the_limits(gate, judged):
    judged(run.limits(gate))
