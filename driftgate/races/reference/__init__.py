"""The reference engine: NumPy lanes in lockstep, access sets judged at each barrier."""

from driftgate.races.reference.engine import run

__all__ = ["run"]
