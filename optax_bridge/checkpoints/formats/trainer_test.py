"""Steps of a trainer: the newest is read as a `TrainState`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optax_bridge.checkpoints import CheckpointError, read_checkpoint
from optax_bridge.checkpoints.formats.orbax import write_orbax
from optax_bridge.checkpoints.formats.trainer import INDEX
from optax_bridge.recorded_test import refused

WEIGHT, MOMENT = np.arange(6, dtype=np.float32).reshape(2, 3), -np.ones((2, 3), np.float32)


def saved(run: Path, step: int, within: tuple[str, ...] = ()) -> Path:
    """A step as a trainer writes it, of a model whose parameters are within others."""

    def nested(leaf: np.ndarray) -> Any:
        tree: Any = {"kernel": leaf}
        for name in reversed(within):
            tree = {name: tree}
        return tree

    folder = run / "checkpoints" / f"step_{step:08d}"
    optimizer = {"0": {"trace": nested(MOMENT)}, "1": {"count": np.int32(step)}}
    learner = {"optimizer": optimizer, "ema": nested(WEIGHT)}
    write_orbax(folder / "state", {"model": nested(WEIGHT), "learner": learner})
    (folder / INDEX).parent.mkdir()
    (folder / INDEX).write_text(json.dumps([["step", step], ["model", "kernel"]]))
    return folder


@pytest.mark.parametrize("within", [(), ("net", "params")], ids=str)
def test_the_newest_step_is_a_train_state(within: tuple[str, ...], tmp_path: Path) -> None:
    saved(tmp_path, 9, within)
    newest = saved(tmp_path, 10, within)
    for path in (tmp_path, newest.parent, newest):
        read = read_checkpoint(path)
        assert (read.path, read.format, read.tree["step"]) == (newest, "Trainer", 10)
    notes = "steps 9, 10; " + (f"parameters from model/{'/'.join(within)}; " if within else "")
    assert read.variant == notes + "next to it learner/ema"
    np.testing.assert_array_equal(read.tree["params"]["kernel"], WEIGHT)
    np.testing.assert_array_equal(read.tree["opt_state"]["0"]["trace"]["kernel"], MOMENT)
    assert int(np.asarray(read.tree["opt_state"]["1"]["count"])) == 10


@pytest.mark.parametrize(
    ("index", "found"), [('[["model", 7]]', "'model: 7'"), ('[["step", 6]]', "the .* of step 6.")]
)
def test_a_step_without_its_index_is_refused(index: str, found: str, tmp_path: Path) -> None:
    (saved(tmp_path, 7) / INDEX).write_text(index)
    with refused(CheckpointError, rf"index\.json: expected .* found {found}"):
        read_checkpoint(tmp_path)
