"""A converted checkpoint is found by the migrated program's own restore, where it stood before."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from flax.training import checkpoints
from flax.training.train_state import TrainState

import legacy_optim
from optax_bridge import from_legacy
from optax_bridge.checkpoints import (
    read_checkpoint,
    restore_checkpoint,
)
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.restore_test import LAYOUTS, PARAMS, assert_taken_over, fresh, trained
from optax_bridge.cli.checkpoints_test import bridge
from optax_bridge.cli.convert import RATE_AT_STEPS

PROGRAM = """
import jax, jax.numpy as jnp, optax, optax_bridge

def make_state():
    params = {"dense": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}
    create = lambda tx: optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
    return {"actor": create(optax.adam(0.1)), "critic": create(optax_bridge.adam()), "epoch": 0}
"""


def old_file(folder: Path, layout: str) -> Path:
    saved, *_ = LAYOUTS[layout]
    (folder / "checkpoint_2").write_bytes(serialization.to_bytes(saved(trained())))
    return folder / "checkpoint_2"


def restored_by(way: str, path: Path, template: Any) -> Any:
    if way == "StandardCheckpointer":
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path, template)
    if way == "from_bytes":
        return serialization.from_bytes(template, path.read_bytes())
    restore = checkpoints.restore_checkpoint if way == "Flax" else restore_checkpoint
    return restore(path, template)


def rate_at_steps() -> Any:
    tx = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    return TrainState.create(apply_fn=None, params=PARAMS, tx=tx)


def test_a_program_with_a_rate_at_each_step_needs_a_template_and_convert_says_so(
    tmp_path: Path,
) -> None:
    """Flax restores moments of zero, without an error, from the state of plain Optax."""
    old, new = old_file(tmp_path, "bare"), tmp_path / "new"
    moments = {}
    for options in (["--optimizer=Adam(0.1)"], [f"--like={__file__}:rate_at_steps"]):
        done = bridge("convert", old, new, "--force", *options)
        assert done.exit_code == 0, done.stderr
        state = checkpoints.restore_checkpoint(new, rate_at_steps())
        assert state.step == trained().state.step
        moments[done.stderr] = state.opt_state.inner_state[0].mu["dense"]["bias"]
    assert moments[""].all() and not moments[f"{RATE_AT_STEPS}\n"].any()
    options = ["--optimizer=Adam(0.1)", "--format=msgpack", "--force"]
    assert bridge("convert", old, new, *options).stderr == ""
    with pytest.raises(ValueError, match="do not match"):
        checkpoints.restore_checkpoint(new, rate_at_steps())


@pytest.mark.parametrize(
    ("layout", "file_format", "way"),
    [
        ("bare", "msgpack", "from_bytes"),
        ("tuple", "msgpack", "Flax"),
        ("nested", "msgpack", "ours"),
        ("dataclass", "orbax", "Flax"),
        ("tuple", "orbax", "ours"),
        ("nested", "orbax", "StandardCheckpointer"),
    ],
)
def test_what_stood_around_the_optimizer_stays(
    layout: str, file_format: str, way: str, tmp_path: Path
) -> None:
    options = ["--optimizer", "Adam(learning_rate=0.1)", "--format", file_format]
    done = bridge("convert", old_file(tmp_path, layout), tmp_path / "new", *options)
    note = f"{RATE_AT_STEPS}\n" if file_format == "orbax" else ""
    assert (done.exit_code, done.stderr) == (0, note)
    _, template, contents = LAYOUTS[layout]
    for item in contents(restored_by(way, tmp_path / "new", template(fresh()))):
        if isinstance(item, tuple):
            assert item[0] == item[1]
        else:
            assert_taken_over(item)


def test_like_a_program_each_optimizer_becomes_what_it_is_there(tmp_path: Path) -> None:
    saved = {"actor": trained(), "critic": trained(), "epoch": 7}
    (tmp_path / "checkpoint_2").write_bytes(serialization.to_bytes(saved))
    (tmp_path / "program.py").write_text(PROGRAM)
    like = f"{tmp_path / 'program.py'}:make_state"
    options = ["--like", like, "--format", "msgpack"]
    done = bridge("convert", tmp_path / "checkpoint_2", tmp_path / "new", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "actor: Adam, critic: Adam as the template" in done.stdout
    exact = fresh(from_legacy(parse_definition("Adam(1e-2)")))
    template = {"actor": fresh(), "critic": exact, "epoch": 0}
    restored: Any = checkpoints.restore_checkpoint(tmp_path / "new", template)
    assert_taken_over(restored["actor"])
    assert (int(restored["critic"].opt_state.count), restored["epoch"]) == (2, 7)
    described = json.loads(bridge("inspect", tmp_path / "new", "--json").stdout)
    assert described["states"] == [{"part": "actor", "step": 2}, {"part": "critic", "step": 2}]
    assert "\nTrainState critic: step 2\n" in bridge("inspect", tmp_path / "new").stdout
    optimizer = ["--optimizer", "Adam(0.1)", "--to", "legacy", "--part", "critic"]
    done = bridge("convert", tmp_path / "new", tmp_path / "back", *optimizer)
    assert done.exit_code == 0, done.stderr
    back = read_checkpoint(tmp_path / "back").tree
    assert set(back["critic"]) == {"target", "state"} and "opt_state" in back["actor"]


def test_groups_of_both_kinds_go_there_and_back(tmp_path: Path) -> None:
    """LAMB has no equal in public Optax, Adam has one; each group is what `migrate` makes of it."""
    groups = 'MultiOptimizer(("*kernel", LAMB(0.1)), ("*bias", Adam(0.1)))'
    optimizer = parse_definition(groups).create(PARAMS).apply_gradient(PARAMS)
    (tmp_path / "old").write_bytes(serialization.to_bytes(optimizer))
    options = ["--optimizer", groups]
    done = bridge("convert", tmp_path / "old", tmp_path / "new", *options)
    assert "(for a program with optax_bridge.multi_optimizer of optax_bridge.lamb," in done.stdout
    inner = read_checkpoint(tmp_path / "new").tree["opt_state"]["inner"]
    assert [set(inner["0"]), set(inner["1"]["0"])] == [{"count", "mu", "nu"}] * 2
    done = bridge("convert", tmp_path / "new", tmp_path / "back", *options, "--to", "legacy")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "back").read_bytes() == (tmp_path / "old").read_bytes()


POPULATION = """
import jax, jax.numpy as jnp, optax, optax_bridge

def make_state():
    create = lambda w: optax_bridge.TrainState.create(None, {"w": w}, optax_bridge.adam(0.1))
    return {"members": jax.vmap(create)(jnp.zeros((2, 3))), "round": 0}
"""


def test_like_a_population_that_vmap_made(tmp_path: Path) -> None:
    """Its steps are as many as its members, as those of copies for devices are."""
    definition = legacy_optim.Adam(0.1)
    members = jax.vmap(definition.create)({"w": jnp.arange(6.0).reshape(2, 3)})
    members = jax.vmap(lambda member: member.apply_gradient(member.target))(members)
    (tmp_path / "old").write_bytes(serialization.to_bytes({"members": members, "round": 1}))
    (tmp_path / "train.py").write_text(POPULATION)
    refused = bridge("convert", tmp_path / "old", tmp_path / "new", "--optimizer", "Adam(0.1)")
    assert refused.exit_code == 1 and "convert --like" in refused.stderr
    like = f"{tmp_path / 'train.py'}:make_state"
    done = bridge("convert", tmp_path / "old", tmp_path / "new", "--like", like)
    assert done.exit_code == 0, done.stderr
    assert "new: as the template has it, 5 arrays" in done.stdout
    new = read_checkpoint(tmp_path / "new").tree
    np.testing.assert_array_equal(new["members"]["params"]["w"], members.target["w"])
    np.testing.assert_array_equal(new["members"]["step"], [1, 1])
