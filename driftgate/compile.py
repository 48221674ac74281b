"""From an IRModule to a model library on disk, once for every module, target and TVM."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from driftgate import store
from driftgate.model import Model
from driftgate.outcome import DriftgateError, InfraError
from driftgate.target import TargetSpec, key, to_tvm
from driftgate.versions import versions

log = logging.getLogger(__name__)


@cache
def model_library(model: Model, spec: TargetSpec, dtype: str, whole: bool = False) -> Path:
    """The compiled library of ``model``, from the cache where it is there. Raises InfraError if TVM refuses it.

    On a CPU only those of its functions are compiled that a session calls, which takes half the time; ``whole``
    compiles them all.
    """
    target = to_tvm(spec)
    module = guarded(f"{model.name} cannot be built for {spec.name}", lambda: model.module(target, dtype))
    name = f"{model.slug}-{spec.name}-{dtype}"
    if whole or spec.is_gpu:
        return library(module, spec, name, lambda: lowered(module, spec))
    return library(module, spec, f"{name}-called", lambda: lowered(module, spec, _called), "called")


def edited_library(model: Model, spec: TargetSpec, dtype: str, name: str, edit: Callable[[Any], Any], key: str) -> Path:
    """The library of ``model`` with ``edit`` applied to its lowered functions: a fault, say. ``key`` tells edits apart.

    For a CPU.
    """
    target = to_tvm(spec)
    module = guarded(f"{model.name} cannot be built for {spec.name}", lambda: model.module(target, dtype))
    label = f"{model.slug}-{spec.name}-{dtype}-{name}"
    return library(module, spec, label, lambda: lowered(module, spec, lambda mod: edit(_called(mod))), key)


def lowered(module: Any, spec: TargetSpec, edit: Callable[[Any], Any] = lambda mod: mod) -> Any:
    """``module`` compiled for ``spec``: our schedules on the CPU, TVM's own rules on a GPU. ``edit`` is for the CPU."""
    import tvm

    if spec.is_gpu:
        return tvm.compile(module, to_tvm(spec))
    from driftgate.schedules import cpu_pipeline

    target = to_tvm(spec)
    return tvm.compile(module, target, relax_pipeline=cpu_pipeline(target, edit=edit))


def _called(module: Any) -> Any:
    """``module`` with the VM functions that a session calls, and of the others those that they call."""
    import tvm

    from driftgate.runtime import CALLED as names

    called: set[str] = set()

    def note(expression: Any) -> None:
        if isinstance(expression, tvm.ir.GlobalVar):
            called.add(expression.name_hint)

    for name, function in module.functions.items():
        if name.name_hint in names:
            tvm.relax.analysis.post_order_visit(function, note)
    kept = module.clone()
    for name in module.functions:
        if name.name_hint not in names | called:
            del kept[name]
    return kept


def library(module: Any, spec: TargetSpec, name: str, build: Callable[[], Any], variant: str = "") -> Path:
    """``build()``, exported as a shared library under the key of ``module``, ``spec``, the versions and ``variant``.

    ``variant`` tells apart what is built in another way from one module.
    """
    import tvm

    found = versions()
    parts = tvm.ir.save_json(module), key(spec), found["tvm"], found["tvm_ffi"], found["driftgate"], _schedules()
    entry = store.key(*parts, *([variant] if variant else []))

    def make(path: Path) -> None:
        log.info("compiling %s", name)
        guarded(f"TVM cannot compile {name}", lambda: build().export_library(str(path)))

    return store.fetch("libraries", f"{name}-{entry}.so", make)


def _schedules() -> str:
    """The schedules' own source: a change of it is a change of every library."""
    files = sorted(Path(__file__).parent.joinpath("schedules").glob("*.py"))
    return "".join(file.read_text() for file in files)


def guarded(what: str, action: Callable[[], Any]) -> Any:
    """``action()``; what TVM raises becomes an InfraError of one line that begins with ``what``."""
    from driftgate.runtime import first_line

    try:
        return action()
    except (DriftgateError, OSError):
        raise
    except Exception as error:
        raise InfraError(f"{what}: {first_line(error)}") from error
