"""N: no NaN, no Inf and no log-sum-exp of minus infinity, anywhere along the way."""

import pytest

from driftgate import observe
from driftgate.checks import sentinel

RUNS = 10
"""Prefills under the sentinel: what strikes one kernel call in ten is seen, and it takes seconds."""


@pytest.mark.check(sentinel.NAME)
def test_every_value_along_the_way_is_finite(gate, judged):
    observed = observe.watched(gate.subject, gate.plan, min(RUNS, gate.settings.runs))
    judged(sentinel.judge(observed))
