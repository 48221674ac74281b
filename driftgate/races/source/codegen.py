"""The source that TVM generates for a lowered kernel: the text that the device's own compiler is given."""

from __future__ import annotations

from driftgate.outcome import InfraError
from driftgate.races.lowering import Lowered


def emit(lowered: Lowered) -> str:
    """The generated source of all device functions of ``lowered``: Metal, CUDA, OpenCL C or WGSL.

    Needs no device and no compiler of the target. The barriers and stores are those of ``tvm.compile``; subexpressions
    that it would share are written out, since ``lower`` leaves them so. Raises InfraError where this TVM has no code
    generator for the target, or where the generator fails.
    """
    import importlib

    import tvm
    from tvm import tirx

    from driftgate.runtime import first_line

    # The package's ``build`` is a function that hides the module of the same name.
    codegen_build = importlib.import_module("tvm.tirx.build").codegen_build
    texts = []
    for target, module in lowered.modules:
        if tvm.get_global_func(f"target.build.{target.kind.name}", allow_missing=True) is None:
            raise InfraError(f"kernel {lowered.name}: this TVM generates no source for {target.kind.name}")
        try:
            *_, finalize = tirx.get_default_tir_pipeline(target)
            with target:
                texts.append(str(codegen_build(finalize()(module), target).inspect_source()))
        except Exception as error:
            raise InfraError(f"kernel {lowered.name}: no source for {target.kind.name}: {first_line(error)}") from error
    return "\n".join(texts)
