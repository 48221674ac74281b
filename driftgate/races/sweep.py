"""Many kernels judged, two at a time: TVM's compiler runs in one thread of each process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from driftgate.outcome import InfraError
from driftgate.races.judge import Job, Judged, judge

FEW = 4
"""Up to so many jobs are done here: processes of their own would take longer to start."""
PROCESSES = 2
"""More would need more memory than a small machine has: each takes about 0.6 GiB."""


def sweep(jobs: Sequence[Job]) -> Iterator[Judged]:
    """Judge ``jobs``, in the order they finish. Raises what `judge` raises, and InfraError for a process that dies."""
    processes = min(
        PROCESSES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if len(jobs) <= FEW or processes < 2:
        yield from map(judge, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(judge, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise InfraError("a process that judged kernels died; the rows before it are kept") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
