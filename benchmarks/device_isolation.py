"""Isolation of TVM's shipped merge on a GPU that hides its race, made visible by a delay at the kernel's entry.

    python -m benchmarks.device_isolation prepare FOLDER    where TVM's compiler and HuggingFace are
    python -m benchmarks.device_isolation run FOLDER        on the GPU: TVM's runtime, nvcc, NumPy, safetensors, blake3
    python -m benchmarks.device_isolation judge FOLDER      where SciPy is: the verdicts

The delay is drawn per warp and per launch and inserted in the CUDA source as the library is loaded (`delay_hook`): the
library itself is TVM's own. The known-answer probe needs the compiler and is left out.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import sys
import time
from pathlib import Path
from typing import Any

PRESET, DTYPE, TOKENS, CHUNK = "gemma4-tiny", "float16", 256, 64
EXPERIMENTS = {
    # Name: clocks of delay at most, prefills of the symptom, --sync.
    "delay-6000": (6000, 300, "none"),
    "delay-900": (900, 400, "none"),
    "undelayed": (0, 300, "none"),
    "delay-6000-sync": (6000, 300, "kernel"),
}
SWAP_RUNS = 300
BOOT = """
import driftgate.target
import tvm_gpu_boot
import tvm
driftgate.target.open_device = lambda spec: tvm.cuda(0)
from benchmarks import delay_hook
delay_hook.install()
"""
"""What each fresh process does first (Python imports ``sitecustomize``)."""


def settings(experiment: str) -> Any:
    from driftgate.options import resolve

    _, runs, sync = EXPERIMENTS[experiment]
    flags = {"target": "cuda", "dtype": DTYPE, "runs": str(runs), "blocks": "2", "sync": sync}
    return resolve(flags, {}, {}, lambda model: {})


def spec() -> Any:
    from driftgate.target import resolve

    return dataclasses.replace(resolve("cuda"), arch="sm_90")


def plan() -> Any:
    import models
    from driftgate.plan import Plan, split

    return Plan("device", models.find(PRESET).prompt(TOKENS, 0), split(TOKENS, CHUNK))


def prepare(folder: Path) -> None:
    import numpy as np

    import models
    from driftgate.kernels.replacements import SINGLE_WRITER, description
    from driftgate.subject import ready, rounded

    model = models.find(PRESET)
    arrays = rounded(model.arrays(0), DTYPE)
    made = ready(model, spec(), DTYPE, arrays, (), None, folder, 300.0)
    shutil.copy(made.library, folder / "library.so")
    shutil.copy(description("merge", SINGLE_WRITER, model.shape, spec(), DTYPE)["library"], folder / "single_writer.so")
    exact, same = (model.reference(arrays, plan().ids, dtype) for dtype in ("float64", DTYPE))
    np.savez(folder / "references.npz", exact=exact, same=same)
    (folder / "spec.json").write_text(json.dumps(dataclasses.asdict(spec())))
    (folder / "sitecustomize.py").write_text(BOOT)


def gate(folder: Path, experiment: str) -> Any:
    """A gate whose parts were prepared elsewhere."""
    import numpy as np

    import models
    from driftgate.gate import Gate
    from driftgate.report.result import ResultFile
    from driftgate.subject import Subject
    from driftgate.target import TargetSpec

    model, held = models.find(PRESET), np.load(folder / "references.npz")
    chosen = settings(experiment)
    result = ResultFile(folder, {}, ("isolate",))
    target = TargetSpec(**json.loads((folder / "spec.json").read_text()))
    made = Gate(chosen, model, target, DTYPE, plan(), (), None, result)
    made.stage = lambda name: print(f"  {name}", flush=True)
    made.__dict__["references"] = held["exact"], held["same"]
    made.__dict__["_made"] = Subject(
        model=model,
        target=made.target,
        dtype=DTYPE,
        library=folder / "library.so",
        params=folder / f"{model.name}.safetensors",
        capacity=model.shape.capacity,
        swaps={},
        fault=None,
        work=folder / "work",
        timeout=300.0,
    )
    return made


def run(folder: Path) -> None:
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    from benchmarks import delay_hook
    from driftgate.isolation import flow
    from driftgate.isolation.symptom import with_swaps
    from driftgate.kernels.single_writer import FUNCTION

    writer = {"how": "single-writer", "library": str(folder / "single_writer.so"), "function": FUNCTION}
    for experiment, (clocks, _, _) in EXPERIMENTS.items():
        os.environ[delay_hook.VARIABLE] = str(clocks)
        print(experiment, flush=True)
        began = time.perf_counter()
        made = gate(folder, experiment)
        found = flow.isolate(made)
        swapped = []
        if found.symptom.kind == "unstable" and made.settings.sync == "none":
            # The named figures: 300 prefills each way, whatever the confirmation took.
            others = {name: {"how": "numpy"} for name in found.swept.called if name in found.swept.kernels}
            others.pop("merge", None)
            for swaps in ({}, {"merge": {"how": "numpy"}}, {"merge": writer}, others):
                # A symptom that stays is seen at once; one that is gone takes all the prefills.
                stays = swaps is others
                swapped.append(with_swaps(made, made.subject, swaps, found.symptom, SWAP_RUNS, keep_going=not stays))
        (folder / f"{experiment}.pkl").write_bytes(pickle.dumps((found, swapped, time.perf_counter() - began)))


def judge(folder: Path) -> None:
    from driftgate.checks import isolate
    from driftgate.stats import upper_bound

    for experiment, (clocks, _, sync) in EXPERIMENTS.items():
        found, swapped, seconds = pickle.loads((folder / f"{experiment}.pkl").read_bytes())
        verdict = isolate.judge(found)
        print(f"{experiment}: merge delayed by 0 to {clocks} clocks a warp, --sync {sync}; {seconds:.0f} s")
        print(f"  {verdict.outcome.value}: {verdict.message}")
        for row in (verdict.rows or [])[:4]:
            print(
                f"  {row['kernel'][:28]:28} {row['calls']:5} calls, {row['disagreed']} of {row['replays']} replays "
                f"disagreed, {row['off']} of {row['compared']} calls off its reference"
            )
        for entry in swapped:
            rate = entry.rate
            bound = upper_bound(rate.failures, rate.runs, 0.95)
            print(
                f"  {' '.join(entry.replaced)} replaced ({entry.how}): {rate.failures} of {rate.runs} prefills differ"
                f" (below {bound:.2%} at 95%), off the reference by {entry.max_abs}"
            )
        for label in ("sync", "first_divergence"):
            if value := verdict.evidence.get(label):
                print(f"  {label}: {value}")


if __name__ == "__main__":
    action, where = sys.argv[1:]
    {"prepare": prepare, "run": run, "judge": judge}[action](Path(where).resolve())
