"""A prefill plan: which tokens, in which chunks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from driftgate.outcome import UsageError

PAGE = 16
"""Page size in tokens. TVM's kernels are compiled for 16 whatever the cache is told; others die inside a kernel."""


@dataclass(frozen=True)
class Plan:
    """One sequence, prefilled in chunks from an empty cache."""

    name: str
    ids: tuple[int, ...]
    """Token ids, as many as the chunks hold together."""
    chunks: tuple[int, ...]
    """Length of each chunk, in tokens."""

    def __post_init__(self) -> None:
        if sum(self.chunks) != len(self.ids):
            raise UsageError(
                f"chunks {_shown(self.chunks)} hold {sum(self.chunks)} tokens, but the prompt has {len(self.ids)}"
            )

    @property
    def starts(self) -> tuple[int, ...]:
        """Position of the first token of each chunk."""
        return tuple(accumulate(self.chunks, initial=0))[:-1]

    def merge_calls(self, attention_layers: int) -> int:
        """Merges that one prefill makes: one per attention layer in each later chunk of more than one token.

        A chunk of one token takes the decode path, and the first chunk has no past to merge with.
        """
        return attention_layers * sum(n > 1 for n in self.chunks[1:])

    def rows_merged(self, attention_layers: int, heads: int) -> int:
        """Rows (token, query head) that those merges rewrite."""
        return attention_layers * heads * sum(n for n in self.chunks[1:] if n > 1)


def split(tokens: int, chunk: int) -> tuple[int, ...]:
    """``tokens`` in chunks of ``chunk``, the last one shorter where they do not divide."""
    whole, rest = divmod(tokens, chunk)
    return (chunk,) * whole + ((rest,) if rest else ())


def parse_chunks(text: str) -> tuple[int, ...]:
    """``"16"`` or ``"16,16,8"`` to lengths. Raises UsageError unless each is a whole number of at least 1."""
    try:
        chunks = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"chunk {text!r} is not a length or a list of lengths such as 16 or 16,16,8") from None
    if min(chunks) < 1:
        raise UsageError(f"chunk {text!r}: each length must be at least 1 token")
    return chunks


def chunk_lengths(given: tuple[int, ...], tokens: int | None, default_tokens: int) -> tuple[int, ...]:
    """The chunk lengths of a plan: one length is repeated over the prompt, a list stands for the prompt itself."""
    if len(given) == 1:
        return split(default_tokens if tokens is None else tokens, given[0])
    if tokens is not None and sum(given) != tokens:
        raise UsageError(f"chunks {_shown(given)} hold {sum(given)} tokens, but {tokens} tokens were asked for")
    return given


def _shown(chunks: tuple[int, ...]) -> str:
    return ",".join(map(str, chunks[:12])) + (",..." if len(chunks) > 12 else "")
