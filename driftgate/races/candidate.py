"""A kernel of the user's own, out of a Python file."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.catalog import Shape
from driftgate.target import TargetSpec, to_tvm


def candidate(text: str, shape: Shape, spec: TargetSpec) -> Any:
    """The PrimFunc that ``FILE.py:function`` names: one that is there, or what the function of that name returns.

    A function is given what it asks for of ``heads`` (or ``num_heads``), ``kv_heads``, ``head_dim``, ``dtype`` (or
    ``v_dtype``) and ``target``, a ``tvm.target.Target``. The file is run. Raises UsageError for a file that is not
    there or does not import, a name that is not in it, and a function that asks for more, fails, or returns another
    thing.
    """
    from tvm.tirx import PrimFunc

    file, _, name = text.rpartition(":")
    if not file or not name:
        raise UsageError(f"--candidate {text!r}: write FILE.py:function")
    found = _attribute(Path(file), name)
    if isinstance(found, PrimFunc):
        return found
    if not callable(found):
        raise UsageError(f"--candidate {text}: {name} is {type(found).__name__}, neither a PrimFunc nor a function")
    offered = {
        **dict.fromkeys(("heads", "num_heads"), shape.heads),
        **dict.fromkeys(("kv_heads", "num_kv_heads"), shape.kv_heads),
        "head_dim": shape.head_dim,
        **dict.fromkeys(("dtype", "v_dtype"), shape.dtype),
        "target": to_tvm(spec),
    }
    with _theirs(f"--candidate {text}: {name} fails"):
        parameters = inspect.signature(found).parameters.values()
    missing = [p.name for p in parameters if p.name not in offered and p.default is p.empty]
    if missing:
        raise UsageError(f"--candidate {text}: {name} asks for {missing[0]}; it is given {', '.join(offered)}")
    with _theirs(f"--candidate {text}: {name} fails"):
        function = found(**{p.name: offered[p.name] for p in parameters if p.name in offered})
    if not isinstance(function, PrimFunc):
        raise UsageError(f"--candidate {text}: {name} returns {type(function).__name__}, not a PrimFunc")
    return function


def _attribute(file: Path, name: str) -> Any:
    try:
        there = file.is_file()
    except OSError:  # a name that no file can have
        there = False
    if not there:
        raise UsageError(f"--candidate: there is no file {file}")
    spec = importlib.util.spec_from_file_location(f"driftgate_candidate_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--candidate: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # TVMScript reads the source of what it parses from the module
    with _theirs(f"--candidate: {file} does not import"):
        spec.loader.exec_module(module)
    found = vars(module).get(name)
    if found is None:
        names = sorted(n for n, value in vars(module).items() if not n.startswith("_") and callable(value))
        raise UsageError(f"--candidate: {file} has no {name}; it has {', '.join(names) or 'no functions'}")
    return found


@contextlib.contextmanager
def _theirs(what: str) -> Iterator[None]:
    """Whatever the user's own code raises is theirs to mend. A file that exits with 0 would pass for a clean kernel."""
    from driftgate.runtime import first_line

    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        try:
            reason = first_line(error)
        except Exception:
            reason = "it cannot say why"
        raise UsageError(f"{what}: {type(error).__name__}: {reason}") from error
