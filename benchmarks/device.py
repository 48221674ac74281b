"""The gate's observations on a GPU machine that has no TVM compiler, judged where there is one.

    python -m benchmarks.device prepare FOLDER [MODEL...]   where the compiler is: library, weights and jobs
    python -m benchmarks.device run FOLDER      on the GPU: needs TVM's runtime, nvcc, NumPy, safetensors, blake3
    python -m benchmarks.device judge FOLDER    where HuggingFace is: the verdicts

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

PRESETS = ("gemma4-tiny", "gemma4-12b-tiny", "gemma4-26b-tiny", "gemma3-tiny", "gemma1-tiny")
DTYPE, RUNS, SEED = "float16", 300, 0
FORKED = "a+20 b=a a+20 b+20"
"""Goes past a window of 32 after a fork: the known issue fork-window."""


def prepare(folder: Path, presets: tuple[str, ...] = PRESETS) -> None:
    for name in presets:
        (folder / name).mkdir(parents=True, exist_ok=True)
        _prepare(folder / name, name)


def _prepare(folder: Path, preset: str) -> None:
    import shutil

    import numpy as np

    import models
    from driftgate import observe
    from driftgate.job import plan_to_json
    from driftgate.modes.poison import POISONS
    from driftgate.reach.script import MOST_SEQUENCES
    from driftgate.subject import ready
    from driftgate.target import resolve

    model = models.find(preset)
    spec = dataclasses.replace(resolve("cuda"), arch="sm_90")
    made = ready(model, spec, DTYPE, _arrays(model), (), None, folder, 300.0)
    library = shutil.copy(made.library, folder / "library.so")
    made = dataclasses.replace(made, library=Path(library))

    def write(name: str, task: dict[str, Any], sequences: int = 1) -> None:
        job = made.job(task, 1, sequences)
        local = dataclasses.replace(job, library="library.so", params=made.params.name, sys_path=[])
        local.write(folder / f"{name}.json")

    for name, plan in _plans(model).items():
        (folder / f"{name}-tensors").mkdir(exist_ok=True)
        asked = plan_to_json(plan)
        repeat = {"kind": "repeat", "first": 0, "runs": RUNS, "keep_going": True, "folder": f"{name}-tensors"}
        write(f"{name}-repeat", {**repeat, "plan": asked})
        write(f"{name}-sentinel", {"kind": "sentinel", "runs": 10, "plan": asked})
        write(f"{name}-logits", {"kind": "logits", "plans": [{"plan": asked, "file": f"{name}.npy"}]})
    edges, plans = _edges(model, spec)
    exact = model.reference(_arrays(model), _longest(model, edges), "float64")
    np.save(folder / "exact.npy", exact)
    write("edges", {"kind": "edges", "plans": [plan_to_json(p) for p in plans], "reference": "exact.npy"})
    for label, scripts in (("histories", _scripts(model)), ("forked", [_script(model, "forked", FORKED)])):
        entries = []
        for script in scripts:
            file = f"{label}-{script.name}.npz"
            logits = [model.reference(_arrays(model), ids, "float64") for ids in script.lists]
            np.savez(folder / file, **{f"list{i}": array for i, array in enumerate(logits)})
            entries.append({**observe.script_to_json(script), "reference": file})
        write(label, {"kind": "histories", "scripts": entries}, MOST_SEQUENCES)
    entries = [plan_to_json(_plans(model)["default"]), observe.script_to_json(_recycled(model))]
    write("poison", {"kind": "poison", "entries": entries, "poisons": list(POISONS)}, MOST_SEQUENCES)


def run(folder: Path) -> None:
    import os

    with contextlib.suppress(ImportError):
        import tvm_gpu_boot  # noqa: F401 - loads the runtime and its CUDA backend where there is no compiler
    import tvm

    import driftgate.target
    from driftgate import worker
    from driftgate.job import Job

    driftgate.target.open_device = lambda spec: tvm.cuda(0)
    for preset in sorted(path for path in folder.iterdir() if path.is_dir()):
        os.chdir(preset)
        for path in sorted(Path().glob("*.json")):
            job = Job.read(path)
            worker._channel = path.with_suffix(".jsonl").open("w")
            start = time.perf_counter()
            try:
                worker.tasks()[job.task["kind"]](job)
            except Exception as error:
                # One job that fails is a finding, and the others are run.
                worker.emit("error", message=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
            print(f"{preset.name} {path.stem}: {time.perf_counter() - start:.1f} s", flush=True)


def judge(folder: Path) -> None:
    for preset in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        for verdict, label in _judged(folder / preset, preset):
            print(f"{preset} {label:9} {verdict.check:10} {verdict.outcome.value:6} {verdict.message}", flush=True)


def _judged(folder: Path, preset: str):
    import models
    from driftgate.checks import boundary, history, poison, reference, repeat, sentinel
    from driftgate.checks.reference import noise_floor
    from driftgate.observe import Positions, Repeats, Run, Watched
    from driftgate.reach.observations import Compared, Poisoned
    from driftgate.target import resolve

    model = models.find(preset)
    arrays = _arrays(model)

    def said(name: str, event: str) -> list[dict[str, Any]]:
        messages = [json.loads(line) for line in (folder / f"{name}.jsonl").open()]
        for message in messages:
            if message["event"] == "error":
                print(f"{preset} {name}: {message['message']}")
        return [{k: v for k, v in m.items() if k != "event"} for m in messages if m["event"] == event]

    def floor(lists: Any) -> float:
        pairs = [[model.reference(arrays, ids, dtype) for dtype in ("float64", DTYPE)] for ids in lists]
        return max(noise_floor(*pair) for pair in pairs)

    for name, plan in _plans(model).items():
        runs = [
            Run(m["run"], 0, tuple((h, x) for h, x in m["digests"]), m["merge_calls"], m["rows_merged"])
            for m in said(f"{name}-repeat", "run")
        ]
        yield repeat.judge(Repeats(RUNS, 1, tuple(runs), folder / f"{name}-tensors", 0), plan, model.shape), name
        (logits,) = said(f"{name}-logits", "logits")
        observed = Positions(plan, folder / f"{name}.npy", logits["merge_calls"], logits["rows_merged"], 0)
        exact, same = (model.reference(arrays, plan.ids, dtype) for dtype in ("float64", DTYPE))
        yield reference.judge(observed, exact, same, plan.merge_calls(model.shape.attention_layers)), name
        watched = said(f"{name}-sentinel", "watched")
        merges = sum(m["merge_calls"] for m in watched), sum(m["rows_merged"] for m in watched)
        (done,) = said(f"{name}-sentinel", "done")
        yield sentinel.judge(Watched(len(watched), *merges, fault_hits=0, **done["watch"])), name
    edges, plans = _edges(model, dataclasses.replace(resolve("cuda"), arch="sm_90"))
    compared = [Compared(**m) for m in said("edges", "compared")]
    commands = {plan.name: "" for plan in plans}
    yield boundary.judge(compared, floor([_longest(model, edges)]), edges, [], commands), "edges"
    for label, scripts in (("histories", _scripts(model)), ("forked", [_script(model, "forked", FORKED)])):
        compared = [Compared(**m) for m in said(label, "compared")]
        width = floor([ids for script in scripts for ids in script.lists])
        yield history.judge(compared, scripts, width, {script.name: "" for script in scripts}), label
    yield poison.judge([Poisoned(**m) for m in said("poison", "poisoned")]), "poison"


def _arrays(model: Any) -> Any:
    from driftgate.subject import rounded

    return rounded(model.arrays(SEED), DTYPE)


def _plans(model: Any) -> dict[str, Any]:
    from driftgate.plan import Plan

    return {name: Plan(name, model.prompt(p.tokens, SEED), p.chunks, p.ways) for name, p in model.plans.items()}


def _edges(model: Any, spec: Any) -> tuple[dict[str, int], list[Any]]:
    from driftgate.checks import boundary
    from driftgate.reach.edges import edges

    chunk = model.plans["default"].chunks[0]
    found = edges(model.shape, spec, DTYPE, chunk)
    return found, boundary.plans(found, _longest(model, found), chunk, model.shape.window)


def _longest(model: Any, edges: dict[str, int]) -> tuple[int, ...]:
    from driftgate.checks import boundary

    return model.prompt(boundary.longest(edges, model.shape.capacity), SEED)


def _script(model: Any, name: str, text: str) -> Any:
    from driftgate.reach.script import of_model

    return of_model(model, name, text, SEED)


def _scripts(model: Any) -> list[Any]:
    from driftgate.checks import history

    texts = history.texts(model.plans["default"].chunks[0], model.shape.window)
    every = [_script(model, name, text) for name, text in texts.items()]
    return [script for script in every if not history.left_out(script, model.shape.window)]


def _recycled(model: Any) -> Any:
    from driftgate.checks import poison

    return _script(model, "recycled", poison.RECYCLED)


if __name__ == "__main__":
    action, where, *rest = sys.argv[1:]
    if action == "prepare":
        prepare(Path(where).resolve(), tuple(rest) or PRESETS)
    else:
        {"run": run, "judge": judge}[action](Path(where).resolve())
