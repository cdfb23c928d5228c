# pyright: strict
"""A sharded run in two processes joined by jax.distributed, each with half of the devices."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from equivalence_tests.environment import xla_flags
from equivalence_tests.output_files import write_bytes_with
from equivalence_tests.suite.sharded import training
from equivalence_tests.suite.sharded.training import DEVICES, ShardedCase

_SPLIT = "sums split over devices"  # in the file with the trajectory, as JSON


def run(case: ShardedCase, timeout: float = 480.0) -> tuple[dict[str, np.ndarray], list[str]]:
    """As of `training.run`, from the first of as many processes as the case has."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trajectory.npz"
        about = (f"localhost:{_free_port()}", str(file), case.entry, case.layout, case.drive)
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, *about, str(case.processes), str(index)],
                env=_environment(DEVICES // case.processes),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for index in range(case.processes)
        ]
        try:
            outputs = [process.communicate(timeout=timeout)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        if not file.exists():  # a file that exists is complete
            raise RuntimeError(f"{case}: a process failed:\n" + "\n".join(outputs))
        with np.load(file, allow_pickle=False) as saved:
            seen = {name: saved[name] for name in saved.files if name != _SPLIT}
            return seen, json.loads(str(saved[_SPLIT]))


def main(
    coordinator: str, out: str, entry: str, layout: str, drive: str, processes: str, process: str
) -> None:
    """Joins the other processes and runs the case; the first one writes what it saw."""
    jax.distributed.initialize(coordinator, int(processes), int(process))
    seen, split = training.run(ShardedCase(entry, layout, drive, int(processes)))
    if process == "0":
        arrays = {**seen, _SPLIT: np.asarray(json.dumps(split))}
        write_bytes_with(Path(out), lambda file: np.savez(file, allow_pickle=False, **arrays))


def _environment(devices: int) -> dict[str, str]:
    """The caller's, with the CPU split in this many devices."""
    path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(devices),
        "PYTHONPATH": os.pathsep.join(path),
    }


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


if __name__ == "__main__":
    main(*sys.argv[1:])
