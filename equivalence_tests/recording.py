"""Trajectories in a file: recorded on one platform, compared on another."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from equivalence_tests.comparison import Comparison, compare
from equivalence_tests.files import write_bytes_with
from equivalence_tests.suite import SYNTHETIC, Result
from optax_bridge.correspondence import Verdict
from optax_bridge.entry import rounding

_INDEX = "index.json"
NOT_RUN = "recorded, but not run here"

# Another platform sums in another order and has other roots and powers, so rounding is what to
# expect; each entry's own bound is for one platform. In a closed loop every rounding returns in
# the next gradient and is amplified by the model.
OPEN_LOOP = rounding(256, "another platform's order of operations")
CLOSED_LOOP = rounding(2.0**17, "rounding that returns through the gradients: 1 % of the scale")


@dataclass(frozen=True)
class Recording:
    """What a file holds.

    Attributes:
      environment: of the machine that recorded.
      steps: of each run.
      runs: id -> path of the leaf -> array of shape (steps, ...).
    """

    environment: Mapping[str, Any]
    steps: int
    runs: Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Against:
    """One run here beside the recorded one.

    Attributes:
      id: of the result.
      comparison: None if one of the two does not have the run.
      verdict: likewise.
      note: why there is no comparison.
    """

    id: str
    comparison: Comparison | None
    verdict: Verdict | None
    note: str = ""


def save(file: Path, results: Sequence[Result], environment: Mapping[str, Any], steps: int) -> None:
    """Writes every result's trajectory. The file holds plain arrays: no pickle.

    Args:
      file: to write.
      results: those with a trajectory are written.
      environment: as plain data.
      steps: of each run.
    """
    arrays: list[np.ndarray] = []
    runs = {}
    for result in results:
        if result.trajectory is None:
            continue
        runs[result.id] = rows = []
        for path, leaf in _flat(result.trajectory).items():
            # Dtypes that NumPy's format does not know, bfloat16, are kept by their bits.
            raw = np.ascontiguousarray(leaf).view(np.dtype(f"u{leaf.dtype.itemsize}"))
            rows.append({"leaf": path, "dtype": str(leaf.dtype), "array": len(arrays)})
            arrays.append(raw)
    index = {"environment": environment, "steps": steps, "runs": runs}

    def write(stream: Any) -> None:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_INDEX, json.dumps(index))
            for number, array in enumerate(arrays):
                with archive.open(f"{number}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write_bytes_with(file, write)


def load(file: Path) -> Recording:
    """Reads what `save` wrote.

    Raises:
      ValueError: the file is no recording.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            index = json.loads(archive.read(_INDEX))
            runs = {
                name: {row["leaf"]: _array(archive, row) for row in rows}
                for name, rows in index["runs"].items()
            }
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(
            f"{file}: expected a file written by `optax-bridge check --record`, found "
            f"{type(error).__name__}: {error}"
        ) from None
    return Recording(index["environment"], index["steps"], runs)


def against(results: Sequence[Result], recording: Recording) -> list[Against]:
    """Compares the trajectories here with the recorded ones, one outcome for each of either."""
    outcomes = []
    for result in results:
        if result.trajectory is None:
            continue
        recorded = recording.runs.get(result.id)
        if recorded is None:
            outcomes.append(Against(result.id, None, None, "not in the recording"))
            continue
        try:
            found = compare(recorded, _flat(result.trajectory))
        except ValueError as error:
            outcomes.append(Against(result.id, None, None, str(error)))
            continue
        claim = OPEN_LOOP if result.check.problem == SYNTHETIC else CLOSED_LOOP
        outcomes.append(Against(result.id, found, found.verdict(claim)))
    here = {result.id for result in results}
    outcomes += [Against(name, None, None, NOT_RUN) for name in recording.runs if name not in here]
    return outcomes


def _flat(trajectory: Any) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path[:1], simple=True) + jax.tree_util.keystr(path[1:]): np.asarray(
            leaf
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(trajectory)
    }


def _array(archive: zipfile.ZipFile, row: Mapping[str, Any]) -> np.ndarray:
    with archive.open(f"{row['array']}.npy") as member:
        raw = np.lib.format.read_array(member, allow_pickle=False)
    return raw.view(jax.numpy.dtype(row["dtype"]))
