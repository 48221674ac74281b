"""What ``driftgate races`` was asked for, checked."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from driftgate.options import whole
from driftgate.outcome import UsageError
from driftgate.races.catalog import KERNELS, Shape, check_kernel
from driftgate.races.judge import ENGINES, FAST, FENCES, PRACTICAL, Job
from driftgate.target import DTYPES, NAMES, TargetSpec, resolve

HEAD_DIMS = "512,256,128,64"
MOST_LANES = 1024
DEFAULT_OUT = "driftgate-out"


@dataclass(frozen=True)
class Request:
    """Every option with its value."""

    kernels: tuple[str, ...]
    """Those that were named; none for all."""
    targets: tuple[TargetSpec, ...]
    head_dims: tuple[int, ...]
    heads: int
    kv_heads: int
    dtypes: tuple[str, ...]
    warp: int | None
    engine: str
    fence: str
    candidate: str | None
    explain: bool
    source: bool
    prove: bool
    strict: bool
    out: Path
    command: str
    """The command line that asks for this again."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Kernel by kernel, every configuration."""
        return tuple(
            Job(
                kernel,
                Shape(head_dim, self.heads, self.kv_heads, dtype),
                spec,
                self.warp or spec.warp_width,
                self.engine,
                self.fence,
                self.prove,
                self.candidate,
            )
            for kernel in (self.kernels or KERNELS)
            for spec in self.targets
            for head_dim in self.head_dims
            for dtype in self.dtypes
        )


def request(
    kernels: list[str],
    *,
    target: str = "metal",
    head_dim: str = HEAD_DIMS,
    heads: str = "8",
    kv_heads: str = "1",
    dtype: str = ",".join(reversed(DTYPES)),
    warp: str | None = None,
    engine: str = FAST,
    fence: str = PRACTICAL,
    candidate: str | None = None,
    explain: bool = False,
    source: bool = False,
    prove: bool = False,
    strict: bool = False,
    out: str = DEFAULT_OUT,
) -> Request:
    """The request that these texts make. Raises UsageError, one line, for what cannot be."""
    for kernel in kernels:
        check_kernel(kernel)
    if candidate is not None and len(kernels) != 1:
        raise UsageError(
            "--candidate stands in for one kernel of the cache, whose inputs it is given: name one of "
            f"{', '.join(KERNELS)}"
        )
    specs = tuple(_gpu(name) for name in _list(target))
    query_heads, key_heads = whole("heads", 1)(heads), whole("kv-heads", 1)(kv_heads)
    if query_heads % key_heads:
        raise UsageError(f"--heads {query_heads} and --kv-heads {key_heads}: KV heads must divide query heads")
    dtypes = _list(dtype)
    if unknown := [name for name in dtypes if name not in DTYPES]:
        raise UsageError(f"--dtype {unknown[0]!r}: there are {', '.join(DTYPES)}")
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine!r}: there are {', '.join(ENGINES)}")
    if fence not in FENCES:
        raise UsageError(f"--fence {fence!r}: there are {', '.join(FENCES)}")
    flags = [
        *kernels,
        *(f"--{name} {shlex.quote(text)}" for name, text in _given(locals()).items()),
    ]
    return Request(
        tuple(dict.fromkeys(kernels)),
        specs,
        tuple(whole("head-dim", 1)(text) for text in _list(head_dim)),
        query_heads,
        key_heads,
        dtypes,
        None if warp is None else _width(warp),
        engine,
        fence,
        candidate,
        explain,
        source,
        prove,
        strict,
        Path(out),
        " ".join(["driftgate races", *flags]),
    )


_DEFAULTS = {
    "target": "metal",
    "head_dim": HEAD_DIMS,
    "heads": "8",
    "kv_heads": "1",
    "dtype": ",".join(reversed(DTYPES)),
    "warp": None,
    "engine": FAST,
    "fence": PRACTICAL,
    "candidate": None,
}


def _given(values: dict[str, object]) -> dict[str, str]:
    """The options that differ from their defaults, as flags."""
    return {name.replace("_", "-"): str(values[name]) for name, default in _DEFAULTS.items() if values[name] != default}


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip())) or ("",)


def _gpu(name: str) -> TargetSpec:
    spec = resolve(name)
    if not spec.is_gpu:
        names = ", ".join(n for n in NAMES if n != name)
        raise UsageError(f"--target {name}: there are no threads to race on a CPU target; use {names}")
    return spec


def _width(text: str) -> int:
    value = whole("warp", 1)(text)
    if value & (value - 1) or value > MOST_LANES:
        raise UsageError(f"--warp {value}: a warp has a power of two of threads, 1 to {MOST_LANES}")
    return value
