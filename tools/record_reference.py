"""Records the trajectories of `equivalence_tests/reference/cases.py` from the genuine flax 0.5.3.

    python3.10 -m venv reference
    reference/bin/pip install -r equivalence_tests/reference/requirements.txt
    reference/bin/python tools/record_reference.py

or `nox -s reference`. Only what `requirements.txt` pins is needed: nothing of the project is
imported but two modules in the folder of the recordings, and `reference_inputs.py` here. Recording
again on the same kind of processor gives the same bytes. `README.md` there describes the files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
import types
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parents[1] / "equivalence_tests" / "reference"
sys.path.insert(0, str(REFERENCE))  # its modules by themselves: the packages need a newer Python
os.environ["JAX_PLATFORMS"] = "cpu"

with warnings.catch_warnings():  # undoes the filter, too, with which flax.optim insists on warning
    warnings.simplefilter("ignore")
    import jax
    import numpy as np
    import replay  # pyright: ignore[reportMissingImports]
    from cases import (  # pyright: ignore[reportMissingImports]
        CASES,
        CHECKPOINT_STEPS,
        CHECKPOINTS,
        HALF_PRECISION,
        Case,
    )
    from flax import __version__ as flax_version
    from flax import optim, serialization  # pyright: ignore[reportAttributeAccessIssue]
    from reference_inputs import (  # pyright: ignore[reportMissingImports]
        STREAMS,
        TREES,
        draw,
        learning_rates,
    )

# flax 0.5.3's serialization asks jax.xla for a class that jax 0.4.13 calls jax.Array.
jax.__dict__["xla"] = types.SimpleNamespace(DeviceArray=jax.Array)

FORMAT = 1


def main() -> None:
    """Records every file, or those named with `--only`."""
    parser = argparse.ArgumentParser(description="Records the reference trajectories.")
    parser.add_argument("--out", type=Path, default=REFERENCE, help="the folder to write to")
    parser.add_argument("--only", default="", help="record only files whose name contains this")
    arguments = parser.parse_args()
    _restart_if_argsort_is_not_stable()
    if flax_version != "0.5.3":
        raise SystemExit(
            f"record_reference.py needs flax 0.5.3, found {flax_version}: see README.md"
        )
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)

    files: dict[str, list[Case]] = {}
    for case in (*CASES, *HALF_PRECISION):
        files.setdefault(case.name.split("/")[0], []).append(case)
    for case in CHECKPOINTS:
        files[case.name] = [case]
    every = [case for cases in files.values() for case in cases]
    unused = {*TREES, *STREAMS} - {name for case in every for name in (case.tree, case.stream)}
    if unused:
        raise SystemExit(f"record_reference.py: no case uses {', '.join(sorted(unused))}")
    chosen = {name: cases for name, cases in files.items() if arguments.only in name}
    for number, (name, cases) in enumerate(chosen.items(), 1):
        started = time.perf_counter()
        path = arguments.out / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, _record_checkpoint(cases[0], path) if "/" in name else _record(cases))
        kilobytes = path.stat().st_size / 1024
        seconds = time.perf_counter() - started
        print(
            f"[{number}/{len(chosen)}] {path.name}: {len(cases)} recordings, "
            f"{kilobytes:.0f} kB, {seconds:.1f} s",
            flush=True,
        )


def _restart_if_argsort_is_not_stable() -> None:
    """Starts this process again without NumPy's AVX-512 kernels where they sort unstably."""
    if np.argsort((3, 3, 2, 2)).tolist() == [2, 3, 0, 1]:
        return
    if "NPY_DISABLE_CPU_FEATURES" in os.environ:
        raise SystemExit(
            "record_reference.py needs a NumPy whose argsort is stable on (3, 3, 2, 2)"
        )
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": "AVX512_SKX"}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def _record(cases: Iterable[Case]) -> dict[str, np.ndarray]:
    """Runs cases from their start and returns the members of their file."""
    members: dict[str, np.ndarray] = {}
    entries = []
    for case in cases:
        initial, gradients = draw(case)
        rates = learning_rates(case)
        steps = list(replay.trajectory(optim, case, initial, gradients, rates))
        entries.append(_entry(members, case, initial, gradients, rates, steps))
    return _with_index(members, entries)


def _record_checkpoint(case: Case, path: Path) -> dict[str, np.ndarray]:
    """Trains up to the checkpoint, saves it next to `path`, and records the steps that follow."""
    initial, gradients = draw(case)
    rates = learning_rates(case)
    optimizers = list(replay.train(case, replay.create(optim, case, initial), gradients, rates))
    saved = optimizers[-CHECKPOINT_STEPS - 1]
    _move_into_place(
        path.with_suffix(".msgpack"), lambda file: file.write(serialization.to_bytes(saved))
    )
    members: dict[str, np.ndarray] = {}
    following = {path: stack[-CHECKPOINT_STEPS:] for path, stack in gradients.items()}
    steps = [replay.snapshot(optimizer) for optimizer in optimizers[-CHECKPOINT_STEPS:]]
    start = replay.snapshot(saved)[0]
    entry = _entry(members, case, start, following, rates[-CHECKPOINT_STEPS:], steps)
    return _with_index(members, [entry])


def _entry(
    members: dict[str, np.ndarray],
    case: Case,
    initial: replay.Flat,
    gradients: replay.Flat,
    rates: np.ndarray,
    steps: list[tuple[replay.Flat, replay.Flat, dict[str, str]]],
) -> dict[str, Any]:
    """Adds the arrays of one recording to `members` and returns its part of the index."""
    inputs = f"{case.tree}-{case.stream}-{case.dtype}"
    setting = case.name.split("/")[1]
    per_step = [{path: stack[i] for path, stack in gradients.items()} for i in range(len(steps))]
    absent = steps[0][2]
    if any(step[2] != absent for step in steps):
        raise ValueError(f"{case.name}: the structure of the state changes between steps")
    members[f"{setting}/learning_rates"] = rates
    return {
        "case": dataclasses.asdict(case),
        "initial": _pack(members, f"inputs/{inputs}/initial", [initial]),
        "gradients": _pack(members, f"inputs/{inputs}/gradients", per_step),
        "params": _pack(members, f"{setting}/params", [step[0] for step in steps]),
        "state": _pack(members, f"{setting}/state", [step[1] for step in steps]),
        "absent": absent,
        "learning_rates": f"{setting}/learning_rates",
    }


def _pack(members: dict[str, np.ndarray], name: str, steps: list[replay.Flat]) -> dict[str, Any]:
    """Packs the leaves of every step into one array of bytes, shape (bytes of a step, steps)."""
    leaves = [[path, leaf.dtype.name, list(leaf.shape)] for path, leaf in steps[0].items()]
    for number, step in enumerate(steps):
        current = [[path, leaf.dtype.name, list(leaf.shape)] for path, leaf in step.items()]
        if current != leaves:
            raise ValueError(f"{name}: step {number} has leaves {current}, step 0 has {leaves}")
    rows = [b"".join(leaf.tobytes() for leaf in step.values()) for step in steps]
    packed = np.stack([np.frombuffer(row, np.uint8) for row in rows], axis=1)
    if name in members and not np.array_equal(members[name], packed):
        raise ValueError(f"{name}: two cases of one file share this name but not the arrays")
    members[name] = packed
    return {"member": name, "leaves": leaves}


def _with_index(members: Mapping[str, np.ndarray], entries: list[Any]) -> dict[str, np.ndarray]:
    recorded_with = {
        "flax": flax_version,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    index = {"format": FORMAT, "recorded_with": recorded_with, "recordings": entries}
    return {"index": np.array(json.dumps(index)), **members}


def _write(path: Path, members: Mapping[str, np.ndarray]) -> None:
    _move_into_place(path, lambda file: np.savez_compressed(file, **members))  # pyright: ignore


def _move_into_place(path: Path, write: Any) -> None:
    """Writes under a temporary name, so that an interrupted run leaves no half a file."""
    temporary = path.with_name(f".{path.name}.part")
    with open(temporary, "wb") as file:
        write(file)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
