"""Reads the recordings of the genuine flax.optim into arrays by path."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from equivalence_tests.recordings.format import RecordingError, read_packed
from equivalence_tests.reference.cases import Case
from optax_bridge._text import listing

FOLDER = Path(__file__).parent
_RECORD_AGAIN = "Record it again with `nox -s reference`, or restore it from version control."
_read = functools.cache(read_packed)


@dataclasses.dataclass(frozen=True)
class Recording:
    """One training run of the genuine flax.optim; its leaves have a leading axis of steps."""

    case: Case
    initial: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    learning_rates: np.ndarray
    params: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray]
    absent: Mapping[str, str]
    machine: str
    checkpoint: Path | None = None


def recording(case: Case) -> Recording:
    """Reads the recording of one case."""
    is_checkpoint = case.name.startswith("checkpoints/")
    stem = case.name if is_checkpoint else case.name.split("/")[0]
    path = FOLDER / f"{stem}.npz"
    runs = _read(path)
    if case.name not in runs:
        raise RecordingError(
            f"{path}: expected a recording of {case.name!r}, found {listing(list(runs))}. "
            f"{_RECORD_AGAIN}"
        )
    run = runs[case.name]
    # Through JSON, as the table itself has tuples where the file has lists.
    expected, recorded = json.loads(json.dumps(dataclasses.asdict(case))), run.index["case"]
    if changed := [key for key in expected if recorded.get(key) != expected[key]]:
        raise RecordingError(
            f"{path}: {case.name!r} was recorded with { {k: recorded.get(k) for k in changed} }, "
            f"the case table says { {k: expected[k] for k in changed} }. {_RECORD_AGAIN}"
        )
    trees = {
        tree: {"/".join(map(str, leaf)): stack for leaf, stack in run.stacked(tree).items()}
        for tree in ("grads", "new_params", "new_state")
    }
    first = run.steps[0].trees
    return Recording(
        case=case,
        initial={"/".join(map(str, path)): leaf for path, leaf in first["params"].items()},
        gradients=trees["grads"],
        learning_rates=np.array([[*step.rates.values()] for step in run.steps], np.float32),
        params=trees["new_params"],
        state=trees["new_state"],
        absent={
            "/".join(map(str, path)): "none" if leaf is None else "empty"
            for path, leaf in first["new_state"].items()
            if not isinstance(leaf, np.ndarray)
        },
        machine=run.index["platform"].split()[-1],
        checkpoint=path.with_suffix(".msgpack") if is_checkpoint else None,
    )
