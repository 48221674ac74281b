"""A model library on a device: its parameters, its KV cache, and one chunked prefill."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from driftgate.outcome import InfraError, UsageError
from driftgate.plan import FORK, PAGE, TREE, Plan
from driftgate.seam import Seam

if TYPE_CHECKING:
    from driftgate.calls import Calls
    from driftgate.reach.script import Step


CALLED = frozenset({"_metadata", "create_tir_paged_kv_cache", "embed", "get_logits", "prefill_to_last_hidden_states"})
"""The functions of a library of ours that a session calls."""


@dataclass(frozen=True)
class Chunk:
    """What one chunk left behind."""

    hidden: Any | None
    """Final hidden states, device tensor ``(1, n, hidden)``; None where the library has no function for them."""
    logits: np.ndarray
    """Logits of the chunk's last token, float32 ``(vocab,)``."""


class Session:
    """One VM with one KV cache. Open it while the seam is installed."""

    def __init__(
        self,
        library: Path,
        params: Path,
        device: Any,
        dtype: str,
        capacity: int,
        whole_window: bool = False,
        sequences: int = 1,
    ) -> None:
        import tvm
        from tvm.runtime.vm import VirtualMachine

        try:
            self.vm = VirtualMachine(tvm.runtime.load_module(str(library)), device)
        except Exception as error:
            raise InfraError(f"the model library {library.name} cannot be loaded: {first_line(error)}") from error
        self.device = device
        self.dtype = dtype
        self._tensor = lambda array: tvm.runtime.tensor(array, device)
        self._function = tvm.get_global_func
        self.metadata = json.loads(str(self.vm["_metadata"]()))
        self.params = self._load(params)
        self._has_hidden = self.vm.module.implements_function("prefill_to_last_hidden_states", True)
        self.capacity = capacity
        self.sequences = sequences
        self.cache = self._create_cache(capacity, whole_window, sequences)
        self.calls: Calls | None = None
        """Whoever has to know which chunk of which plan runs."""

    def prefill(self, plan: Plan) -> Iterator[Chunk]:
        """Run ``plan`` on an emptied cache, chunk by chunk."""
        if self.calls is not None:
            self.calls.begin_prefill(plan)
        self._builtin("kv_state_clear")(self.cache)
        self._builtin("kv_state_add_sequence")(self.cache, 0)
        sequence = 0
        for start, count, way in zip(plan.starts, plan.chunks, plan.way_of_each, strict=True):
            if way == FORK:
                self._builtin("kv_state_fork_sequence")(self.cache, sequence, sequence + 1, -1)
                sequence += 1
            ids = plan.ids[start : start + count]
            yield self._tree(sequence, ids) if way == TREE else self._chunk(sequence, ids)
            if self.calls is not None:
                self.calls.end_chunk()

    def all_logits(self, chunk: Chunk) -> np.ndarray:
        """Logits at every position of ``chunk``, float32 ``(n, vocab)``; without hidden states at its last alone."""
        if chunk.hidden is None:
            return chunk.logits[None]
        return self.vm["get_logits"](chunk.hidden, self.params).numpy()[0]

    def live(self, steps: Sequence[Step]) -> Iterator[np.ndarray]:
        """Perform ``steps`` on an emptied cache; after each the logits ``(n, vocab)`` of what it prefilled, in order of
        its parts; none for other steps."""
        if not self._has_hidden:
            raise UsageError("a history needs a library with prefill_to_last_hidden_states")
        self._builtin("kv_state_clear")(self.cache)
        there: set[int] = set()
        for step in steps:
            if step.kind == FORK:
                there.add(step.sequence)
                self._builtin("kv_state_fork_sequence")(self.cache, step.parent, step.sequence, step.position)
            elif step.kind == "popn":
                self._builtin("kv_state_popn")(self.cache, step.sequence, step.tokens)
            elif step.kind == "remove":
                self._builtin("kv_state_remove_sequence")(self.cache, step.sequence)
            for part in step.parts:
                if part.sequence not in there:
                    there.add(part.sequence)
                    self._builtin("kv_state_add_sequence")(self.cache, part.sequence)
            if not step.parts:
                yield np.empty((0, 0), np.float32)
                continue
            embedded = self._embedded([i for part in step.parts for i in part.ids])
            lengths = {part.sequence: len(part.ids) for part in step.parts}
            hidden = self._forward("prefill_to_last_hidden_states", lengths, embedded)
            yield self.vm["get_logits"](hidden, self.params).numpy()[0]

    def flood(self, value: float) -> int:
        """Fill all pages with sequences whose embeddings are all ``value``, and remove them; the number of those.

        As many as the cache was made for: attention over one long sequence would take its length times as long.
        """
        self._builtin("kv_state_clear")(self.cache)
        count = -(-self.capacity // (self.sequences * PAGE)) * PAGE
        embedded = self._embedded([0] * count)
        flooded = np.full(tuple(int(n) for n in embedded.shape), value, dtype=str(embedded.dtype))
        function = "prefill_to_last_hidden_states" if self._has_hidden else "prefill"
        for sequence in range(self.capacity // count):
            self._builtin("kv_state_add_sequence")(self.cache, sequence)
            self._forward(function, {sequence: count}, self._tensor(flooded))
        for sequence in range(self.capacity // count):
            self._builtin("kv_state_remove_sequence")(self.cache, sequence)
        return flooded.size * (self.capacity // count)

    def _chunk(self, sequence: int, ids: tuple[int, ...]) -> Chunk:
        embedded = self._embedded(ids)
        if not self._has_hidden:
            logits = self._forward("prefill", {sequence: len(ids)}, embedded)
            return Chunk(None, logits.numpy().reshape(-1))
        return self._with_logits(self._forward("prefill_to_last_hidden_states", {sequence: len(ids)}, embedded))

    def _tree(self, sequence: int, ids: tuple[int, ...]) -> Chunk:
        """``ids`` as the accepted path of a token tree, and beside its second node another one that is rejected."""
        if not self._has_hidden:
            raise UsageError("a plan with a tree needs a library with prefill_to_last_hidden_states")
        rejected = next((i for i in ids if i != ids[1]), ids[1])
        nodes = (ids[0], rejected, *ids[1:])
        parents = (-1, 0, 0, *range(2, len(nodes) - 1))
        embedded = self._embedded(nodes)
        hidden = self._forward("prefill_to_last_hidden_states", {sequence: len(nodes)}, embedded, parents)
        shape = _shape()
        commit = self._builtin("attention_kv_cache_commit_accepted_token_tree_nodes")
        commit(self.cache, shape([sequence]), shape([len(nodes) - 1]))
        accepted = np.delete(hidden.numpy(), 1, axis=1)
        return self._with_logits(self._tensor(np.ascontiguousarray(accepted)))

    def _embedded(self, ids: Sequence[int]) -> Any:
        embedded = self.vm["embed"](self._tensor(np.array(ids, dtype=np.int32)), self.params)
        return self._builtin("reshape")(embedded, _shape()([1, *embedded.shape]))

    def _forward(self, function: str, lengths: dict[int, int], embedded: Any, parents: tuple[int, ...] = ()) -> Any:
        """One forward of ``embedded`` ``(1, n, width)``, whose tokens belong to sequences of these lengths."""
        shape = _shape()
        tree = (shape(parents),) if parents else ()
        self._builtin("kv_state_begin_forward")(self.cache, shape(list(lengths)), shape(list(lengths.values())), *tree)
        result = self.vm[function](embedded, self.cache, self.params)[0]
        self._builtin("kv_state_end_forward")(self.cache)
        return result

    def _with_logits(self, hidden: Any) -> Chunk:
        last = self._tensor(np.ascontiguousarray(hidden.numpy()[:, -1:]))
        return Chunk(hidden, self.vm["get_logits"](last, self.params).numpy().reshape(-1))

    def _create_cache(self, capacity: int, whole_window: bool, sequences: int) -> Any:
        shape = _shape()
        create = self.vm["create_tir_paged_kv_cache"]
        # Sequences, tokens, longest chunk, page size, and whether there is a window over all layers.
        return create(
            shape([sequences]), shape([capacity]), shape([capacity]), shape([PAGE]), shape([int(whole_window)])
        )

    def _load(self, params: Path) -> list[Any]:
        from safetensors import safe_open

        with safe_open(params, "np") as arrays:
            return [
                self._tensor(arrays.get_tensor(entry["name"]).astype(entry["dtype"], copy=False))
                for entry in self.metadata["params"]
            ]

    def _builtin(self, name: str) -> Any:
        return self._function(f"vm.builtin.{name}")


def open_session(
    library: Path,
    params: Path,
    device: Any,
    dtype: str,
    capacity: int,
    seam: Seam,
    whole_window: bool = False,
    sequences: int = 1,
) -> Session:
    """A session whose cache was built through ``seam``. The overrides end here; the cache keeps its kernels."""
    with seam.installed():
        return Session(library, params, device, dtype, capacity, whole_window, sequences)


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something: TVM's messages carry pages of C++ trace."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.startswith("Traceback")), type(error).__name__)


def _shape() -> Any:
    from tvm_ffi import Shape

    return Shape
