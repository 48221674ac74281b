"""The checks: pure functions from observations to a verdict, one file each."""
