"""The kernel seam: the one place between the KV cache and its kernels, where they are counted, watched or replaced.

The cache takes its kernels as arguments of the global function that constructs it. The seam registers its own
function of that name, which changes entries of the argument list and calls the original: no recompiling, so a
packaged library works as well. A VM resolves the name when it is built, so the seam is installed before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from driftgate.outcome import InfraError

CONSTRUCTOR = "vm.builtin.paged_attention_kv_cache_create"

KERNELS = {
    13: "append",
    15: "prefill_ragged",
    16: "prefill_paged",
    17: "decode",
    18: "prefill_sliding",
    19: "decode_sliding",
    20: "tree_paged",
    21: "tree",
    23: "merge",
    24: "rotary",
    25: "copy_page",
    27: "compact_copy",
}
"""Constructor argument to kernel name. MLA kernels and the debug getter are left alone."""

ATTENTION = frozenset({"prefill_ragged", "prefill_paged", "decode", "prefill_sliding", "decode_sliding"})

Kernel = Callable[..., Any]
Wrapper = Callable[[str, Kernel], Kernel]
"""Kernel name and kernel to the kernel that takes its place."""


@dataclass
class Seam:
    """What to do with kernels: replace some, then wrap some, innermost wrapper first.

    Kernels that nothing asks for reach the cache as they are, so an empty seam costs nothing.
    """

    swaps: Mapping[str, Kernel] = field(default_factory=dict)
    wrappers: list[tuple[frozenset[str], Wrapper]] = field(default_factory=list)
    builtins: Mapping[str, Wrapper] = field(default_factory=dict)
    """Wrappers of VM builtins by global name, such as the one that tells a model its positions."""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    """After construction of a cache: the functions it holds, swaps applied, wrappers not."""

    def wrap(self, names: frozenset[str] | set[str], wrapper: Wrapper) -> None:
        self.wrappers.append((frozenset(names), wrapper))

    @contextmanager
    def installed(self) -> Iterator[Seam]:
        """Override the constructor, and the builtins that are wrapped, until the end of the block."""
        import tvm_ffi

        names = [CONSTRUCTOR, *self.builtins]
        originals = {name: tvm_ffi.get_global_func(name) for name in names}
        try:
            tvm_ffi.register_global_func(CONSTRUCTOR, self._constructor(originals[CONSTRUCTOR]), override=True)
            for name, wrapper in self.builtins.items():
                tvm_ffi.register_global_func(name, wrapper(name, originals[name]), override=True)
            yield self
        finally:
            for name, original in originals.items():
                tvm_ffi.register_global_func(name, original, override=True)

    def _constructor(self, original: Kernel) -> Kernel:
        def construct(*args: Any) -> Any:
            changed = list(args)
            for position, name in KERNELS.items():
                changed[position] = self._entry(name, args[position])
            return original(*changed)

        return construct

    def _entry(self, name: str, entry: Any) -> Any:
        """``entry`` with its kernel changed: a bare function, an array of functions, or a tagged pair."""
        if callable(entry):
            return self._kernel(name, entry)
        parts = list(entry)
        for i, part in enumerate(parts):
            if callable(part):
                parts[i] = self._kernel(name, part)
                break
        else:
            if name in self.swaps:
                raise InfraError(f"the library has no kernel {name!r} to swap")
        return parts

    def _kernel(self, name: str, kernel: Kernel) -> Kernel:
        kernel = self.swaps.get(name, kernel)
        self.kernels[name] = kernel
        for names, wrapper in self.wrappers:
            if name in names:
                kernel = wrapper(name, kernel)
        return kernel


@dataclass
class MergeCounter:
    """Counts merges and the rows (token, query head) that they rewrote."""

    calls: int = 0
    rows: int = 0

    def attach(self, seam: Seam) -> None:
        seam.wrap({"merge"}, self._counted)

    def _counted(self, name: str, merge: Kernel) -> Kernel:
        def counted(*args: Any) -> Any:
            self.calls += 1
            shape = args[1].shape
            self.rows += int(shape[0]) * int(shape[1])
            return merge(*args)

        return counted

    def take(self) -> tuple[int, int]:
        """Calls and rows since the last take."""
        taken = self.calls, self.rows
        self.calls = self.rows = 0
        return taken
