"""Calls of cache kernels and of VM functions as they go by, told to whatever observes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from driftgate.job import NO_RUN
from driftgate.kernels.signatures import OUT, SIGNATURES
from driftgate.plan import Plan
from driftgate.seam import KERNELS, Kernel, Seam
from driftgate.tensors import is_float, is_tensor, restore, view

BUILTIN = "vm.builtin."
POSITIONS = "vm.builtin.attention_kv_cache_get_query_positions"
VM = "vm:"
"""Prefix of the name of a VM call, to tell it from a cache kernel."""
_ATTENTION_BUILTINS = ("vm.builtin.attention_kv_cache_attention", "vm.builtin.attention_kv_cache_self_attention")
SKIP_RUN = 1
"""What an instrument of TVM's VM returns to have the call left out."""


def vm_name(name: str) -> str:
    """``vm:NAME`` of a VM function or builtin."""
    return VM + name.removeprefix(BUILTIN)


@dataclass(slots=True)
class Call:
    """One call. Valid while it is made: its tensors are the runtime's own."""

    name: str
    """``merge``, ``prefill_paged``, ..., or ``vm:NAME``."""
    kernel: Kernel
    args: tuple[Any, ...]
    run: int
    chunk: int
    layer: int | None
    """Of the layers that attend, from 0, where a layer's attention made the call."""
    number: int
    """Of all calls in its run, from 0."""

    @property
    def written(self) -> tuple[int, ...]:
        """Arguments that hold its results: by the signature of a cache kernel, the last tensor of a VM function."""
        signature = SIGNATURES.get(self.name)
        if signature is not None:
            return tuple(i for i, argument in enumerate(signature) if argument.role.endswith(OUT))
        return tuple(i for i, arg in enumerate(self.args) if is_tensor(arg))[-1:]

    @property
    def computes(self) -> bool:
        """Whether its results are values of the model: floating-point, or the positions of its tokens. Shape functions
        and the like are not."""
        return self.name == vm_name(POSITIONS) or any(is_float(self.args[i]) for i in self.written)

    @property
    def place(self) -> dict[str, Any]:
        """Where it was made, for a report."""
        return {"run": self.run, "chunk": self.chunk, "layer": self.layer, "call": self.number}


class Mode(Protocol):
    """Something that observes calls, and leaves every tensor as the call left it."""

    def before(self, call: Call) -> None:
        """The call is about to be made."""

    def after(self, call: Call) -> None:
        """The call was made."""


class Calls:
    """Tells ``modes`` of every call: of cache kernels through the seam, of VM functions if ``vm`` as well.

    ``replacements`` are VM functions by ``vm:NAME`` that are called in place of the library's.
    """

    def __init__(
        self, modes: Sequence[Mode], vm: bool = False, replacements: dict[str, Callable[..., Any]] | None = None
    ) -> None:
        self.modes = modes
        self.vm = vm
        self.replacements = replacements or {}
        self._plan: Plan | None = None
        self.run = NO_RUN
        """Number of the run, for a report."""
        self._chunk = self._number = 0
        self._layer: int | None = None
        self._attended = 0
        self._open: list[Call] = []
        self._told = bool(modes) and vm
        self._kinds: dict[str, int] = {}

    def attach(self, seam: Seam) -> None:
        if self.modes:
            seam.wrap(set(KERNELS.values()), self._wrapped)

    def instrument_of(self, session_vm: Any) -> None:
        """Have the VM tell of its calls, if anyone wants to know: an instrument that does nothing costs a tenth."""
        self._told = bool(self.modes) and self.vm
        if self._told or self.replacements:
            session_vm.set_instrument(self.instrument)

    def begin_prefill(self, plan: Plan) -> None:
        """What comes belongs to the first chunk of ``plan``."""
        self._plan = plan
        self._chunk, self._number, self._layer, self._attended = 0, 0, None, 0

    def end_chunk(self) -> None:
        """What comes belongs to the next chunk."""
        self._chunk += 1
        self._layer, self._attended = None, 0

    def instrument(self, func: Any, name: str, before: bool, ret: Any, *args: Any) -> int | None:
        """The VM's instrument."""
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = _kind(name)
        if kind == _OTHER_BUILTIN:
            # Most of what a VM does, thousands of times a prefill.
            return None
        if kind == _ATTENTION:
            # Not by the number it is called with: that is the layer whose K and V it shares.
            self._layer = self._attended if before else None
            self._attended += not before
        elif kind == _POSITIONS:
            if self._told and not before:
                self._tell(Call(vm_name(name), func, (ret,), *self._where()))
        elif self.replacements and (replacement := self.replacements.get(VM + name)) is not None:
            if before:
                replacement(*args)
                return SKIP_RUN
        elif self._told:
            if before:
                call = Call(VM + name, func, args, *self._where())
                self._open.append(call)
                for mode in self.modes:
                    mode.before(call)
            else:
                self._after(self._open.pop())
        return None

    def positions(self) -> np.ndarray:
        """The positions of the tokens of this chunk, ``(n,)`` int32, as the plan has them."""
        assert self._plan is not None
        return np.array(self._plan.positions(self._chunk), np.int32)

    def right_positions(self, kernel: Kernel) -> Kernel:
        """In place of the VM builtin that tells a model its positions: those of the plan."""

        def run(*args: Any) -> Any:
            told = kernel(*args)
            restore(told, self.positions())
            return told

        return run

    def _wrapped(self, name: str, kernel: Kernel) -> Kernel:
        def told(*args: Any) -> Any:
            call = Call(name, kernel, args, *self._where())
            for mode in self.modes:
                mode.before(call)
            result = kernel(*args)
            self._after(call)
            return result

        return told

    def _tell(self, call: Call) -> None:
        for mode in self.modes:
            mode.before(call)
        self._after(call)

    def _after(self, call: Call) -> None:
        for mode in reversed(self.modes):
            mode.after(call)

    def _where(self) -> tuple[int, int, int | None, int]:
        self._number += 1
        return self.run, self._chunk, self._layer, self._number - 1


_FUNCTION, _ATTENTION, _POSITIONS, _OTHER_BUILTIN = range(4)


def _kind(name: str) -> int:
    if not name.startswith(BUILTIN):
        return _FUNCTION
    if name.startswith(_ATTENTION_BUILTINS):
        return _ATTENTION
    return _POSITIONS if name == POSITIONS else _OTHER_BUILTIN


def results(call: Call) -> list[np.ndarray]:
    """What the call wrote, as arrays: of the page pool the pages it wrote to, or all of it where that is unknown."""
    if call.name in _PAGES_WRITTEN:
        pages = view(call.args[0])
        return [pages[_PAGES_WRITTEN[call.name](call.args, pages.shape[3])]]
    return [view(call.args[i]) for i in call.written]


def _appended(args: tuple[Any, ...], size: int) -> np.ndarray:
    slots = view(args[3])
    return np.unique(slots[slots >= 0] // size)


_PAGES_WRITTEN: dict[str, Callable[[tuple[Any, ...], int], Any]] = {
    "append": _appended,
    "copy_page": lambda args, size: [int(args[2])],
    "compact_copy": lambda args, size: np.unique(view(args[2])[1] // size),
}
