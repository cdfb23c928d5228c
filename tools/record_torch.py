"""Records what PyTorch's own optimizers compute, for `equivalence_tests/suite/witness.py`.

    python -m tools.record_torch

PyTorch has to be installed: its version for CPUs. Record again only to add a case: a recorded
number that changes is a finding to explain.
"""

from pathlib import Path

import numpy as np

from equivalence_tests.sides.frameworks import import_torch
from equivalence_tests.suite.witness import (
    DTYPES,
    FILE,
    SCHEDULERS,
    case_settings,
    genuine,
    genuine_rates,
    pack,
)
from optax_bridge.correspondence import TORCH

_FILE = Path(__file__).resolve().parents[1] / "equivalence_tests" / "reference" / FILE


def main() -> None:
    """Records every case of every optimizer, in float32 and in bfloat16, and every scheduler."""
    torch = import_torch("record_torch")
    torch.set_num_threads(1)
    arrays = {
        f"{name}-{index}-{dtype}": pack(genuine(entry, case_settings(entry, index), dtype))
        for name, entry in TORCH.items()
        for index in range(len(entry.cases))
        for dtype in DTYPES
    }
    arrays |= {f"schedule-{i}": genuine_rates(*each) for i, each in enumerate(SCHEDULERS)}
    about = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    np.savez_compressed(_FILE, about=np.array(about), **arrays)  # pyright: ignore[reportArgumentType]
    print(f"{len(arrays)} trajectories of {about}: {_FILE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
