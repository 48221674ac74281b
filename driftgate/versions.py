"""Which packages are installed, and which combinations are known to be broken.

Read from package metadata alone: nothing heavy is imported, and a package that crashes on import is still reported.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

from driftgate import __version__

NOT_INSTALLED = "not installed"

_DISTRIBUTIONS = {
    "tvm": "apache-tvm",
    "tvm_ffi": "apache-tvm-ffi",
    "numpy": "numpy",
    "torch": "torch",
    "transformers": "transformers",
}

# (TVM series, tvm-ffi series, what breaks, what to do). A series is a version prefix that ends at a dot.
_KNOWN_BAD = (
    (
        "0.27",
        "0.1.15",
        "segfaults in dlight's float16 GPU matmul schedule",
        "pip install apache-tvm-ffi==0.1.14.post1",
    ),
)


def installed(distribution: str) -> str:
    """The installed version of ``distribution``, or ``not installed``."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def versions() -> dict[str, str]:
    """Versions of driftgate, Python, the platform and the packages that decide a result."""
    found = {"driftgate": __version__, "python": platform.python_version(), "platform": platform.platform()}
    return found | {key: installed(name) for key, name in _DISTRIBUTIONS.items()}


def known_bad(versions: Mapping[str, str]) -> list[str]:
    """One line for each combination in ``versions`` that is known to be broken, with the command that mends it."""
    tvm, ffi = versions.get("tvm", NOT_INSTALLED), versions.get("tvm_ffi", NOT_INSTALLED)
    return [
        f"apache-tvm-ffi {ffi} with apache-tvm {tvm} {what}: {advice}"
        for tvm_series, ffi_series, what, advice in _KNOWN_BAD
        if _in_series(tvm, tvm_series) and _in_series(ffi, ffi_series)
    ]


def _in_series(version: str, series: str) -> bool:
    # 0.1.150 is not of the series 0.1.15, hence the dot on both sides.
    return f"{version}.".startswith(f"{series}.")
