"""The kernel seam: the one place between the KV cache and its kernels, where they are observed or replaced.

The cache takes its kernels as arguments of the global function that constructs it. The seam registers its own
function of that name, which changes entries of the argument list and calls the original: no recompiling, so a
packaged library works as well. A VM resolves the name when it is built, so the seam is installed before that. Calls
that the VM itself makes are seen through its instrument (`driftgate.vm_calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from driftgate.outcome import DriftgateError, UsageError

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

TREE_ARGUMENTS = (20, 21)
"""On the CPU, TVM 0.27 passes the two tree kernels the other way round: its constructor calls each as the other."""

ATTENTION = frozenset(
    {"prefill_ragged", "prefill_paged", "decode", "prefill_sliding", "decode_sliding", "tree_paged", "tree"}
)

Kernel = Callable[..., Any]
Wrapper = Callable[[str, Kernel], Kernel]
"""Kernel name and kernel to the kernel that takes its place."""


@dataclass(frozen=True)
class CacheConfig:
    """What the constructor was told, as far as kernels depend on it."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None
    """Keys that a query of a sliding layer sees; None without sliding layers."""
    rope_mode: int
    """0 none, 1 normal (rotary turns q and k), 2 inline (the attention kernels do)."""
    rope_scale: float
    rope_theta: float
    softcap: float | None = None
    """Cap of the attention scores, which the constructor is not told."""
    chunk_window: int | None = None
    """Window of the in-chunk kernel, which TVM's does not have."""

    @classmethod
    def of(cls, args: tuple[Any, ...], softcap: float | None = None) -> CacheConfig:
        """Read the constructor's arguments."""
        sizes = [int(n) for n in args[0]]
        heads, kv_heads, head_dim, v_head_dim = (int(args[i]) for i in range(2, 6))
        window = sizes[5] if len(sizes) > 5 and 3 in [int(kind) for kind in args[6]] else None
        rope = int(args[8]), float(args[9]), float(args[10])
        return cls(heads, kv_heads, head_dim, v_head_dim, window, *rope, softcap)


Swap = Callable[[CacheConfig, Kernel], Kernel]
"""Makes the kernel that takes the place of the library's, given the cache's figures and the kernel replaced."""


def always(kernel: Kernel) -> Swap:
    """The swap that puts ``kernel`` in, whatever the cache."""
    return lambda config, replaced: kernel


@dataclass
class Seam:
    """What to do with kernels. For each, innermost first: the library's, faults, swap, wrappers in order.

    Kernels that nothing asks for reach the cache as they are, so an empty seam costs nothing.
    """

    swaps: Mapping[str, Swap] = field(default_factory=dict)
    faults: list[tuple[frozenset[str], Wrapper]] = field(default_factory=list)
    """Stand for a defect of the kernel itself: a swap replaces them with it."""
    wrappers: list[tuple[frozenset[str], Wrapper]] = field(default_factory=list)
    builtins: dict[str, list[Wrapper]] = field(default_factory=dict)
    """Wrappers of VM builtins by global name, innermost first."""
    exchange_trees: bool = False
    """Put the two tree kernels where the constructor expects them (see ``TREE_ARGUMENTS``)."""
    softcap: float | None = None
    """Cap of the attention scores, if the model has one: references need to know."""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    """After construction of a cache: the functions it holds, swaps applied, wrappers not."""
    config: CacheConfig | None = None
    """After construction of a cache: its figures."""
    error: DriftgateError | None = None
    """What was raised inside the runtime, which hands on its text alone."""

    def wrap(self, names: frozenset[str] | set[str], wrapper: Wrapper) -> None:
        self.wrappers.append((frozenset(names), wrapper))

    @contextmanager
    def installed(self) -> Iterator[Seam]:
        """Override the constructor, and the builtins that are wrapped, until the end of the block.

        Raises UsageError if a VM that was built before the block made its cache inside: it holds the constructor
        that was there when it was built, and no kernel passed the seam.
        """
        import tvm_ffi

        names = [CONSTRUCTOR, *self.builtins]
        originals = {name: tvm_ffi.get_global_func(name) for name in names}
        try:
            tvm_ffi.register_global_func(CONSTRUCTOR, self._constructor(originals[CONSTRUCTOR]), override=True)
            for name, wrappers in self.builtins.items():
                kernel = originals[name]
                for wrapper in wrappers:
                    kernel = wrapper(name, kernel)
                tvm_ffi.register_global_func(name, kernel, override=True)
            yield self
        except Exception as error:
            if self.error is not None:
                raise self.error from error
            raise
        finally:
            for name, original in originals.items():
                tvm_ffi.register_global_func(name, original, override=True)
        if self.config is None:
            raise UsageError(
                "no cache passed the seam: the VM was built before the seam was installed; build it inside "
                "`with seam.installed()`"
            )

    def _constructor(self, original: Kernel) -> Kernel:
        def construct(*args: Any) -> Any:
            self.config = CacheConfig.of(args, self.softcap)
            changed = list(args)
            if self.exchange_trees:
                first, second = TREE_ARGUMENTS
                changed[first], changed[second] = changed[second], changed[first]
            for position, name in KERNELS.items():
                changed[position] = self._entry(name, changed[position])
            self._check_swaps()
            return original(*changed)

        return self._keeping_errors(construct)

    def _keeping_errors(self, function: Kernel) -> Kernel:
        def guarded(*args: Any) -> Any:
            try:
                return function(*args)
            except DriftgateError as error:
                self.error = self.error or error
                raise

        return guarded

    def _check_swaps(self) -> None:
        missing = [name for name in self.swaps if name in KERNELS.values() and name not in self.kernels]
        if missing:
            there = ", ".join(sorted(self.kernels))
            raise UsageError(f"the library has no kernel {missing[0]!r} to swap; it has {there}")

    def _entry(self, name: str, entry: Any) -> Any:
        """``entry`` with its kernel changed: a bare function, an array of functions, or a tagged pair."""
        if callable(entry):
            return self._kernel(name, entry)
        parts = list(entry)
        for i, part in enumerate(parts):
            if callable(part):
                parts[i] = self._kernel(name, part)
                break
        return parts

    def _kernel(self, name: str, kernel: Kernel) -> Kernel:
        assert self.config is not None
        kernel = _wrapped(self.faults, name, kernel)
        if name in self.swaps:
            kernel = self.swaps[name](self.config, kernel)
        self.kernels[name] = kernel
        wrapped = _wrapped(self.wrappers, name, kernel)
        # A kernel of the library raises nothing of ours.
        return wrapped if wrapped is kernel and name not in self.swaps else self._keeping_errors(wrapped)


def _wrapped(wrappers: list[tuple[frozenset[str], Wrapper]], name: str, kernel: Kernel) -> Kernel:
    for names, wrapper in wrappers:
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
