"""Digest what each call wrote, and find the first call in which two runs differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from driftgate.calls import Call, results
from driftgate.digest import digest
from driftgate.kernels.signatures import OUT, PAGES, SIGNATURES
from driftgate.tensors import is_tensor, view


@dataclass(frozen=True)
class Digested:
    """One call in the stream of a run."""

    name: str
    chunk: int
    layer: int | None
    inputs: str
    """Digest of all tensors before the call; empty unless asked for."""
    outputs: str


class Digests:
    """The stream of a run: one entry a call, some hundred bytes each, whatever the tensors weigh.

    With ``inputs``, what a call was given is digested too, but for the page pool.
    """

    def __init__(self, inputs: bool = False) -> None:
        self.inputs = inputs
        self.stream: list[Digested] = []
        self._given = ""

    def before(self, call: Call) -> None:
        if self.inputs and call.computes:
            skipped = _not_read(call)
            read = [i for i, arg in enumerate(call.args) if is_tensor(arg) and i not in skipped]
            self._given = _joined([view(call.args[i]) for i in read])

    def after(self, call: Call) -> None:
        if call.computes:
            self.stream.append(Digested(call.name, call.chunk, call.layer, self._given, _joined(results(call))))

    def take(self) -> list[Digested]:
        """The stream since the last take."""
        taken, self.stream = self.stream, []
        return taken


def first_divergence(left: list[Digested], right: list[Digested]) -> dict[str, Any] | None:
    """The first call in which two streams differ, and whether its inputs did; None if they are the same."""
    for number, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            same_call = a.name == b.name
            return {
                "kernel": a.name if same_call else f"{a.name} against {b.name}",
                "call": number,
                "chunk": a.chunk,
                "layer": a.layer,
                "inputs_equal": same_call and a.inputs == b.inputs,
                "outputs_equal": same_call and a.outputs == b.outputs,
            }
    if len(left) != len(right):
        return {"kernel": f"{len(left)} calls against {len(right)}", "call": min(len(left), len(right))}
    return None


def _not_read(call: Call) -> tuple[int, ...]:
    """Arguments that are no input: what is only written, and the page pool, which holds what other runs left."""
    signature = SIGNATURES.get(call.name)
    if signature is None:
        return call.written
    return tuple(i for i, argument in enumerate(signature) if argument.role == OUT or argument.name == PAGES)


def _joined(arrays: list[np.ndarray]) -> str:
    return "".join(digest(np.ascontiguousarray(array)) for array in arrays)
