"""Known upstream defects, each shown by its own probe. They are reported, and fail the gate only with --strict."""

import pytest

from driftgate.report.result import Known
from fixtures import cases
from fixtures.known import issues


@pytest.mark.probe
@pytest.mark.parametrize("issue", [i for i in issues() if i.case], ids=lambda issue: issue.name)
def test_known_issue_is_still_there(issue, gate, bench):
    (case,) = [case for case in cases.find(issue.case) if case.name == issue.case]
    row = cases.run(case, bench)
    if row.status == cases.FAILS:
        pytest.fail(f"case {case.name} is not as recorded: {row.message}", pytrace=False)
    gate.record_known(Known(issue.name, "stale" if row.status == cases.STALE else "fails", row.figures))
