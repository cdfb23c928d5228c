"""Records what PyTorch's own optimizers compute, for `equivalence_tests/suite/witness.py`.

    python -m tools.record_torch

PyTorch has to be installed: its version for CPUs. Record again only to add a case: a recorded
number that changes is a finding to explain.
"""

from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from equivalence_tests.recordings.format import Recording, Step, pack
from equivalence_tests.sides.frameworks import import_torch
from equivalence_tests.suite.witness import (
    DTYPES,
    FILE,
    SCHEDULERS,
    STEPS,
    case_name,
    case_settings,
    genuine,
    genuine_schedule,
)
from optax_bridge.correspondence import TORCH, Entry

_FILE = Path(__file__).resolve().parents[1] / "equivalence_tests" / "reference" / FILE

# PyTorch rounds the last elements of a tensor in half precision otherwise, those that fill no whole
# vector register: sizes are multiples of 32 there.
_SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "float32": {"kernel": (5, 7), "tall": (6, 3), "bias": (3,), "scalar": (), "tiny": (4,)},
    "bfloat16": {"kernel": (8, 8), "tall": (16, 4), "bias": (32,), "tiny": (32,)},
}
_TINY, _HUGE = np.float32(1e-30), np.float32(1e30)


def problem(entry: Entry, dtype: str) -> Recording:
    """Initial parameters, and gradients of every kind."""
    rng = np.random.default_rng(0)
    shapes = {
        name: shape
        for name, shape in _SHAPES[dtype].items()
        if len(shape) == 2 or "vectors" not in entry.excluded
    }
    params = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    grads = {n: rng.standard_normal((STEPS, *s)).astype(np.float32) for n, s in shapes.items()}
    for name, each in grads.items():
        each *= np.float32(1e-8) if name == "tiny" else 1  # of the size of eps
        flat = each.reshape(STEPS, -1)
        flat[3, ::3] *= 1 if name == "tiny" else _TINY  # below 1.2e-38 XLA has zero
        flat[5, 1::3] = 0
        flat[7, 2::3] *= _HUGE
        flat[10, 0], flat[11, -1] = np.inf, np.nan
    trees = [{"params": params, "grads": {n: g[i] for n, g in grads.items()}} for i in range(STEPS)]
    steps = [
        {
            tree: {(n,): jnp.asarray(x, dtype) for n, x in leaves.items()}
            for tree, leaves in step.items()
        }
        for step in trees
    ]
    return Recording("problem", {}, [Step(number, step) for number, step in enumerate(steps)])


def main() -> None:
    """Records every case of every optimizer, in float32 and in bfloat16, and every scheduler."""
    torch = import_torch("record_torch")
    torch.set_num_threads(1)
    runs = {
        case_name(entry, index, dtype): genuine(
            entry, case_settings(entry, index), problem(entry, dtype)
        )
        for entry in TORCH.values()
        for index in range(len(entry.cases))
        for dtype in DTYPES
    }
    runs |= {f"schedule-{i}": genuine_schedule(text) for i, text in enumerate(SCHEDULERS)}
    pack(runs, _FILE)
    about = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    print(f"{len(runs)} recordings of {about}: {_FILE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
