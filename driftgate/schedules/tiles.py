"""How large a register tile a CPU can hold."""

from dataclasses import dataclass

from tvm.target import Target
from tvm.target.codegen import target_has_features

COLUMNS = 8
"""Columns of the result (rows of the weight) in a tile. All models' widths are multiples of it, and more rows of the
weight than this are more streams of memory than the prefetchers of a CPU follow."""

CHUNK = 32
"""Columns in a task for one thread."""


@dataclass(frozen=True)
class Tile:
    """The block of the result that stays in registers while the inner loop runs."""

    lanes: int
    """float32 values in one vector register; they run along the rows of x."""
    vectors: int
    """Vectors side by side, at most: a block covers `lanes * vectors` rows of x."""

    @property
    def rows(self) -> int:
        """Rows of x in a block."""
        return self.lanes * self.vectors


def tile_for(target: Target) -> Tile:
    """The tile for an LLVM target, from the features its triple, mcpu and mattr imply.

    TVM's `llvm_get_vector_width` is no help: it says 512 for every x86-64 CPU, with AVX-512 or not.
    """
    if target_has_features("avx512f", target):
        return Tile(lanes=16, vectors=2)
    if target_has_features("avx2", target) and target_has_features("fma", target):
        return Tile(lanes=8, vectors=1)
    if target_has_features("neon", target):
        return Tile(lanes=4, vectors=2)
    # SSE2, or a CPU that nothing is known of: 16 registers of 4 lanes.
    return Tile(lanes=4, vectors=1)
