"""References of VM functions: the same functions, compiled without our kernels and schedules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from driftgate.calls import VM
from driftgate.compile import guarded, library
from driftgate.model import Model
from driftgate.target import TargetSpec, to_tvm


def plain_library(model: Model, spec: TargetSpec, dtype: str) -> Path | None:
    """A library of ``model`` with plain loops under the same names; None on a GPU, whose functions have other names."""
    if spec.is_gpu:
        return None
    import tvm

    from driftgate.schedules import cpu_pipeline

    target = to_tvm(spec)
    module = guarded(f"{model.name} cannot be built for {spec.name}", lambda: model.module(target, dtype))
    return library(
        module,
        spec,
        f"{model.slug}-{spec.name}-{dtype}-plain",
        lambda: tvm.compile(module, target, relax_pipeline=cpu_pipeline(target, plain=True)),
        "plain",
    )


def functions(path: str | None) -> Callable[[str], Callable[..., Any] | None]:
    """``vm:NAME`` to the function of that name in the library at ``path``; None where it has none."""
    if path is None:
        return lambda name: None
    import tvm

    module = tvm.runtime.load_module(path)

    def find(name: str) -> Callable[..., Any] | None:
        plain = name.removeprefix(VM)
        return module.get_function(plain, query_imports=True) if module.implements_function(plain, True) else None

    return find
