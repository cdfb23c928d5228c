"""Data-parallel training in several processes; `--help` says how to start them.

Each process holds a part of the devices; together they do what one process with all of them does.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from equivalence_tests.output_files import write_bytes_with
from equivalence_tests.sides.trajectory import driven, trajectory
from equivalence_tests.suite.matrix import axes, sides
from equivalence_tests.suite.matrix.cases import MatrixCase
from optax_bridge.metadata.trees import PyTree


def run(case: MatrixCase, stream: str = "normal") -> PyTree:
    """A case's right side on the gradients' mean over all devices of all processes.

    Returns:
      Parameters and state after every step, of shape (steps, ...), on every process.
    """
    params = axes.parameters(case.tree, case.dtype)
    made = driven(sides.right(case), "data-parallel", jax.devices())
    inputs = (axes.gradients(params, stream), axes.rates(sides.peak(case)))
    return trajectory(made, params, inputs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Joins the other processes, runs the cases, and lets the first one write the trajectories."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinator", help="host:port of the first process; none for one alone")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="an .npz file")
    parser.add_argument("optimizers", nargs="+")
    given = parser.parse_args(arguments)
    if given.coordinator:
        jax.distributed.initialize(given.coordinator, given.processes, given.process)
    arrays = {"devices": np.asarray(jax.device_count())}
    for name in given.optimizers:
        seen = run(MatrixCase(name, drive="data-parallel"))
        for path, leaf in jax.tree_util.tree_leaves_with_path(seen):
            arrays[name + jax.tree_util.keystr(path)] = leaf
    if given.process == 0:
        write_bytes_with(given.out, lambda stream: np.savez(stream, allow_pickle=False, **arrays))


if __name__ == "__main__":
    main()
