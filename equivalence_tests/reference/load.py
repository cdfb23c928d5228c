"""Reads the recordings into arrays by path."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from equivalence_tests.reference.cases import Case

FOLDER = Path(__file__).parent
_RECORD_AGAIN = "Record it again with `nox -s reference`, or restore it from version control."


class RecordingError(ValueError):
    """A recording is missing, or was made from another version of the case."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """One training run of the genuine flax.optim."""

    case: Case
    initial: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    learning_rates: np.ndarray
    params: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray]
    absent: Mapping[str, str]
    recorded_with: Mapping[str, str]
    checkpoint: Path | None = None


def recording(case: Case) -> Recording:
    """Reads the recording of one case."""
    is_checkpoint = case.name.startswith("checkpoints/")
    stem = case.name if is_checkpoint else case.name.split("/")[0]
    path = FOLDER / f"{stem}.npz"
    members, index = _read(path)
    entry = next((e for e in index["recordings"] if e["case"]["name"] == case.name), None)
    if entry is None:
        names = ", ".join(e["case"]["name"] for e in index["recordings"])
        raise RecordingError(
            f"{path}: expected a recording of {case.name!r}, found {names}. {_RECORD_AGAIN}"
        )
    # Through JSON, as the table itself has tuples where the file has lists.
    expected = json.loads(json.dumps(dataclasses.asdict(case)))
    changed = [key for key in expected if entry["case"].get(key) != expected[key]]
    if changed:
        recorded = {key: entry["case"].get(key) for key in changed}
        wanted = {key: expected[key] for key in changed}
        raise RecordingError(
            f"{path}: {case.name!r} was recorded with {recorded}, the case table says {wanted}. "
            f"{_RECORD_AGAIN}"
        )
    initial = _unpack(members, entry["initial"])
    return Recording(
        case=case,
        initial={leaf: stack[0] for leaf, stack in initial.items()},
        gradients=_unpack(members, entry["gradients"]),
        learning_rates=members[entry["learning_rates"]],
        params=_unpack(members, entry["params"]),
        state=_unpack(members, entry["state"]),
        absent=entry["absent"],
        recorded_with=index["recorded_with"],
        checkpoint=path.with_suffix(".msgpack") if is_checkpoint else None,
    )


@functools.cache
def _read(path: Path) -> tuple[Mapping[str, np.ndarray], Mapping[str, Any]]:
    """Reads all members of a file, and its index."""
    with np.load(path, allow_pickle=False) as file:
        members = {name: file[name] for name in file.files}
    return members, json.loads(str(members["index"]))


def _unpack(members: Mapping[str, np.ndarray], packed: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Takes a packed tree apart: one array of shape (steps, ...) a leaf, by path."""
    rows = np.ascontiguousarray(members[packed["member"]].T)
    leaves = [(leaf, jnp.dtype(dtype), shape) for leaf, dtype, shape in packed["leaves"]]
    sizes = [dtype.itemsize * int(np.prod(shape)) for _, dtype, shape in leaves]
    columns = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    return {
        leaf: np.frombuffer(column.tobytes(), dtype).reshape((len(rows), *shape))
        for (leaf, dtype, shape), column in zip(leaves, columns, strict=True)
    }
