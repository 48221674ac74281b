"""A prefill plan: which tokens, in which chunks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from driftgate.outcome import UsageError

PAGE = 16
"""Page size in tokens. TVM's kernels are compiled for 16 whatever the cache is told; others die inside a kernel."""


PREFILL, FORK, TREE = "prefill", "fork", "tree"
"""Ways to bring a chunk to the cache: onto the sequence; onto a fork of it, made for this chunk; as a token tree with
one rejected node, whose accepted path is then committed."""


@dataclass(frozen=True)
class Plan:
    """One sequence, prefilled in chunks from an empty cache."""

    name: str
    ids: tuple[int, ...]
    """Token ids, as many as the chunks hold together."""
    chunks: tuple[int, ...]
    """Length of each chunk, in tokens."""
    ways: tuple[str, ...] = ()
    """``prefill``, ``fork`` or ``tree`` for each chunk; without any, all are ``prefill``. Right logits are the same."""

    def __post_init__(self) -> None:
        if sum(self.chunks) != len(self.ids):
            raise UsageError(
                f"chunks {_shown(self.chunks)} hold {sum(self.chunks)} tokens, but the prompt has {len(self.ids)}"
            )
        if self.ways:
            self._check_ways()

    def _check_ways(self) -> None:
        if len(self.ways) != len(self.chunks) or not set(self.ways) <= {PREFILL, FORK, TREE}:
            raise UsageError(f"plan {self.name}: ways are {PREFILL}, {FORK} or {TREE}, one a chunk")
        for way, start, count in zip(self.ways, self.starts, self.chunks, strict=True):
            if way == FORK and not (start > PAGE and start % PAGE):
                # Elsewhere no page is copied, and the blocks of the cache are other than ``merge_calls`` counts.
                raise UsageError(f"plan {self.name}: a fork has to begin inside a page after the first, not at {start}")
            if way == TREE and count < 2:
                raise UsageError(f"plan {self.name}: a tree has at least 2 tokens")
        if self.ways.count(FORK) > 1:
            raise UsageError(f"plan {self.name}: one fork at most")

    @property
    def starts(self) -> tuple[int, ...]:
        """Position of the first token of each chunk."""
        return tuple(accumulate(self.chunks, initial=0))[:-1]

    def merge_calls(self, attention_layers: int) -> int:
        """Merges that one prefill makes: in each layer, one less than the results that a chunk has.

        A chunk attends to itself and to each block of its past: one block, two after a fork, none at the start. A
        chunk of one token takes the decode path, where itself and the last block are one.
        """
        return attention_layers * sum(self._merges)

    def rows_merged(self, attention_layers: int, heads: int) -> int:
        """Rows (token, query head) that those merges rewrite. A tree has one node more than the chunk has tokens."""
        nodes = [n + (way == TREE) for n, way in zip(self.chunks, self.way_of_each, strict=True)]
        return attention_layers * heads * sum(m * n for m, n in zip(self._merges, nodes, strict=True))

    @property
    def way_of_each(self) -> tuple[str, ...]:
        """How each chunk comes to the cache."""
        return self.ways or (PREFILL,) * len(self.chunks)

    def positions(self, chunk: int) -> tuple[int, ...]:
        """Positions in the sequence of what chunk ``chunk`` brings: a tree's rejected node stands where the second
        token does."""
        start, count = self.starts[chunk], self.chunks[chunk]
        straight = tuple(range(start, start + count))
        return (start, start + 1, *straight[1:]) if self.way_of_each[chunk] == TREE else straight

    @property
    def _merges(self) -> list[int]:
        merges, blocks = [], 0
        for n, way in zip(self.chunks, self.way_of_each, strict=True):
            blocks += way == FORK
            merges.append(max(blocks - (n == 1), 0))
            blocks = max(blocks, 1)
        return merges


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
