"""CPU schedules: what makes a compiled model fast enough to be run hundreds of times."""

from .pipeline import cpu_pipeline

__all__ = ["cpu_pipeline"]
