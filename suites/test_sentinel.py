"""N: no NaN, no Inf and no log-sum-exp of minus infinity, anywhere along the way."""

import pytest

from driftgate import run


@pytest.mark.check("sentinel")
def test_every_value_along_the_way_is_finite(gate, judged):
    judged(run.sentinel(gate))
