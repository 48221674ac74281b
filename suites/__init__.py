"""The regression suites: one file per check, what ``pytest suites`` and ``driftgate gate`` run."""
