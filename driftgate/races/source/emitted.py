"""Rows of the check ``codegen``: the generated source of kernels, judged and compared with what is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from driftgate.races.catalog import Shape
from driftgate.races.known import KnownFinding
from driftgate.races.rows import CODEGEN, KNOWN, Row
from driftgate.races.source.check import check
from driftgate.target import TargetSpec

REFUSED = "refused"
"""Verdict of a row whose kernel TVM does not build."""


def codegen_rows(
    spec: TargetSpec, shapes: Sequence[Shape], kernels: Sequence[str], known: Collection[KnownFinding], formal: bool
) -> list[Row]:
    """One row a kernel and shape: ``pass``, ``known``, ``drift`` or ``refused``, with its findings and their lines."""
    rows: list[Row] = []
    for shape in shapes:
        rows += check(
            spec, (shape.head_dim,), shape.heads, shape.dtype, kv_heads=shape.kv_heads, kernels=kernels, formal=formal
        )
    for row in rows:
        if row["verdict"] == "fail":
            # The order of merge is the order of accesses to its LSE.
            place = row["kernel"], row["target"], row["head_dim"]
            row["known"] = [k.issue for k in known if k.covers(*place, CODEGEN, "S")]
            row["verdict"] = KNOWN if row["known"] else "drift"
    return rows
