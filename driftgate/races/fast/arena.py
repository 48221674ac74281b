"""Scratch memory of the fast engine: one piece of bytes, handed out once, seen under any dtype."""

from __future__ import annotations

from typing import Any

from driftgate.races.kernel import bytes_of, element_of, lanes_of

ALIGN = 16


class Arena:
    """Offsets in bytes; the views are declared at the head of the function that uses them."""

    def __init__(self) -> None:
        self.bytes = 0
        self._views: dict[str, Any] = {}

    def take(self, size: int) -> int:
        """The offset of ``size`` fresh bytes."""
        offset = self.bytes
        self.bytes += -(-size // ALIGN) * ALIGN
        return offset

    def declare(self, address: Any, dtypes: set[str]) -> None:
        """Views of the memory at ``address`` (an int64 expression) as each of ``dtypes``, which are scalar."""
        for dtype in sorted(dtypes):
            self._views[dtype] = view(address, dtype)

    def load(self, offset: Any, dtype: str, lanes: int = 0) -> Any:
        """The value of ``dtype`` at byte ``offset``, an int64 expression that divides by the dtype's size."""
        from tvm import tirx

        kept = _kept(dtype)
        value = tirx.BufferLoad(self._views[kept], [_index(offset, dtype, lanes or lanes_of(dtype))])
        return value if kept == element_of(dtype) else tirx.Cast(dtype, value)

    def store(self, offset: Any, value: Any, dtype: str) -> None:
        """Emit a store of ``value``, of ``dtype``."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        kept, lanes = _kept(dtype), lanes_of(dtype)
        if kept != element_of(dtype):
            value = tirx.Cast(kept if lanes == 1 else f"{kept}x{lanes}", value)
        T.buffer_store(self._views[kept], value, [_index(offset, dtype, lanes)])


def view(address: Any, dtype: str) -> Any:
    """A buffer over the memory at ``address``."""
    from tvm.script.ir_builder import tirx as T

    return T.decl_buffer((1,), dtype, data=pointer(address, dtype))


def pointer(address: Any, dtype: str) -> Any:
    """A pointer to ``dtype`` at ``address``, an int64 expression."""
    from tvm.script.ir_builder import tirx as T

    return T.bind(T.reinterpret(T.handle(dtype, "global").ty, address))


def kept(dtypes: set[str]) -> set[str]:
    """The scalar dtypes under which values of ``dtypes`` lie in memory."""
    return {_kept(dtype) for dtype in dtypes}


def _kept(dtype: str) -> str:
    element = element_of(dtype)
    return "uint8" if element == "bool" else element


def _index(offset: Any, dtype: str, lanes: int) -> Any:
    from tvm import tirx

    shift = bytes_of(dtype).bit_length() - 1
    first = tirx.shift_right(offset, tirx.IntImm("int64", shift)) if shift else offset
    return first if lanes == 1 else tirx.Ramp(first, tirx.IntImm("int64", 1), lanes)
