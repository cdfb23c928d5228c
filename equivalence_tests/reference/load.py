"""Reads the recordings into arrays by path."""

import dataclasses
import functools
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from equivalence_tests.reference.cases import Case

FOLDER = Path(__file__).parent
_FORMAT = 1
_RECORD_AGAIN = "Record it again with `nox -s reference`, or restore it from version control."


class RecordingError(ValueError):
    """A recording is missing or cannot be read."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """One training run of the genuine flax.optim.

    Attributes:
        case: what was run: optimizer, settings, dtype, and how the step was called.
        initial: the parameters before the first step, by '/'-joined path.
        gradients: by path, stacked over the steps, shape (steps, ...).
        learning_rates: float32, shape (steps, groups); (steps, 0) where the constructor's was used.
        params: the parameters after each step, by path, shape (steps, ...).
        state: the arrays of the state's state dict after each step, by path, shape (steps, ...).
        absent: the paths of the state that hold no array: "none" for None, "empty" for an empty
            container.
        recorded_with: versions and machine of the recording environment.
        checkpoint: the msgpack file that the first step continues from, if not from `initial`.
    """

    case: Case
    initial: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    learning_rates: np.ndarray
    params: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray]
    absent: Mapping[str, str]
    recorded_with: Mapping[str, str]
    checkpoint: Path | None = None


def recording(case: Case, folder: Path = FOLDER) -> Recording:
    """Reads the recording of one case.

    Args:
        case: an entry of `CASES`, `HALF_PRECISION` or `CHECKPOINTS`.
        folder: where the files lie.

    Raises:
        RecordingError: the file or the recording in it is missing, damaged, or was made from
            another version of the case.
    """
    is_checkpoint = case.name.startswith("checkpoints/")
    stem = case.name if is_checkpoint else case.name.split("/")[0]
    path = folder / f"{stem}.npz"
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
    checkpoint = path.with_suffix(".msgpack") if is_checkpoint else None
    if checkpoint is not None and not checkpoint.is_file():
        raise RecordingError(f"{checkpoint}: expected a checkpoint, found no file. {_RECORD_AGAIN}")
    initial = _unpack(path, members, entry["initial"])
    return Recording(
        case=case,
        initial={leaf: stack[0] for leaf, stack in initial.items()},
        gradients=_unpack(path, members, entry["gradients"]),
        learning_rates=_member(path, members, entry["learning_rates"]),
        params=_unpack(path, members, entry["params"]),
        state=_unpack(path, members, entry["state"]),
        absent=entry["absent"],
        recorded_with=index["recorded_with"],
        checkpoint=checkpoint,
    )


@functools.cache
def _read(path: Path) -> tuple[Mapping[str, np.ndarray], Mapping[str, Any]]:
    """Reads all members of a file, and its index."""
    try:
        # Opened here, as np.load leaves a file open that it finds to be no zip archive.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            members = {name: file[name] for name in file.files}
        index = json.loads(str(members["index"]))
    except FileNotFoundError as error:
        raise RecordingError(f"{path}: expected a recording, found no file. {_RECORD_AGAIN}") from (
            error
        )
    except (KeyError, OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RecordingError(
            f"{path}: expected an npz file with a member 'index', found one that cannot be read "
            f"({error}). {_RECORD_AGAIN}"
        ) from error
    if index.get("format") != _FORMAT:
        raise RecordingError(
            f"{path}: expected format {_FORMAT}, found {index.get('format')}. {_RECORD_AGAIN}"
        )
    return members, index


def _member(path: Path, members: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in members:
        raise RecordingError(f"{path}: expected the member {name!r}, found none. {_RECORD_AGAIN}")
    return members[name]


def _unpack(
    path: Path, members: Mapping[str, np.ndarray], packed: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Takes a packed tree apart: one array of shape (steps, ...) a leaf, by path."""
    rows = np.ascontiguousarray(_member(path, members, packed["member"]).T)
    leaves = [(leaf, jnp.dtype(dtype), shape) for leaf, dtype, shape in packed["leaves"]]
    sizes = [dtype.itemsize * int(np.prod(shape)) for _, dtype, shape in leaves]
    if rows.shape[1] != sum(sizes):
        raise RecordingError(
            f"{path}: {packed['member']}: expected {sum(sizes)} bytes a step, "
            f"found {rows.shape[1]}. {_RECORD_AGAIN}"
        )
    columns = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    return {
        leaf: np.frombuffer(column.tobytes(), dtype).reshape((len(rows), *shape))
        for (leaf, dtype, shape), column in zip(leaves, columns, strict=True)
    }
