"""Records the trajectories of `equivalence_tests/reference/cases.py` from the genuine flax 0.5.3.

    python3.10 -m venv reference
    reference/bin/pip install -r equivalence_tests/reference/requirements.txt
    reference/bin/python tools/record_reference.py --out recorded
    python -m tools.pack_reference recorded

or `nox -s reference`. Only what `requirements.txt` pins is needed: nothing of the project is
imported but the recorder, two modules in the folder of the recordings, and `reference_inputs.py`
here. Recording again on the same kind of processor gives the same bytes. `README.md` there
describes the files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import types
import warnings
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "equivalence_tests"
# Modules by themselves: the packages need a newer Python.
sys.path[:0] = [str(PACKAGE / "reference"), str(PACKAGE / "recordings")]
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
    from flax import optim, serialization, traverse_util  # pyright: ignore[reportAttributeAccessIssue]
    from recorder import Recorder  # pyright: ignore[reportMissingImports]
    from reference_inputs import (  # pyright: ignore[reportMissingImports]
        STREAMS,
        TREES,
        draw,
        learning_rates,
    )

# flax 0.5.3's serialization asks jax.xla for a class that jax 0.4.13 calls jax.Array.
jax.__dict__["xla"] = types.SimpleNamespace(DeviceArray=jax.Array)


def main() -> None:
    """Records every case into a folder of its own, or those of the files named with `--only`."""
    parser = argparse.ArgumentParser(description="Records the reference trajectories.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--only", default="", help="record only cases whose name contains this")
    arguments = parser.parse_args()
    _restart_if_argsort_is_not_stable()
    if flax_version != "0.5.3":
        raise SystemExit(
            f"record_reference.py needs flax 0.5.3, found {flax_version}: see README.md"
        )
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)

    every = (*CASES, *HALF_PRECISION, *CHECKPOINTS)
    unused = {*TREES, *STREAMS} - {name for case in every for name in (case.tree, case.stream)}
    if unused:
        raise SystemExit(f"record_reference.py: no case uses {', '.join(sorted(unused))}")
    chosen = [case for case in every if arguments.only in case.name]
    for number, case in enumerate(chosen, 1):
        _record(case, arguments.out / case.name)
        print(f"[{number}/{len(chosen)}] {case.name}", flush=True)


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


def _record(case: Case, path: Path) -> None:
    """Records a case from its start, or the steps after the checkpoint that is saved with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    initial, gradients = draw(case)
    rates, params, start = learning_rates(case), _nest(initial), 0
    inputs = [
        (_nest({leaf: stack[number] for leaf, stack in gradients.items()}), rates[number])
        for number in range(len(rates))
    ]
    if case in CHECKPOINTS:
        optimizers = list(replay.train(case, replay.create(optim, case, params), inputs))
        start = len(rates) - CHECKPOINT_STEPS
        saved = optimizers[start - 1]
        path.with_suffix(".msgpack").write_bytes(serialization.to_bytes(saved))
        params = replay.snapshot(saved)[0]
        steps = [replay.snapshot(optimizer) for optimizer in optimizers[start:]]
    else:
        steps = list(replay.trajectory(optim, case, params, inputs))
    recorder = Recorder(path, steps=len(steps))
    for (grads, of_step), (new_params, new_state) in zip(inputs[start:], steps, strict=True):
        recorder.step(
            params=params,
            grads=grads,
            new_params=new_params,
            new_state=new_state,
            learning_rate={str(group): rate for group, rate in enumerate(of_step)},
        )
        params = new_params
    (path / "case.json").write_text(json.dumps(dataclasses.asdict(case)))


def _nest(leaves: dict[str, np.ndarray]) -> replay.Tree:
    return traverse_util.unflatten_dict(leaves, sep="/")


if __name__ == "__main__":
    main()
