"""Known upstream defects, each shown by its own probe. They are reported, and fail the gate only with --strict."""

import pytest

from driftgate.report.result import Known
from fixtures.known import issues


@pytest.mark.probe
@pytest.mark.parametrize("issue", [i for i in issues() if i.probe], ids=lambda issue: issue.name)
def test_known_issue_is_still_there(issue, gate, probes):
    fails, figures = probes.run(issue)
    gate.record_known(Known(issue.name, "fails" if fails else "stale", figures))
