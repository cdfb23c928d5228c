"""Every file of the newest checkpoint deleted, emptied, cut, and with one bit flipped."""

import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.spmd.checkpointer import (
    Checkpointer,
    DamagedCheckpointError,
    MissingPositionError,
)
from optax_bridge.spmd.checkpointer.handlers import damage_of
from optax_bridge.spmd.input import ArrayBatches

NEWEST = "step_00000006"
# Orbax writes the first after the checksums; the others, of newer releases, only tell its moment.
NOT_NEEDED = {"_CHECKPOINT_METADATA", "commit_success.txt", "checksums/commit_success.txt"}


def delete(file):
    file.unlink()


def empty(file):
    file.write_bytes(b"")


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def batches():
    return ArrayBatches({"x": np.arange(8)}, global_batch_size=2)


def state(value):
    return {"w": jnp.full((4, 8), float(value)), "input_iter": batches()}


def checkpointer(folder, **kwargs):
    cfg = Checkpointer.default_config().set(name="checkpointer", dir=str(folder), **kwargs)
    return cfg.instantiate(parent=None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with checkpointer(folder, keep_last_n=3) as saver:
        for step in (2, 4, 6):
            saver.save(step=step, state=state(step))
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def restored(folder, **kwargs):
    """The step and the first number of the newest state."""
    step, new = checkpointer(folder, **kwargs).restore(state=state(0))
    return step, float(new["w"][0, 0])


@pytest.mark.parametrize("damage", [delete, empty, cut, flip_a_bit])
def test_no_damage_is_passed_over(saved, tmp_path, damage):
    newest = saved / NEWEST
    names = {file.relative_to(newest).as_posix() for file in newest.rglob("*") if file.is_file()}
    assert names > {"checksums/crc32.txt", "index/index.json", "state/_METADATA"}
    for name in names:
        folder = Path(shutil.copytree(saved, tmp_path / name.replace("/", "_")))
        damage(folder / NEWEST / name)
        if name in NOT_NEEDED:
            assert restored(folder) == (6, 6.0), name
            continue
        with pytest.raises(DamagedCheckpointError) as error:
            restored(folder)
        text = str(error.value)
        assert text.startswith(f"{folder / NEWEST}: the checkpoint is damaged"), name
        assert name in text and "steps 2, 4. To go on from step 4: --resume-from 4" in text
        assert (folder / NEWEST).is_dir()


def test_a_run_falls_back_if_it_is_told_to(copy, caplog):
    flip_a_bit(copy / NEWEST / "state" / "manifest.ocdbt")
    empty(copy / "step_00000004" / "index" / "index.json")
    assert restored(copy, fall_back=True) == (2, 2.0)
    assert "manifest.ocdbt: other bytes" in caplog.text and "goes on from step 2" in caplog.text
    names = {path.name for path in copy.iterdir()}
    assert names == {"step_00000002", "aside_step_00000004", f"aside_{NEWEST}"}
    with checkpointer(copy) as saver:  # what is set aside is in nobody's way
        saver.save(step=6, state=state(60))
    assert restored(copy) == (6, 60.0)
    flip_a_bit(copy / NEWEST / "state" / "manifest.ocdbt")
    with pytest.raises(DamagedCheckpointError, match="No other checkpoint in the folder is whole"):
        restored(copy, fall_back=True)


def test_a_step_that_is_asked_for_is_not_replaced_by_another(copy):
    delete(copy / "step_00000004" / "index" / "index.json")
    target = {"w": state(0)["w"]}
    assert checkpointer(copy).restore(state=target)[0] == 6
    with pytest.raises(DamagedCheckpointError, match=r"steps 2, 6\. To go on from step 6"):
        checkpointer(copy, fall_back=True).restore(step=4, state=target)
    checkpointer(copy).set_aside_after(2)
    assert restored(copy) == (2, 2.0)


def test_a_missing_position_is_another_error_than_a_wrong_one(tmp_path, copy):
    with checkpointer(tmp_path / "without") as saver:
        saver.save(step=1, state={"w": state(1)["w"]})
    with pytest.raises(MissingPositionError, match="no position of input_iter"):
        restored(tmp_path / "without")
    with pytest.raises(ValueError, match="checkpoint tree") as error:
        checkpointer(tmp_path / "without").restore(state={**state(0), "more": jnp.ones(2)})
    assert not isinstance(error.value, MissingPositionError)

    class Counter(ArrayBatches):
        def get_state(self):
            return {"count": 3}

    with checkpointer(tmp_path / "another") as saver:
        other = Counter({"x": np.arange(8)}, global_batch_size=2)
        saver.save(step=1, state={**state(1), "input_iter": other})
    with pytest.raises(ValueError, match=r"no position that ArrayBatches.*'count': 3.*begins anew"):
        restored(tmp_path / "another")


@pytest.mark.parametrize("text", ["", "x", "00000000\n", "zz zz zz\n00000000\n"])
def test_checksums_that_are_none(copy, text):
    (copy / NEWEST / "checksums" / "crc32.txt").write_text(text)
    [problem] = damage_of(copy / NEWEST)
    assert problem.startswith("checksums/crc32.txt: damaged")
