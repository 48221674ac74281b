"""The gate's observations on a GPU machine that has no TVM compiler, judged where there is one.

    python -m benchmarks.device prepare FOLDER     where the compiler is: library, weights and jobs
    python -m benchmarks.device run FOLDER         on the GPU: needs TVM's runtime, nvcc, NumPy, safetensors, blake3
    python -m benchmarks.device judge FOLDER       where HuggingFace is: the verdicts

The known-answer probe needs the compiler and is left out: that the device computes at all, check reference says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

PRESET, DTYPE, RUNS = "gemma4-tiny", "float16", 300


def prepare(folder: Path) -> None:
    import shutil

    import models
    from driftgate.job import plan_to_json
    from driftgate.plan import Plan
    from driftgate.subject import ready, rounded
    from driftgate.target import resolve

    model = models.find(PRESET)
    spec = dataclasses.replace(resolve("cuda"), arch="sm_90")
    made = ready(model, spec, DTYPE, rounded(model.arrays(0), DTYPE), (), None, folder, 300.0)
    library = shutil.copy(made.library, folder / "library.so")
    made = dataclasses.replace(made, library=Path(library))
    plans = {name: Plan(name, model.prompt(p.tokens, 0), p.chunks) for name, p in model.plans.items()}
    for name, plan in plans.items():
        (folder / f"{name}-tensors").mkdir(exist_ok=True)
        tasks: dict[str, Any] = {
            "repeat": {"kind": "repeat", "first": 0, "runs": RUNS, "keep_going": True, "folder": f"{name}-tensors"},
            "sentinel": {"kind": "sentinel", "runs": 10},
            "logits": {"kind": "logits", "plans": [{"plan": plan_to_json(plan), "file": f"{name}.npy"}]},
        }
        for kind, task in tasks.items():
            job = made.job({**task, "plan": plan_to_json(plan)}, threads=1)
            local = dataclasses.replace(job, library="library.so", params=made.params.name, sys_path=[])
            local.write(folder / f"{name}-{kind}.json")


def run(folder: Path) -> None:
    import os

    os.chdir(folder)
    with contextlib.suppress(ImportError):
        import tvm_gpu_boot  # noqa: F401 - loads the runtime and its CUDA backend where there is no compiler
    import tvm

    import driftgate.target
    from driftgate import worker
    from driftgate.job import Job

    driftgate.target.open_device = lambda spec: tvm.cuda(0)
    for path in sorted(Path().glob("*-*.json")):
        worker._channel = path.with_suffix(".jsonl").open("w")
        start = time.perf_counter()
        worker.TASKS[Job.read(path).task["kind"]](Job.read(path))
        print(f"{path.stem}: {time.perf_counter() - start:.1f} s", flush=True)


def judge(folder: Path) -> None:
    import models
    from driftgate.checks import reference, repeat, sentinel
    from driftgate.job import plan_from_json
    from driftgate.observe import Positions, Repeats, Run, Watched
    from driftgate.subject import rounded

    model = models.find(PRESET)
    arrays = rounded(model.arrays(0), DTYPE)
    for name in model.plans:
        plan = plan_from_json(json.loads((folder / f"{name}-repeat.json").read_text())["task"]["plan"])
        said = {
            k: [json.loads(x) for x in (folder / f"{name}-{k}.jsonl").open()] for k in ("repeat", "sentinel", "logits")
        }
        runs = [
            Run(m["run"], 0, tuple((h, x) for h, x in m["digests"]), m["merge_calls"], m["rows_merged"])
            for m in said["repeat"]
            if m["event"] == "run"
        ]
        watched = [m for m in said["sentinel"] if m["event"] == "watched"]
        seen = Watched(
            runs=len(watched),
            merge_calls=sum(m["merge_calls"] for m in watched),
            rows_merged=sum(m["rows_merged"] for m in watched),
            fault_hits=0,
            **said["sentinel"][-1]["watch"],
        )
        logits = said["logits"][0]
        observed = Positions(plan, folder / f"{name}.npy", logits["merge_calls"], logits["rows_merged"], 0)
        exact, same = (model.reference(arrays, plan.ids, dtype) for dtype in ("float64", DTYPE))
        merges = plan.merge_calls(model.shape.attention_layers)
        for verdict in (
            repeat.judge(Repeats(RUNS, 1, tuple(runs), folder / f"{name}-tensors", 0), plan, model.shape),
            reference.judge(observed, exact, same, merges),
            sentinel.judge(seen),
        ):
            print(f"plan {name}: {verdict.check:10} {verdict.outcome.value:6} {verdict.message}")


if __name__ == "__main__":
    action, where = sys.argv[1:]
    {"prepare": prepare, "run": run, "judge": judge}[action](Path(where).resolve())
