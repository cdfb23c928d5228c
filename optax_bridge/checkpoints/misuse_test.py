"""What cannot be meant is said before anything is written, and what is given arrives."""

import functools
import operator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from flax.training import checkpoints

import legacy_optim
import optax_bridge
from optax_bridge import TrainState, convert_state, from_legacy
from optax_bridge.checkpoints import (
    CheckpointError,
    convert_file,
    from_state_dict,
    read_checkpoint,
    restore_checkpoint,
)
from optax_bridge.checkpoints.formats.orbax import write_orbax
from optax_bridge.checkpoints.layout import add_optimizer
from optax_bridge.checkpoints.restore_test import ADAM, assert_taken_over, fresh, trained
from optax_bridge.checkpoints.to_legacy import legacy_tree
from optax_bridge.checkpoints.write import write
from optax_bridge.recorded_test import refused

FILES = Path(__file__).parent / "testdata"
MISUSED: dict[str, tuple[dict[str, Any], str]] = {
    "part of several": (
        {"optimizer_def": {"a": ADAM}, "part": "a"},
        "a dict of optimizers converts each",
    ),
    "like": ({"like": 3, "layout": "flat"}, "like decides the whole result"),
    "layout": ({"optimizer_def": ADAM, "layout": "deep"}, "layout: expected 'keep'"),
    "format": ({"optimizer_def": ADAM, "file_format": "zip"}, "one of .*msgpack.*, found 'zip'"),
}


@pytest.mark.parametrize("case", MISUSED)
def test_misuse_is_said_before_anything_is_written(case: str, tmp_path: Path) -> None:
    given, message = MISUSED[case]
    with refused(ValueError, message):
        convert_file(FILES / "adam.msgpack", tmp_path / "new", **given)
    assert not list(tmp_path.iterdir())


def test_a_state_of_another_optimizer_does_not_go_back() -> None:
    params = {"w": jnp.ones(3)}
    state = from_legacy(ADAM).init(params)
    for other in (legacy_optim.Momentum, legacy_optim.Adagrad, legacy_optim.GradientDescent):
        with refused(CheckpointError, r"opt_state|transformation"):
            legacy_tree(params, state, 3, other(0.1))


@pytest.mark.parametrize(
    ("path", "leaf", "message"),
    [
        (("params", "scale"), 3, r"\['params'\]\['scale'\]: expected an array, found 3"),
        (("params", "dense", "bias"), np.full(3, np.nan, np.float32), r"finite numbers, found NaN"),
        (("opt_state", "nu", "dense", "bias"), -np.ones(3, np.float32), r"numbers of 0 or more"),
        (("step",), np.int32(-1), r"\['step'\]: expected the number of steps.*found -1"),
        (("step",), "four", r"\['step'\]: expected the number of steps.*found 'four'"),
    ],
    ids=["number", "NaN", "negative", "step below 0", "step of text"],
)
def test_a_damaged_state_does_not_go_back(
    path: tuple[str, ...], leaf: Any, message: str, tmp_path: Path
) -> None:
    tree: Any = serialization.to_state_dict(fresh(from_legacy(ADAM)))
    functools.reduce(operator.getitem, path[:-1], tree)[path[-1]] = leaf
    (tmp_path / "new").write_bytes(serialization.msgpack_serialize(tree))
    with refused(CheckpointError, message):
        convert_file(tmp_path / "new", tmp_path / "old", ADAM, to_legacy=True)
    if "NaN" in message:
        with refused(CheckpointError, message):
            convert_file(tmp_path / "new", tmp_path / "alone", params_only=True)


@pytest.mark.parametrize("others", [{"a": 1}, {"a": {"b": 2}}, {"a": {"b": {}}}], ids=str)
def test_nothing_is_put_where_something_else_stands(others: Any) -> None:
    with refused(CheckpointError, r"a place for the optimizer.*--part NAME"):
        add_optimizer(others, ("a", "b"), {"step": 1}, "file")
    assert add_optimizer({"c": 3, "a": {"d": 4}}, ("a", "b"), {"step": 1}, "file") == {
        "c": 3, "a": {"d": 4, "b": {"step": 1}},
    }  # fmt: skip


def test_names_that_orbax_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    tree = {"a.b": np.ones(1), "a": {"b": np.ones(2)}}
    with refused(CheckpointError, r"two of one name.*--format msgpack"):
        write_orbax(tmp_path / "new", tree)


@pytest.mark.parametrize("given", ["orbax_checkpointer", "orbax_transforms"])
def test_what_is_given_for_orbax_reaches_it(given: str, tmp_path: Path) -> None:
    taken = TrainState.from_legacy(trained(), exact=False)
    saver = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
    saved = checkpoints.save_checkpoint(tmp_path, taken, 2, orbax_checkpointer=saver)
    assert Path(saved).name == "checkpoint_2"
    values = {"orbax_checkpointer": saver, "orbax_transforms": {}}
    if given == "orbax_transforms":
        saver.wait_until_finished()
    assert_taken_over(restore_checkpoint(tmp_path, fresh(), **{given: values[given]}))
    saver.close()


def test_of_steps_that_a_manager_saved_the_newest_is_named(tmp_path: Path) -> None:
    state = fresh()
    for step in (9, 10):
        tree = serialization.to_state_dict(state.replace(step=jnp.int32(step)))
        (tmp_path / f"{step}").mkdir()
        write(tmp_path / f"{step}" / "default", tree, "orbax")
    write(tmp_path / "9" / "state", tree, "orbax")  # which T5X calls so
    with refused(CheckpointError, r"CheckpointManager.*/10 is the newest"):
        restore_checkpoint(tmp_path, state)
    assert int(restore_checkpoint(tmp_path / "9", state).step) == 10


def test_what_can_be_missing_is_said_by_one_of_two_words() -> None:
    with refused(ValueError, 'expected "error" or "keep", found \'drop\''):
        from_state_dict(fresh(), serialization.to_state_dict(trained()), missing="drop")


def test_no_checkpoint_yet_leaves_the_target_as_it_is(tmp_path: Path) -> None:
    state = fresh()
    assert restore_checkpoint(tmp_path, state) is state
    assert restore_checkpoint(tmp_path / "none", state) is state
    tree: Any = restore_checkpoint(FILES / "adam.msgpack", None)
    assert tree["target"]["scale"].flags.writeable  # no view of the file
    for where, target in ((3, state), (tmp_path, "state")):
        with refused(TypeError, r"expected a path, found int 3|found the string 'state'"):
            restore_checkpoint(where, target)  # pyright: ignore[reportArgumentType]
    with refused(CheckpointError, "an optimizer: "):
        convert_file(FILES / "params_only.msgpack", tmp_path / "x", params_only=True, part="x")
    with refused(CheckpointError, "expected a template that holds a TrainState"):
        convert_file(FILES / "adam.msgpack", tmp_path / "new", like={"a": 3})
    with refused(ValueError, "checkpoint_3"):
        restore_checkpoint(tmp_path, state, 3)
    write(tmp_path / "new", serialization.to_state_dict(state), "orbax")
    assert int(restore_checkpoint(tmp_path / "new", state).step) == 0
    # What was saved into a folder that is a converted checkpoint itself is newer.
    taken = TrainState.from_legacy(trained(), exact=False)
    (tmp_path / "new" / "checkpoint_2").write_bytes(serialization.to_bytes(taken))
    assert_taken_over(restore_checkpoint(tmp_path / "new", state))


def test_a_state_goes_back_by_the_transformation_that_made_it_and_by_no_other(
    tmp_path: Path,
) -> None:
    params = {"b": jnp.ones(2), "w": jnp.ones((2, 3))}
    state = TrainState.create(apply_fn=None, params=params, tx=from_legacy(ADAM))
    (tmp_path / "new").write_bytes(serialization.to_bytes(state))
    said = r"\['opt_state'\]: expected the state of Momentum's transformation, found .* differ: "
    with refused(CheckpointError, rf"{said}.*whose transformation wrote it\.$"):
        convert_file(tmp_path / "new", tmp_path / "old", legacy_optim.Momentum(), to_legacy=True)
    with refused(CheckpointError, "expected the legacy optimizer to make, found none"):
        convert_file(tmp_path / "new", tmp_path / "old", to_legacy=True)
    convert_file(tmp_path / "new", tmp_path / "old", ADAM, to_legacy=True)
    expected = serialization.to_bytes(ADAM.create(params))
    assert (tmp_path / "old").read_bytes() == expected
    place = {"to_legacy": True, "part": "models/a"}
    convert_file(tmp_path / "new", tmp_path / "there", ADAM, **place)
    assert set(read_checkpoint(tmp_path / "there").tree["models"]["a"]) == {"target", "state"}
    with refused(CheckpointError, "a TrainState: step, params, opt_state, found"):
        convert_file(tmp_path / "old", tmp_path / "x", ADAM, to_legacy=True)
    with refused(CheckpointError, r"found a TrainState, .*--to legacy"):
        convert_file(tmp_path / "new", tmp_path / "x", ADAM)


def test_members_of_a_population_do_not_go_back_as_one(tmp_path: Path) -> None:
    members = jax.tree.map(lambda leaf: np.stack([leaf, leaf + 1]), fresh(from_legacy(ADAM)))
    (tmp_path / "new").write_bytes(serialization.to_bytes(members))
    with refused(CheckpointError, r"\['step'\]: expected one state.*2 that differ"):
        convert_file(tmp_path / "new", tmp_path / "old", ADAM, to_legacy=True)


def test_a_square_kernel_by_rules_that_t5x_ignores_is_refused() -> None:
    """Its rows and columns have the same shapes: nothing else would tell."""
    one, row = np.zeros(1, np.float32), np.ones(8, np.float32)
    fields = {"v_row": row, "v_col": 2 * row, "v": one, "m": one}
    tree = {
        "target": {"kernel": np.ones((8, 8), np.float32)},
        "state": {"step": np.int32(3), "param_states": {"kernel": fields}},
    }
    settings: Any = {"path_rules": {"kernel": ("column", "row")}, "min_dim_size_to_factor": 8}
    with refused(CheckpointError, r"\['kernel'\].*as_in_t5x=True"):
        convert_state(tree, optax_bridge.adafactor(1e-3, **settings))
    group = optax_bridge.multi_optimizer(("*", optax_bridge.adafactor(1e-3, **settings)))
    with refused(CheckpointError, r"\['kernel'\].*as_in_t5x=True"):
        convert_state(tree, group)
    state: Any = convert_state(tree, optax_bridge.adafactor(1e-3, **settings, as_in_t5x=True))
    np.testing.assert_array_equal(state.opt_state.v_col["kernel"], 2 * row)
