"""The fast engine: a kernel compiled back to the CPU by TVM, with shadow memory."""

from driftgate.races.fast.engine import Program, run

__all__ = ["Program", "run"]
