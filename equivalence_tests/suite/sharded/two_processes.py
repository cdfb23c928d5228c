# pyright: strict
"""A sharded run in two processes joined by jax.distributed, each with half of the devices."""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from equivalence_tests.environment import xla_flags
from equivalence_tests.output_files import write_bytes_with
from equivalence_tests.suite.sharded import training
from equivalence_tests.suite.sharded.layouts import DEVICES
from equivalence_tests.suite.sharded.training import ShardedCase

_SPLIT = "sums split over devices"  # beside the trajectory in the file, as JSON


def run(case: ShardedCase, timeout: float = 480.0) -> tuple[dict[str, np.ndarray], list[str]]:
    """As of `training.run`, from the first of as many processes as the case has.

    Raises:
      RuntimeError: a process failed; its output is in the message.
      subprocess.TimeoutExpired: they did not end in `timeout` seconds each.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trajectory.npz"
        command = [
            sys.executable, "-m", __name__, "--coordinator", f"localhost:{_free_port()}",
            "--out", str(file), "--case", case.entry, case.layout, case.drive,
        ]  # fmt: skip
        processes = [
            subprocess.Popen(
                [*command, "--processes", str(case.processes), "--process", str(index)],
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
        if not file.exists():  # it is whole if it is there, whatever happened at the end
            raise RuntimeError(f"{case}: a process failed:\n" + "\n".join(outputs))
        with np.load(file, allow_pickle=False) as saved:
            seen = {name: saved[name] for name in saved.files if name != _SPLIT}
            return seen, json.loads(str(saved[_SPLIT]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Joins the other processes and runs the case; the first one writes what it saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinator", required=True, help="host:port of the first process")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="an .npz file")
    parser.add_argument("--case", nargs=3, metavar=("OPTIMIZER", "LAYOUT", "DRIVE"), required=True)
    given = parser.parse_args(arguments)
    jax.distributed.initialize(given.coordinator, given.processes, given.process)
    case = ShardedCase(*given.case, processes=given.processes)
    seen, split = training.run(case)
    if given.process == 0:
        arrays = {**seen, _SPLIT: np.asarray(json.dumps(split))}
        write_bytes_with(given.out, lambda file: np.savez(file, allow_pickle=False, **arrays))


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
    main()
