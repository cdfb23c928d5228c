"""Steps of a trainer: the newest is read as a `TrainState`; a damaged one names what is whole."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optax_bridge.checkpoints import CheckpointError, read_checkpoint
from optax_bridge.checkpoints.formats.orbax.write import write_orbax
from optax_bridge.checkpoints.formats.trainer import CHECKSUMS, INDEX, checksum_lines, damage_of

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
    for name in (INDEX, CHECKSUMS):
        (folder / name).parent.mkdir()
    (folder / INDEX).write_text(json.dumps([["step", step], ["model", "kernel"]]))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    (folder / CHECKSUMS).write_text(checksum_lines(folder, files))
    return folder


@pytest.mark.parametrize("within", [(), ("net", "params")], ids=str)
def test_the_newest_step_is_a_train_state(within: tuple[str, ...], tmp_path: Path) -> None:
    saved(tmp_path, 9, within)
    newest = saved(tmp_path, 10, within)
    for path in (tmp_path, newest.parent, newest):
        read = read_checkpoint(path)
        assert (read.path, read.format, read.tree["step"]) == (newest, "Trainer", 10)
    notes = "steps 9, 10; " + (f"parameters from model/{'/'.join(within)}; " if within else "")
    assert read.variant == notes + "beside it learner/ema"
    np.testing.assert_array_equal(read.tree["params"]["kernel"], WEIGHT)
    np.testing.assert_array_equal(read.tree["opt_state"]["0"]["trace"]["kernel"], MOMENT)
    assert read.tree["opt_state"]["1"]["count"] == 10


DAMAGE: dict[str, tuple[Any, str]] = {
    "bytes": (lambda f: f.write_bytes(f.read_bytes()[:-1] + b"x"), "other bytes than were written"),
    "cut": (lambda f: f.write_bytes(f.read_bytes()[:-1]), r"\d+ bytes expected, found \d+"),
    "gone": (lambda f: f.unlink(), "missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_step_names_its_file_and_those_that_are_whole(
    damage: str, tmp_path: Path
) -> None:
    saved(tmp_path, 7)
    change, problem = DAMAGE[damage]
    folder = saved(tmp_path, 10)
    for damaged in (saved(tmp_path, 8), folder):
        change(damaged / "state" / "_METADATA")
    problem = rf"state/_METADATA: {problem}.*Whole beside it: step_00000007\. Name"
    with pytest.raises(CheckpointError, match=problem):
        read_checkpoint(tmp_path)
    change(folder / CHECKSUMS)
    (problem,) = damage_of(folder)
    expected = "missing" if damage == "gone" else "damaged"
    assert problem == f"{CHECKSUMS}: {expected}, which has the checksums of all other files"


def test_a_step_in_the_folder_of_another_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, 7)
    renamed = folder.rename(folder.with_name("step_00000008"))
    with pytest.raises(CheckpointError, match=r"that of step 7; rename the folder back.*No other"):
        read_checkpoint(renamed)
