"""One kernel at one configuration: lowered, run, and judged. What the command, the suites and the benchmarks share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races import fast, reference
from driftgate.races.candidate import candidate
from driftgate.races.catalog import Shape, build
from driftgate.races.coverage import Coverage, coverage
from driftgate.races.defects import DEFECT, Defect, defects
from driftgate.races.evidence import GLOBAL_FENCE, Evidence, Setup
from driftgate.races.fit import check_fit
from driftgate.races.inputs import setups
from driftgate.races.kernel import GLOBAL, Kernel, short_path
from driftgate.races.limits import Excess, limits
from driftgate.races.lowering import lower
from driftgate.races.remedy import Remedy, remedy
from driftgate.target import TargetSpec

FAST, REFERENCE = "fast", "reference"
ENGINES = (FAST, REFERENCE)
PRACTICAL, FORMAL = "practical", "formal"
FENCES = (PRACTICAL, FORMAL)
"""Whether a barrier of shared scope orders device memory within a block: on devices it does, by the letter of Metal,
OpenCL and WGSL it does not."""


@dataclass(frozen=True)
class Job:
    """One kernel at one configuration."""

    kernel: str
    shape: Shape
    spec: TargetSpec
    warp: int
    engine: str = FAST
    fence: str = PRACTICAL
    prove: bool = False
    """Argue for all shapes as well, where the solver can."""
    candidate: str | None = None
    """``FILE.py:function``: judged in place of the catalog's kernel, on its inputs."""


@dataclass(frozen=True)
class Report:
    """One defect, in words and numbers; all that a drawing of it needs."""

    kind: str
    grade: str
    label: str
    width_note: str
    buffer: str
    sites: tuple[dict[str, Any], ...]
    """Of the two accesses that are shown (one for a fault) and then the others: kind, line, source, text, thread, warp,
    block, byte and element."""
    remedy: str
    count: int
    epoch: int
    changing: bool


@dataclass(frozen=True)
class Argued:
    """What the solver said of a kernel, for all shapes."""

    verdict: str
    """``proved``, ``witness`` or ``unsupported``."""
    reason: str
    confirmed: bool | None
    """Whether the witness conflicts when it runs; None without one."""
    assumptions: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Judged:
    """What came out. ``refused`` says why the kernel was not built, and then nothing else is there."""

    job: Job
    refused: str = ""
    reports: tuple[Report, ...] = ()
    excesses: tuple[Excess, ...] = ()
    coverage: Coverage | None = None
    unreached: tuple[str, ...] = ()
    seconds: float = 0.0
    script: str = ""
    threads: int = 0
    argued: Argued | None = None
    fence_notes: tuple[str, ...] = field(default=())
    """Buffers in device memory that only a barrier of shared scope orders."""

    @property
    def found(self) -> tuple[Report, ...]:
        """The reports that count."""
        return tuple(r for r in self.reports if r.grade == DEFECT)


def judge(job: Job) -> Judged:
    """Judge ``job``. A kernel of the catalog that TVM does not build or lower is refused.

    Raises UsageError for a candidate that is none, and for any kernel with a node that cannot be judged: it names both.
    """
    begun = time.monotonic()
    try:
        function = candidate(job.candidate, job.shape, job.spec) if job.candidate else None
        if function is None:
            function = build(job.kernel, job.shape, job.spec)
        lowered = lower(job.kernel, function, job.spec)
    except UsageError as error:
        # What TVM refuses has TVM's error as its cause. Without one the kernel is there, and left out would pass.
        if job.candidate or error.__cause__ is None:
            raise
        return Judged(job, refused=str(error), seconds=time.monotonic() - begun)
    reports: list[Report] = []
    excesses: list[Excess] = []
    shown: Judged | None = None
    for launch in lowered.launches:
        kernel = launch.kernel
        excesses += limits(kernel, job.spec)
        if job.candidate and kernel.threads > job.spec.max_threads_per_block:
            raise UsageError(
                f"kernel {job.kernel} launches {kernel.threads} threads a block, but {job.spec.name} allows "
                f"{job.spec.max_threads_per_block}"
            )
        launches = tuple(replace(s, formal=job.fence == FORMAL) for s in setups(job.kernel, job.shape, kernel))
        if job.candidate:
            check_fit(job.kernel, job.shape, job.spec, function, launches[0])
        evidences = _run(job, kernel, launches)
        found = defects(kernel, evidences, job.warp)
        reports += [_report(kernel, launches, defect, job.warp) for defect in found]
        reached = coverage(kernel, evidences)
        shown = Judged(
            job,
            coverage=reached,
            unreached=tuple(kernel.sites[s].where for s in reached.unreached),
            script=kernel.script,
            threads=kernel.threads,
            argued=_argue(job, kernel, launches) if job.prove else None,
            fence_notes=_fence_notes(job, kernel, launches, found),
        )
    if shown is None:
        raise UsageError(f"kernel {job.kernel} launches nothing on {job.spec.name}")
    return replace(shown, reports=tuple(reports), excesses=tuple(excesses), seconds=time.monotonic() - begun)


def _run(job: Job, kernel: Kernel, launches: tuple[Setup, ...]) -> list[Evidence]:
    if job.engine == REFERENCE:
        return [reference.run(kernel, setup) for setup in launches]
    program = fast.Program(kernel)
    return [program.run(setup) for setup in launches]


def _argue(job: Job, kernel: Kernel, launches: tuple[Setup, ...]) -> Argued | None:
    from driftgate.races.proofs.argument import prove
    from driftgate.races.proofs.assumptions import ASSUMPTIONS, assumptions_for
    from driftgate.races.proofs.confirm import confirm

    if job.kernel not in ASSUMPTIONS:
        return None
    given = assumptions_for(job.kernel, job.shape)
    proof = prove(kernel, given, job.warp)
    confirmed = confirm(kernel, proof, launches[0]) if proof.verdict == "witness" else None
    return Argued(proof.verdict, proof.reason, confirmed, given.words, proof.seconds)


def _fence_notes(job: Job, kernel: Kernel, launches: tuple[Setup, ...], found: tuple[Defect, ...]) -> tuple[str, ...]:
    """Buffers that only a barrier of shared scope orders: they conflict once it orders shared memory alone."""
    if job.fence == FORMAL or job.spec.kind not in GLOBAL_FENCE or not kernel.barriers:
        return ()
    loaded = {s.buffer.storage for s in kernel.sites if s.kind == "load" and s.buffer and s.buffer.scope == GLOBAL}
    stored = [s.buffer.storage for s in kernel.stores if s.buffer.scope == GLOBAL]
    if not (loaded & set(stored)) and len(stored) == len(set(stored)):
        return ()
    formal = _run(job, kernel, tuple(replace(s, formal=True) for s in launches))
    before = {d.buffer for d in found if d.grade == DEFECT}
    after = {d.buffer for d in defects(kernel, formal, job.warp) if d.grade == DEFECT}
    return tuple(sorted(after - before))


def _report(kernel: Kernel, launches: tuple[Setup, ...], defect: Defect, warp: int) -> Report:
    place = remedy(kernel, launches, defect) if defect.grade == DEFECT else None
    accesses = []
    conflict, fault = defect.conflict, defect.fault
    if conflict is not None:
        for access in (conflict.first, conflict.second):
            accesses.append(_access(kernel, access.site, access.thread, access.block, conflict.byte, warp))
    if fault is not None:
        accesses.append({**_access(kernel, fault.site, fault.thread, fault.block, None, warp), "element": fault.index})
    for site in defect.sites:
        if site not in {a["site"] for a in accesses}:
            accesses.append(_place(kernel, site))
    return Report(
        defect.kind,
        defect.grade,
        defect.label,
        defect.width_note,
        defect.buffer,
        tuple(accesses),
        _in_words(kernel, place),
        defect.count,
        conflict.epoch if conflict else 0,
        defect.changing,
    )


def _place(kernel: Kernel, site: int) -> dict[str, Any]:
    found = kernel.sites[site]
    file = short_path(found.file) if found.file else None
    return {
        "site": site,
        "access": found.kind,
        "line": found.line,
        "file": file,
        "source_line": found.source_line,
        "text": found.text,
    }


def _access(kernel: Kernel, site: int, thread: int, block: int, byte: int | None, warp: int) -> dict[str, Any]:
    buffer = kernel.sites[site].buffer
    axes, left = [], thread
    for var, extent in kernel.block:
        axes.append(f"{var.name.rpartition('threadIdx')[2][1:]}={left % extent}")
        left //= extent
    found = {**_place(kernel, site), "thread": thread, "axes": ", ".join(axes), "warp": thread // warp, "block": block}
    if byte is not None and buffer is not None:
        from driftgate.races.fast.values import size_of

        found |= {"byte": byte, "element": byte // size_of(buffer.dtype)}
    return found


def _in_words(kernel: Kernel, place: Remedy | None) -> str:
    if place is None:
        return ""
    site = kernel.sites[place.site]
    also = f", and {place.still}" if place.still else ""
    return f"a barrier before {site.where} ends it (tried){also}"
