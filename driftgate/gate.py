"""One gate: settings and a model, validated at once, made ready when the first check asks."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftgate.checks.verdict import Verdict
from driftgate.kernels import corrections, softcap
from driftgate.kernels.corrections import CORRECTIONS, Chunks
from driftgate.kernels.replacements import SINGLE_WRITER
from driftgate.model import Arrays, Model, check_arrays
from driftgate.observe import Progress
from driftgate.options import ISOLATE, Settings, command_line
from driftgate.outcome import DriftgateError, InfraError, Outcome, UsageError
from driftgate.plan import PAGE, Plan, chunk_lengths
from driftgate.reach.script import of_model
from driftgate.report.result import Known, ResultFile
from driftgate.subject import Subject, ready, rounded
from driftgate.target import TargetSpec, check_dtype, default_dtype, open_device, resolve
from driftgate.versions import versions

if TYPE_CHECKING:
    import numpy as np

    from driftgate.races.judge import Judged
    from driftgate.races.known import KnownFinding

MOST_BYTES = 2**29
"""Of logits that are held at one time."""

LikelyCauses = Callable[["Gate", Verdict], tuple[str, ...]]
"""A drift to the names of known upstream defects that may explain it."""


@dataclass
class Gate:
    """What the suites run against. ``open_gate`` makes one."""

    settings: Settings
    model: Model
    target: TargetSpec
    dtype: str
    plan: Plan
    corrections: tuple[str, ...]
    fault: Mapping[str, Any] | None
    result: ResultFile
    likely_causes: LikelyCauses = lambda gate, verdict: ()
    progress: Progress = lambda done, total: None
    stage: Callable[[str], None] = lambda name: None
    """Told of each part of a check that has several."""
    known_fixes: Collection[str] = ()
    """Corrections of known defects that this TVM has on this target."""
    compiled: Callable[[], Path] | None = None
    """Brings a compiled library to test in place of compiling the model."""
    known_kernels: Callable[[], tuple[KnownFinding, ...]] = tuple
    """Known upstream defects of single kernels."""
    started: float = field(default_factory=time.monotonic)

    @cached_property
    def work(self) -> Path:
        """A scratch folder that ``close`` removes."""
        return Path(tempfile.mkdtemp(prefix="driftgate-"))

    @cached_property
    def arrays(self) -> Arrays:
        """The weights under test, checked to be finite. In float16 they are the rounded ones, for both sides."""
        arrays = self.model.arrays(self.settings.seed)
        check_arrays(arrays, self.model.name)
        return rounded(arrays, self.dtype)

    @property
    def subject(self) -> Subject:
        """The model compiled, its weights on disk, corrections built. What failed once is not tried for every check."""
        made = self._made
        if isinstance(made, DriftgateError):
            raise made
        return made

    @cached_property
    def _made(self) -> Subject | DriftgateError:
        try:
            if self.target.is_gpu:
                # Before a minute of compiling: is there anything to run it on?
                open_device(self.target)
            return ready(
                self.model,
                self.target,
                self.dtype,
                self.arrays,
                self.corrections,
                # A fault in the library is none that a process would plant.
                self.fault if self.fault and "entry" in self.fault else None,
                self.work,
                self.settings.timeout,
                self.compiled() if self.compiled else None,
                self.settings.seed,
            )
        except DriftgateError as error:
            return error

    @cached_property
    def references(self) -> tuple[np.ndarray, np.ndarray]:
        """HuggingFace's logits ``(n, vocab)`` of the plan's prompt: in float64, and in the dtype under test.

        Raises InfraError where HuggingFace does not repeat itself in every byte: bands and verdicts rest on it.
        """
        return self._reference("float64"), self._reference(self.dtype)

    def reference_of(self, lists: Sequence[tuple[int, ...]]) -> tuple[list[np.ndarray], float]:
        """HuggingFace's float64 logits ``(n, vocab)`` of each token list, and the largest noise floor among them."""
        from driftgate.checks.reference import noise_floor

        exact = [self.model.reference(self.arrays, ids, "float64") for ids in lists]
        # What one token has to say is rounded too little to measure by.
        longest = max(map(len, lists))
        return exact, max(
            noise_floor(right, self.model.reference(self.arrays, ids, self.dtype))
            for ids, right in zip(lists, exact, strict=True)
            if len(ids) > 1 or longest == 1
        )

    @property
    def most_positions(self) -> int:
        """Tokens of a prompt whose logits at every position are held: those of the cache, and no more than half a GiB
        of float64."""
        shape = self.model.shape
        return max(min(shape.capacity, MOST_BYTES // (8 * shape.vocab)), 2)

    def fixes(self, chunks: Chunks) -> tuple[str, ...]:
        """The corrections to swap in for a prefill in ``chunks``: those that were asked for, or that it needs."""
        if self.settings.fix is not None:
            return self.settings.fix
        return corrections.needed(self.model.shape, self.target, chunks, self.known_fixes)

    def _reference(self, dtype: str) -> np.ndarray:
        from driftgate.metrics import first_difference

        first, second = (self.model.reference(self.arrays, self.plan.ids, dtype) for _ in range(2))
        if difference := first_difference(first, second):
            raise InfraError(
                f"HuggingFace in {dtype} gave two results for one prompt, first at {difference.index}: "
                f"{difference.values}"
            )
        return first

    @cached_property
    def noise_floor(self) -> float:
        from driftgate.checks.reference import noise_floor

        return noise_floor(*self.references)

    @cached_property
    def kernels(self) -> list[Judged]:
        """The GPU kernels of the model's shape, each judged; for Metal where the gate's target is no GPU."""
        from driftgate.races.catalog import KERNELS, Shape
        from driftgate.races.judge import Job
        from driftgate.races.sweep import sweep

        model = self.model.shape
        spec = self.target if self.target.is_gpu else resolve("metal")
        dtype = self.dtype if self.target.is_gpu else default_dtype(spec, model.head_dim)
        shape = Shape(model.head_dim, model.heads, model.kv_heads, dtype)
        # No model here has latent attention.
        names = [name for name in KERNELS if not name.endswith("_mla")]
        jobs = [Job(name, shape, spec, spec.warp_width) for name in names]
        done = {}
        for number, judged in enumerate(sweep(jobs), 1):
            done[judged.job] = judged
            self.progress(number, len(jobs))
        return [done[job] for job in jobs]

    def record(self, verdict: Verdict) -> Verdict:
        """Write ``verdict`` down; a failing one with its likely causes and, unless it brings a command that shows it
        sooner, the one that runs its check again."""
        if verdict.outcome is not Outcome.PASS:
            evidence = {**verdict.evidence}
            evidence.setdefault("reproduce", self.reproduce(verdict.check))
            if verdict.outcome is Outcome.DRIFT and (causes := self.likely_causes(self, verdict)):
                evidence["likely_causes"] = list(causes)
            verdict = dataclasses.replace(verdict, evidence=evidence)
        self.result.seconds = time.monotonic() - self.started
        self.result.add(verdict)
        return verdict

    def record_known(self, known: Known) -> None:
        self.result.seconds = time.monotonic() - self.started
        self.result.add_known(known)

    def record_case(self, row: dict[str, Any]) -> None:
        self.result.seconds = time.monotonic() - self.started
        self.result.add_case(row)

    def reproduce(self, check: str, **changes: str) -> str:
        """The command that runs ``check`` again, options changed by key; an empty one is left out."""
        return command_line(self.settings, checks=check, target=self.target.name, dtype=self.dtype, **changes)

    def close(self) -> None:
        self.result.seconds = time.monotonic() - self.started
        self.result.finished = True
        self.result.write()
        if "work" in self.__dict__:
            shutil.rmtree(self.work, ignore_errors=True)


def open_gate(
    settings: Settings,
    model: Model,
    fault: Mapping[str, Any] | None = None,
    likely_causes: LikelyCauses = lambda gate, verdict: (),
    known_fixes: Callable[[str, str], Collection[str]] = lambda tvm, target: CORRECTIONS,
) -> Gate:
    """Validate everything that can be validated without compiling, and write the first result.json.

    Raises UsageError for what cannot be: page size, plan, chunk, prompt, target, dtype, output folder.
    """
    if settings.page != PAGE:
        raise UsageError(
            f"--page {settings.page}: TVM's KV-cache kernels are compiled for pages of {PAGE} tokens; use {PAGE}"
        )
    preset = model.plan(settings.plan)
    plan = _plan(settings, model)
    target = resolve(settings.target)
    dtype = settings.dtype or default_dtype(target, model.shape.head_dim)
    check_dtype(target, dtype, model.shape.head_dim)
    softcap.check(model.shape.softcap, target, model.name)
    found = versions()
    there = known_fixes(str(found["tvm"]), target.name)
    if settings.fix is None:
        fixes = tuple(name for name in preset.corrections.get(target.name, ()) if name in there)
    else:
        fixes = settings.fix
    corrections.check(fixes, target, model.shape)
    if settings.history is not None:
        of_model(model, "given", settings.history, settings.seed)
    if ISOLATE in settings.checks and settings.runs < 2:
        raise UsageError(f"--runs {settings.runs}: isolation compares identical prefills, so it takes two or more")
    if settings.library is not None and not settings.library.is_file():
        raise UsageError(f"--library {settings.library}: there is no such file")
    for kernel, how in settings.swap:
        if how == SINGLE_WRITER and not target.is_gpu:
            raise UsageError(f"--swap {kernel}={how}: it is a GPU kernel, and {target.name} is none")
    shape = {**dataclasses.asdict(model.shape), "windowed": list(model.shape.windowed)}
    header = {
        "model": {"name": model.name, "family": model.family, **shape},
        "target": {**dataclasses.asdict(target), "dtype": dtype},
        "versions": found,
        "plan": {
            "name": plan.name,
            "tokens": len(plan.ids),
            "chunks": list(plan.chunks),
            "ways": list(plan.ways),
            "page": settings.page,
            "ids": list(plan.ids),
            "seed": settings.seed,
            "corrections": list(fixes),
            "library": str(settings.library) if settings.library else None,
            "fault": dict(fault) if fault else None,
        },
        "command": command_line(settings),
    }
    result = ResultFile(settings.out, header, settings.checks, settings.strict, finished=False)
    result.open()
    if settings.junit is not None:
        _writable(settings.junit)
    gate = Gate(settings, model, target, dtype, plan, fixes, fault, result, likely_causes, known_fixes=there)
    if settings.library is not None:
        given = settings.library.resolve()
        gate.compiled = lambda: given
    return gate


def _writable(junit: Path) -> None:
    try:
        junit.parent.mkdir(parents=True, exist_ok=True)
        junit.open("a").close()
    except OSError as error:
        raise UsageError(f"--junit {junit} cannot be written: {error.strerror}") from None


def _plan(settings: Settings, model: Model) -> Plan:
    preset = model.plan(settings.plan)
    given = _prompt_file(settings.prompt_ids) if settings.prompt_ids else None
    tokens = settings.tokens
    if given is not None:
        if tokens is not None and tokens > len(given):
            raise UsageError(f"--tokens {tokens}: {settings.prompt_ids} holds {len(given)} ids")
        tokens = len(given) if tokens is None else tokens
    if settings.chunk is not None:
        lengths = settings.chunk
    elif tokens is None or tokens == preset.tokens:
        lengths = preset.chunks
    else:
        # Another length than the plan's keeps its first chunk length.
        lengths = preset.chunks[:1]
    # Before the chunks are laid out: a number of tokens may be absurd.
    count = sum(lengths) if len(lengths) > 1 else preset.tokens if tokens is None else tokens
    capacity = model.shape.capacity
    if count > capacity:
        raise UsageError(f"{count} tokens do not fit: the cache of {model.name} holds {capacity}")
    chunks = chunk_lengths(lengths, tokens, preset.tokens)
    ids = given[:count] if given is not None else model.prompt(count, settings.seed)
    if len(ids) < count:
        raise UsageError(f"chunks hold {count} tokens, but {settings.prompt_ids} holds {len(ids)} ids")
    wrong = [i for i in ids if not 0 <= i < model.shape.vocab]
    if wrong:
        raise UsageError(f"token id {wrong[0]} is out of vocabulary: {model.name} has ids 0 to {model.shape.vocab - 1}")
    plan = Plan(settings.plan, ids, chunks, preset.ways if chunks == preset.chunks else ())
    for start, length in zip(plan.starts, plan.chunks, strict=True):
        if length > 1 and len(set(ids[start : start + length])) == 1:
            # Equal tokens have equal values, and a mean of equal values is right whatever its weights.
            raise UsageError(
                f"tokens {start} to {start + length - 1}, a chunk, are all id {ids[start]}: attention over equal "
                "tokens is right even where merge is wrong; take a prompt that varies"
            )
    return plan


def _prompt_file(path: Path) -> tuple[int, ...]:
    try:
        ids = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--prompt-ids {path} cannot be read: {error.strerror}") from None
    except ValueError:
        ids = None
    except RecursionError:
        ids = None
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise UsageError(f"--prompt-ids {path} must hold a JSON list of token ids, such as [2, 818, 5279]")
    return tuple(ids)
