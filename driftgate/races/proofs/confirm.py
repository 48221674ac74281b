"""A witness of the solver, run: the launch that it describes has to show the conflict that it claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from driftgate.races import fast
from driftgate.races.evidence import Setup
from driftgate.races.kernel import Kernel
from driftgate.races.proofs.argument import Proof, witness_scalars

ROOM = 1 << 20
"""Elements of every array: a witness has small parameters, and says nothing of sizes."""


def confirm(kernel: Kernel, proof: Proof, setup: Setup) -> bool:
    """Whether the witness of ``proof`` conflicts when it runs. ``setup`` gives what the witness leaves open.

    The conflict has to be of the kind, the storage and the two statements that the solver named.
    """
    arrays = {}
    for name, array in setup.arrays.items():
        wide = np.zeros(max(ROOM, array.size), array.dtype)
        wide[: array.size] = array
        for index, value in proof.arrays.get(name, {}).items():
            wide[index] = value
        arrays[name] = wide
    launch = replace(setup, arrays=arrays, scalars={**setup.scalars, **witness_scalars(proof)})
    return any(
        (c.kind, c.storage, {c.first.site, c.second.site}) == (proof.kind, proof.storage, set(proof.sites or ()))
        for c in fast.run(kernel, launch).conflicts
    )
