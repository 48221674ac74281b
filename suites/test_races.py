"""C: no GPU kernel of the model's shape has a race, but what is known of upstream. No GPU is needed.

Negative controls: `tests/test_races_engines.py`, `tests/test_races_micro.py`, and `python -m benchmarks.races recall`.
"""

import pytest

from driftgate import run
from fixtures.cases import of_check


@pytest.mark.check("races")
def test_every_kernel_is_free_of_races(gate, judged):
    judged(run.races(gate))


@pytest.mark.case
@pytest.mark.parametrize("case", of_check("races"), ids=lambda case: case.name)
def test_recorded_case(case, recorded):
    recorded(case)
