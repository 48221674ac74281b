"""How large a register tile a CPU can hold."""

from dataclasses import dataclass

from tvm.target import Target
from tvm.target.codegen import target_has_features


@dataclass(frozen=True)
class Tile:
    """The block of the result that stays in registers while the inner loop runs."""

    lanes: int
    """float32 values in one vector register; they run along the rows of x."""
    vectors: int
    """Vectors side by side: a block covers `lanes * vectors` rows of x."""
    columns: int
    """Columns of the result (rows of the weight) that the tile covers."""
    narrow_columns: int
    """The same for a block with so few rows that one vector is enough."""

    @property
    def rows(self) -> int:
        return self.lanes * self.vectors

    @property
    def chunk(self) -> int:
        """Columns of one task: 48, which all tiles, and all vectors when the result is turned, divide."""
        return 48


def tile_for(target: Target) -> Tile:
    """The tile for an LLVM target, from the features its triple, mcpu and mattr imply.

    TVM's `llvm_get_vector_width` is no help: it says 512 for every x86-64 CPU, with AVX-512 or not.
    """
    if target_has_features("avx512f", target):
        return Tile(lanes=16, vectors=2, columns=12, narrow_columns=24)
    if target_has_features("avx2", target) and target_has_features("fma", target):
        return Tile(lanes=8, vectors=1, columns=12, narrow_columns=12)
    if target_has_features("neon", target):
        return Tile(lanes=4, vectors=2, columns=12, narrow_columns=16)
    # SSE2, or a CPU that nothing is known of: 16 registers of 4 lanes.
    return Tile(lanes=4, vectors=1, columns=12, narrow_columns=12)
