"""TVM's merge kernel under Oclgrind: seconds with and without its race detection.

In float32, whose threads and accesses are those of float16: Oclgrind has no arithmetic in half.
"""

from __future__ import annotations

from dataclasses import dataclass

from driftgate import target
from driftgate.races.catalog import Shape, build
from driftgate.races.lowering import lower
from fixtures import oclgrind
from fixtures.small_launches import merge

TOKENS = 256
SHAPE = Shape(512, 2, 2, "float32")


@dataclass(frozen=True)
class Timing:
    """One launch, twice."""

    plain: float
    """Seconds of the simulation alone."""
    detecting: float
    """Seconds with race detection."""
    reports: int


def measure(tokens: int = TOKENS, shape: Shape = SHAPE, timeout: float = 600) -> Timing:
    """The merge of ``tokens`` rows of ``shape``. Raises InfraError where Oclgrind is not there or does not run it."""
    spec = target._SPECS["opencl"]
    lowered = lower("merge", build("merge", shape, spec), spec)
    plain = oclgrind.run(lowered, merge(shape, tokens), races=False, timeout=timeout)
    detecting = oclgrind.run(lowered, merge(shape, tokens), timeout=timeout)
    return Timing(plain.seconds, detecting.seconds, detecting.reports)


def main() -> None:
    if not oclgrind.found():
        print(f"{oclgrind.PROGRAM} is not installed (Debian package oclgrind): nothing measured")
        return
    timing = measure()
    print(
        f"Oclgrind, merge of {TOKENS} tokens x {SHAPE.heads} heads x {SHAPE.head_dim} {SHAPE.dtype}: "
        f"{timing.plain:.1f} s, {timing.detecting:.1f} s with race detection, {timing.reports:,} reports"
    )


if __name__ == "__main__":
    main()
