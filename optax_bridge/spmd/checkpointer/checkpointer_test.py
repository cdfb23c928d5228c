import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from jax.sharding import Mesh, PartitionSpec

from optax_bridge.checkpoints import CheckpointError, read_checkpoint
from optax_bridge.recorded_test import refused
from optax_bridge.spmd.checkpointer import (
    BestMetricPolicy,
    Checkpointer,
    CheckpointValidationType,
    DamagedCheckpointError,
    EvalMetric,
    MissingPositionError,
    check_state_structure,
    every_n_steps_and_last_policy,
    every_n_steps_policy,
    read_index,
    read_state_spec,
)
from optax_bridge.spmd.checkpointer.checkpointer import parse_step
from optax_bridge.spmd.checkpointer.checksums import damage_of
from optax_bridge.spmd.checkpointer.policies import KeepLastAndEvery, set_aside, settle
from optax_bridge.spmd.evaler import every_n_steps_policy as evaluates_every_n_steps
from optax_bridge.spmd.input import ArrayBatches
from optax_bridge.spmd.metrics import WeightedSummary
from optax_bridge.spmd.trees import TensorSpec


@pytest.fixture(autouse=True)
def mesh():
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    with jax.set_mesh(Mesh(devices, ("data", "model"))) as scope:
        yield scope


def checkpointer(folder, **kwargs):
    cfg = Checkpointer.default_config().set(name="checkpointer", dir=str(folder), **kwargs)
    return cfg.instantiate(parent=None)


def batches():
    return ArrayBatches({"x": np.arange(8)}, global_batch_size=2)


def state(value):
    return {"model": {"w": jnp.full((4, 8), float(value)), "n": jnp.asarray(int(value))}}


def test_what_is_saved_is_restored_where_it_is_wanted(tmp_path):
    iterator = batches()
    next(iterator)
    with checkpointer(tmp_path) as saver:
        saver.save(step=7, state={**state(2.0), "input_iter": iterator})
        next(iterator)  # what is saved is what was there
    index = [tuple(entry) for entry in read_index(tmp_path / "step_00000007")]
    assert index[0] == ("step", 7)
    assert ("model/w", {"dtype": "float32", "shape": "(4, 8)"}) in index
    specs = read_state_spec(tmp_path / "step_00000007")
    assert (specs["model"]["w"].shape, specs["model"]["w"].dtype) == ((4, 8), jnp.float32)
    target = {
        "model": {
            "w": TensorSpec((4, 8), jnp.float32, PartitionSpec("data", "model")),
            "n": TensorSpec((), jnp.int32),
        },
        "input_iter": batches(),
    }
    step, restored = checkpointer(tmp_path).restore(state=target)
    assert step == 7 and int(restored["model"]["n"]) == 2
    assert restored["model"]["w"].sharding.spec == PartitionSpec("data", "model")
    np.testing.assert_array_equal(restored["model"]["w"], np.full((4, 8), 2.0))
    assert next(restored["input_iter"])["x"].tolist() != next(batches())["x"].tolist()
    assert restored["input_iter"].get_state() == {"position": 2}
    del target["input_iter"]
    assert checkpointer(tmp_path).restore(state=target)[0] == 7


def test_a_run_that_keeps_fewer_than_there_are_keeps_some_at_a_distance():
    checkpoints = [ocp.path.step.Metadata(step=step, path=epath.Path()) for step in range(1, 9)]
    stays = KeepLastAndEvery(1, 3).should_preserve(checkpoints)
    assert [c.step for c, stay in zip(checkpoints, stays, strict=True) if stay] == [1, 4, 7, 8]


def test_retention_overwriting_and_what_is_not_complete(tmp_path):
    given = state(0.0)
    saver = checkpointer(tmp_path, keep_last_n=2, keep_every_n_steps=4)
    assert saver.restore(state=given) == (None, given)
    for step in (1, 2, 3, 5, 6, 7):
        saver.save(step=step, state=state(step))
        saver.wait_until_finished()
    saver.save(step=7, state=state(70.0))
    saver.stop()
    assert Checkpointer.checkpoint_steps(str(tmp_path)) == [1, 5, 6, 7]
    saver = checkpointer(tmp_path)
    assert saver.restore(state=given)[1]["model"]["w"][0, 0] == 70
    assert saver.restore(step=5, state=given)[1]["model"]["w"][0, 0] == 5
    with refused(ValueError, r"no complete checkpoint of step 3; there are \[1, 5"):
        saver.restore(step=3, state=given)
    half = tmp_path / "step_00000009.orbax-checkpoint-tmp-1700000000"
    shutil.copytree(tmp_path / "step_00000007", half)
    (tmp_path / "step_00000008").mkdir()
    shutil.copytree(tmp_path / "step_00000007", tmp_path / "step_00000009_copy")
    with checkpointer(tmp_path) as again:  # two at a time would both remove what is not whole
        assert again.restore(state=given)[0] == 7
    assert Checkpointer.latest_checkpoint_path(str(tmp_path)) == str(tmp_path / "step_00000007")
    assert Checkpointer.latest_checkpoint_step(str(tmp_path)) == 7
    with refused(ValueError, "within"):
        saver.save(step=10**8, state=given)
    with refused(ValueError, "no checkpoint of a trainer"):
        read_index(tmp_path / "step_00000008")
    for name in ("step_7", "step_00000009_copy"):
        with refused(ValueError, "not named like a checkpoint"):
            parse_step(tmp_path / name)
    plain = jax.tree.map(np.asarray, given)  # nowhere in particular: whole on every device
    with checkpointer(tmp_path) as again:
        again.save(step=10, state=given)
    assert not half.exists()  # what a killed run left
    whole = checkpointer(tmp_path).restore(state=plain)[1]["model"]["w"].sharding
    assert whole.spec == PartitionSpec() and whole.mesh.axis_names == ("data", "model")


def test_a_kill_while_a_step_is_replaced(tmp_path):
    with checkpointer(tmp_path) as saver:
        saver.save(step=7, state=state(7.0))
    set_aside(tmp_path / "step_00000007")  # and then the process was killed
    assert Checkpointer.checkpoint_steps(str(tmp_path)) == []
    step, restored = checkpointer(tmp_path).restore(state=state(0.0))
    assert step == 7 and restored["model"]["w"][0, 0] == 7
    with checkpointer(tmp_path) as saver:
        saver.save(step=7, state=state(70.0))
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000007"]


@pytest.mark.parametrize("successor", ["whole", "half", "none"])
def test_a_replaced_step_goes_where_its_successor_is_whole_alone(tmp_path, successor):
    folder = tmp_path / "step_00000007"
    folder.mkdir()
    set_aside(folder)
    if successor != "none":
        folder.mkdir()
    settle(tmp_path, lambda path: successor == "whole" and path.exists())
    names = {path.name for path in tmp_path.iterdir()}
    half = {".step_00000007.replaced", "step_00000007"}
    assert names == (half if successor == "half" else {"step_00000007"})


def test_iterators_of_another_number_of_processes(tmp_path, monkeypatch):
    given = {**state(2.0), "input_iter": batches()}
    next(given["input_iter"])
    with checkpointer(tmp_path) as saver:
        saver.save(step=7, state=given)
    [own] = tmp_path.glob("step_00000007/**/python_0")  # as if two had saved it
    shutil.copytree(own, own.with_name("python_1"))
    target = {**state(0.0), "input_iter": batches()}
    checkpointer(tmp_path).restore(state=target)
    assert target["input_iter"].get_state() == {"position": 1}
    target["input_iter"].state_of_all_processes = False  # it has its own part of the data, say
    with refused(ValueError, "saved by another number of processes"):
        checkpointer(tmp_path).restore(state=target)
    del target["input_iter"].state_of_all_processes
    monkeypatch.delattr(ArrayBatches, "state_of_all_processes")  # it does not say
    with refused(ValueError, "saved by another number of processes"):
        checkpointer(tmp_path).restore(state=target)


def test_contexts(tmp_path):
    saver = checkpointer(tmp_path)
    with saver, refused(ValueError, "Already in a context"), saver:
        pass
    with saver:
        pass


@pytest.mark.parametrize(
    "validation, wider, dtype, fits",
    [
        ("EXACT", False, "float32", True),
        ("EXACT", False, "bfloat16", False),
        ("EXACT", True, "float32", False),
        ("EXACT_UP_TO_DTYPE", False, "bfloat16", True),
        ("EXACT_UP_TO_DTYPE", True, "float32", False),
        ("CONTAINS_STATE", True, "float32", True),
        ("CONTAINS_STATE", True, "bfloat16", False),
        ("CONTAINS_STATE_UP_TO_DTYPE", True, "bfloat16", True),
    ],
)
def test_validation(validation, wider, dtype, fits):
    wanted = [("step", 3), ("w", {"dtype": "float32", "shape": "(2,)"})]
    found = [("step", 4), ("w", {"dtype": dtype, "shape": "(2,)"})]
    found += [("more", {"dtype": "float32", "shape": "()"})] if wider else []
    kind = CheckpointValidationType(validation)
    if fits:
        check_state_structure(found, wanted, validation=kind)
        return
    with refused(ValueError, "checkpoint tree dtypes or shapes") as error:
        check_state_structure(found, wanted, validation=kind)
    assert ("\n-" in str(error.value)) is ("CONTAINS" not in validation)


@pytest.mark.parametrize(
    "policy, steps",
    [
        (every_n_steps_policy(3), [3, 6, 9]),
        (every_n_steps_policy(3, min_step=4), [6, 9]),
        (every_n_steps_policy(3, min_step=0), [0, 3, 6, 9]),
        (every_n_steps_and_last_policy(4, max_step=9), [4, 8, 9]),
    ],
)
def test_policies(policy, steps):
    assert [step for step in range(10) if policy(step=step, evaler_summaries={})] == steps


def test_policies_that_cannot_be():
    with refused(ValueError, "mode must be 'max' or 'min', found 'best'"):
        cfg = BestMetricPolicy.default_config().set(metric=EvalMetric("dev", "loss"), mode="best")
        cfg.instantiate()
    with refused(ValueError, "max_step 3 < min_step 4"):
        evaluates_every_n_steps(2, min_step=4, max_step=3)
    policy = evaluates_every_n_steps(3, min_step=2, max_step=7)
    assert [s for s in range(10) if policy(step=s, train_summaries=None)] == [3, 6, 7, 8, 9]


def test_best_metric():
    cfg = BestMetricPolicy.default_config().set(metric=EvalMetric("dev", "loss"), mode="min")
    policy = cfg.instantiate()

    def saves(value):
        return policy(step=1, evaler_summaries={"dev": value})

    assert not saves(None)
    values = [3.0, jnp.float32(4.0), WeightedSummary(2.0, 8), 2.0, 1.0]
    assert [saves({"loss": value}) for value in values] == [True, False, True, False, True]
    for summaries, message in [
        ({}, "evaler_summaries is empty"),
        ({"test": {}}, "'dev' not found in evaler_summaries"),
        ({"dev": {"accuracy": 1}}, "'loss' not found in"),
        ({"dev": {"loss": None}}, "is None"),
        ({"dev": {"loss": jnp.ones(2)}}, "scalar"),
    ]:
        with refused(ValueError, message):
            policy(step=1, evaler_summaries=summaries)


# Every file of the newest checkpoint deleted, emptied, cut, and with one bit flipped.


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


def with_input(value):
    return {"w": jnp.full((4, 8), float(value)), "input_iter": batches()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with checkpointer(folder, keep_last_n=3) as saver:
        for step in (2, 4, 6):
            saver.save(step=step, state=with_input(step))
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def restored(folder, **kwargs):
    """The step and the first number of the newest state."""
    step, new = checkpointer(folder, **kwargs).restore(state=with_input(0))
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
        saver.save(step=6, state=with_input(60))
    assert restored(copy) == (6, 60.0)
    flip_a_bit(copy / NEWEST / "state" / "manifest.ocdbt")
    with refused(DamagedCheckpointError, "No other checkpoint in the folder is whole"):
        restored(copy, fall_back=True)


def test_the_very_next_checkpoint_is_set_aside_too(tmp_path):
    with checkpointer(tmp_path, keep_last_n=9) as saver:
        for step in (3, 4, 5, 6):
            saver.save(step=step, state=state(step))
    checkpointer(tmp_path).set_aside_after(4)
    assert Checkpointer.checkpoint_steps(str(tmp_path)) == [3, 4]


def test_a_step_that_is_asked_for_is_not_replaced_by_another(copy):
    delete(copy / "step_00000004" / "index" / "index.json")
    target = {"w": with_input(0)["w"]}
    assert checkpointer(copy).restore(state=target)[0] == 6
    with refused(DamagedCheckpointError, r"steps 2, 6\. To go on from step 6"):
        checkpointer(copy, fall_back=True).restore(step=4, state=target)
    checkpointer(copy).set_aside_after(3)
    assert restored(copy) == (2, 2.0)


def test_a_step_in_the_folder_of_another_is_refused(copy):
    (copy / NEWEST).rename(copy / "step_00000777")
    with refused(DamagedCheckpointError, r"found the checkpoint of step 6\. Rename"):
        restored(copy)
    with refused(CheckpointError, r"found the checkpoint of step 6\. Rename"):
        read_checkpoint(copy)
    assert restored(copy, fall_back=True) == (4, 4.0)


def test_a_missing_position_is_another_error_than_a_wrong_one(tmp_path):
    with checkpointer(tmp_path / "without") as saver:
        saver.save(step=1, state={"w": with_input(1)["w"]})
    with refused(MissingPositionError, "no position of input_iter"):
        restored(tmp_path / "without")
    with refused(ValueError, "checkpoint tree") as error:
        checkpointer(tmp_path / "without").restore(state={**with_input(0), "more": jnp.ones(2)})
    assert not isinstance(error.value, MissingPositionError)


@pytest.mark.parametrize("text", ["", "x", "00000000\n", "zz zz zz\n00000000\n"])
def test_checksums_that_are_none(copy, text):
    (copy / NEWEST / "checksums" / "crc32.txt").write_text(text)
    [problem] = damage_of(copy / NEWEST)
    assert problem.startswith("checksums/crc32.txt: damaged")
