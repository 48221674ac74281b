"""C, in source: what TVM generates has every barrier of its kernel, in order, and merge waits before one thread stores.

Negative controls: `tests/test_races_source.py`, with barriers taken out of the source.
"""

import pytest

from driftgate import run


@pytest.mark.check("codegen")
def test_the_generated_source_keeps_its_barriers(gate, judged):
    judged(run.codegen(gate))
