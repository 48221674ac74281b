"""From a TIR PrimFunc to its device functions, before TVM finalizes them: every barrier is in, no intrinsic yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.kernel import Kernel
from driftgate.races.parse import parse
from driftgate.target import TargetSpec, to_tvm


@dataclass(frozen=True)
class Launch:
    """One device function and what the host hands it."""

    kernel: Kernel
    arguments: tuple[str, ...]
    """For each parameter of the device function the name of the PrimFunc's buffer or variable that it gets."""


@dataclass(frozen=True)
class Lowered:
    """A PrimFunc lowered for a target."""

    name: str
    launches: tuple[Launch, ...]
    """In the order in which the host launches them."""
    modules: tuple[tuple[Any, Any], ...]
    """(``tvm.target.Target``, device IRModule): what code generation starts from."""


def lower(name: str, function: Any, spec: TargetSpec) -> Lowered:
    """``function`` lowered for ``spec`` as ``tvm.compile`` would; one that has no schedule gets the GPU rules' default.

    Raises UsageError with the kernel's name and TVM's reason where TVM does not lower it.
    """
    host, modules = _split(name, function, spec)
    functions = {v.name_hint: f for _, module in modules for v, f in module.functions.items()}
    if not functions:
        raise UsageError(f"kernel {name} has no part that runs on {spec.name}: it binds no thread index")
    launches = tuple(
        Launch(parse(name, functions[called]), arguments)
        for called, arguments in _launches(name, host)
        if called in functions
    )
    return Lowered(name, launches, modules)


def _split(name: str, function: Any, spec: TargetSpec) -> tuple[Any, tuple[tuple[Any, Any], ...]]:
    import tvm
    from tvm import tirx
    from tvm.s_tir import dlight
    from tvm.tirx.build import split_host_device_mods

    target = to_tvm(spec)
    # A common subexpression of the grid would become a parameter that only the host knows how to compute.
    context = tvm.transform.PassContext(config={"tirx.disable_cse_tir": True})
    try:
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        with target, context:
            rules = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction, dlight.gpu.GeneralReduction)
            module = dlight.ApplyDefaultSchedule(*(rule() for rule in (*rules, dlight.gpu.Fallback)))(module)
            module = tirx.transform.BindTarget(target)(module)
            pipeline, *_ = tirx.get_default_tir_pipeline(target)
            host, device = split_host_device_mods(pipeline(module))
    except Exception as error:
        from driftgate.runtime import first_line

        raise UsageError(f"kernel {name} does not lower for {spec.name}: {first_line(error)}") from error
    return host, tuple(device.items())


def _launches(name: str, host: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Each launch in the host code: the device function's name and its arguments' names, without the launch sizes."""
    import tvm_ffi

    calls: list[tuple[str, list[Any]]] = []
    views: dict[Any, Any] = {}

    def note(node: Any) -> None:
        kind = type(node).__name__
        if kind == "DeclBuffer" and _is_buffer_data(node.data):
            views[node.buffer] = node.data.args[0]
        if kind != "Call" or getattr(node.op, "name", "") != "tirx.call_ffi_kernel":
            return
        called, *arguments = node.args
        calls.append((str(called.value), arguments[: len(arguments) - len(node.attrs.launch_params)]))

    for function in host.functions.values():
        tvm_ffi.structural_walk(function.body, (object, note), order="pre")
    for _, handed in calls:
        _refuse_twice(name, [_origin(a.args[0], views) for a in handed if _is_buffer_data(a)])
    return [(called, tuple(_argument(a) for a in handed)) for called, handed in calls]


def _refuse_twice(name: str, buffers: list[Any]) -> None:
    """Two arguments that are one piece of memory would be taken for two, and a conflict between them missed."""
    for n, buffer in enumerate(buffers):
        if any(buffer.same_as(other) for other in buffers[:n]):
            raise UsageError(
                f"kernel {name}: buffer {buffer.name} is handed over twice; two names of one piece of device memory "
                "are not supported by the race detector"
            )


def _origin(buffer: Any, views: dict[Any, Any]) -> Any:
    while buffer in views:
        buffer = views[buffer]
    return buffer


def _is_buffer_data(node: Any) -> bool:
    return type(node).__name__ == "Call" and str(getattr(node.op, "name", "")).endswith("buffer_data")


def _argument(node: Any) -> str:
    """The name behind an argument: a buffer's for ``buffer.data``, else the variable's."""
    if type(node).__name__ == "Call":
        node = node.args[0]
    name = getattr(node, "name", None)
    return str(name) if name is not None else str(node)
