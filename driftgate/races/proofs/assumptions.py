"""What the proofs take for granted about the callers of each kernel, in words that a report prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from driftgate.outcome import UsageError
from driftgate.races.catalog import PAGE, Shape


@dataclass(frozen=True)
class Assumptions:
    """Facts about the arguments of a launch. Every parameter that is an integer is at least 0 besides."""

    fixed: Mapping[str, int] = field(default_factory=dict)
    """Parameters that have one value, because the kernel is built for it."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Smallest values of parameters."""
    cases: Mapping[str, range] = field(default_factory=dict)
    """Parameters with a few values, which are argued one by one."""
    differ: tuple[tuple[str, str], ...] = ()
    """Pairs of parameters that are not equal."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """Smallest entries of index arrays."""
    distinct: tuple[str, ...] = ()
    """Index arrays whose entries are distinct where they are not -1."""
    words: tuple[str, ...] = ()
    """The same in plain words, a sentence each."""


_NO_OVERFLOW = "Integers do not overflow."
_COUNTS = "No parameter is negative."


def _merge(shape: Shape) -> Assumptions:
    return Assumptions(
        fixed={"H": shape.heads, "D": shape.head_dim},
        words=(f"H is {shape.heads} and D is {shape.head_dim}, for which the kernel is built.", _COUNTS, _NO_OVERFLOW),
    )


def _single_writer(shape: Shape) -> Assumptions:
    return Assumptions(words=("n, the number of tokens, is any number.", _COUNTS, _NO_OVERFLOW))


def _append(shape: Shape) -> Assumptions:
    return Assumptions(
        entries={"position_map": -1},
        distinct=("position_map",),
        words=(
            "position_map holds -1 for a token that is not stored, and otherwise positions that no two tokens share.",
            _COUNTS,
            _NO_OVERFLOW,
        ),
    )


def _append_mla(shape: Shape) -> Assumptions:
    return Assumptions(
        entries={"position_map": 0},
        distinct=("position_map",),
        words=(
            "position_map holds positions that no two tokens share, and no -1: the kernel as lowered does not check.",
            _COUNTS,
            _NO_OVERFLOW,
        ),
    )


def _copy_page(shape: Shape) -> Assumptions:
    return Assumptions(
        cases={"copy_length": range(PAGE + 1)},
        differ=(("src_page_id", "tgt_page_id"),),
        words=(
            f"A page is copied to another one, at most the {PAGE} tokens that it has.",
            _COUNTS,
            _NO_OVERFLOW,
        ),
    )


def _rotary(shape: Shape) -> Assumptions:
    return Assumptions(words=("seq_len is any number; positions may be anything.", _COUNTS, _NO_OVERFLOW))


ASSUMPTIONS: Mapping[str, Callable[[Shape], Assumptions]] = {
    "merge": _merge,
    "merge_single_writer": _single_writer,
    "append": _append,
    "append_mla": _append_mla,
    "copy_page": _copy_page,
    "copy_page_mla": _copy_page,
    "rotary": _rotary,
}
"""By kernel: from what the kernel is built for to what its proof assumes."""


def assumptions_for(name: str, shape: Shape) -> Assumptions:
    """What the proof of kernel ``name`` assumes. UsageError where none is written down."""
    if name not in ASSUMPTIONS:
        raise UsageError(f"no proof is set up for kernel {name!r}: there are {', '.join(ASSUMPTIONS)}")
    return ASSUMPTIONS[name](shape)
