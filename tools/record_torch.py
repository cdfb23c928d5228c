"""Records what PyTorch's own optimizers compute, for `equivalence_tests/suite/witness.py`.

    python -m tools.record_torch

PyTorch has to be installed: its version for CPUs. Record again only to add a case: a recorded
number that changes is a finding to explain.
"""

from pathlib import Path

from equivalence_tests.recordings.format import pack
from equivalence_tests.sides.frameworks import import_torch
from equivalence_tests.suite.witness import (
    DTYPES,
    FILE,
    SCHEDULERS,
    case_name,
    case_settings,
    genuine,
    genuine_schedule,
)
from optax_bridge.correspondence import TORCH

_FILE = Path(__file__).resolve().parents[1] / "equivalence_tests" / "reference" / FILE


def main() -> None:
    """Records every case of every optimizer, in float32 and in bfloat16, and every scheduler."""
    torch = import_torch("record_torch")
    torch.set_num_threads(1)
    runs = {
        case_name(entry, index, dtype): genuine(entry, case_settings(entry, index), dtype)
        for entry in TORCH.values()
        for index in range(len(entry.cases))
        for dtype in DTYPES
    }
    runs |= {f"schedule-{i}": genuine_schedule(*each) for i, each in enumerate(SCHEDULERS)}
    pack(runs, _FILE)
    about = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    print(f"{len(runs)} recordings of {about}: {_FILE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
