"""What other commands make of a trainer's run, and a trainer of what flax.optim saved."""

import json
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from typer.testing import CliRunner

import legacy_optim
import optax_bridge
from optax_bridge.cli.app import app
from optax_bridge.correspondence import ENTRIES
from optax_bridge.recorded_test import refused
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_class, config_for_function
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.input import ArrayBatches, IteratorInput
from optax_bridge.spmd.layer import BaseModel, ParameterSpec, ThirdPartyLayer
from optax_bridge.spmd.learner import Learner
from optax_bridge.spmd.trainer import learner_transformation, legacy_checkpoint
from optax_bridge.spmd.trainer.legacy import plan_of
from optax_bridge.spmd.trainer.state import transformation_of
from optax_bridge.spmd.trainer_test import run as trained
from optax_bridge.spmd.trees import flatten_items

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
KEY = jax.random.PRNGKey(0)


class Net(nn.Module):
    """What an old program has."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(16)(x)))[:, 0]


class LinenRegression(BaseModel):
    """The old program's loss around the old program's module."""

    def __init__(self, cfg, *, parent):
        super().__init__(cfg, parent=parent)
        net = ThirdPartyLayer.default_config()
        self._add_child("net", net.set(module=config_for_class(Net), example_inputs=[(1, 8)]))

    def forward(self, input_batch):
        return jnp.mean(jnp.square(self.net(input_batch["x"]) - input_batch["y"])), {}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of three steps, and its trainer."""
    folder = tmp_path_factory.mktemp("run")
    cfg = regression.trainer(steps=3, save_every=1, mesh_shape=(1, 1)).set(dir=str(folder))
    cfg.model = LinenRegression.default_config().set(dtype=jnp.float32)
    cfg.learner.optimizer = config_for_class(legacy_optim.Adam).set(learning_rate=0.01)
    cfg.checkpointer.keep_last_n = 2
    return folder, trained(cfg, devices=1)[1]


def call(*args):
    return CliRunner().invoke(app, list(map(str, args)))


@pytest.mark.parametrize("part", ["", "checkpoints", "checkpoints/step_00000003"])
def test_inspect_knows_a_run_its_folder_and_a_step(run, part):
    result = call("inspect", run[0] / part)
    assert result.exit_code == 0, result.output
    first, step = result.output.splitlines()[:2]
    newest = ", the newest of 2" if part == "checkpoints" else ""
    assert f"step_00000003{newest}: Trainer, a TrainState (steps 2, 3; parameters from " in first
    assert "model/net/params; next to it prng_key), 14 arrays" in first and step == "step 3"
    facts = json.loads(call("inspect", run[0] / part, "--json").output)
    assert facts["step"] == 3 and facts["path"].endswith("step_00000003")


def test_inspect_of_a_damaged_step_names_its_file(run, tmp_path):
    folder = Path(tmp_path, "run")
    for file in (run[0] / "checkpoints").rglob("*"):
        if file.is_file():
            copy = folder / file.relative_to(run[0])
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    (folder / "checkpoints" / "step_00000003" / "index" / "index.json").unlink()
    result = call("inspect", folder)
    assert result.exit_code == 1
    assert "index/index.json: expected the index of a trainer's step" in result.output
    assert call("inspect", folder / "checkpoints" / "step_00000002").exit_code == 0


def test_a_folder_of_another_kind_is_not_called_damaged(tmp_path):
    with ocp.CheckpointManager(tmp_path / "other", item_names=("weights", "data")) as manager:
        items: dict[str, Any] = {"weights": ocp.args.StandardSave({"w": jnp.ones(2)})}
        items["data"] = ocp.args.JsonSave({"a": 1})
        manager.save(5, args=ocp.args.Composite(**items))
    for path, names in (("other", "['5']"), ("other/5", "'data', 'weights'")):
        result = call("inspect", tmp_path / path)
        assert result.exit_code == 1 and "amaged" not in result.output, result.output
        assert names in result.output and "Name the file itself" in result.output
    assert call("inspect", tmp_path / "other" / "5" / "weights").exit_code == 0


def test_convert_writes_the_old_programs_file(run, tmp_path):
    result = call("convert", run[0], tmp_path / "old", "--to=legacy", "--optimizer", "Adam(0.01)")
    assert result.exit_code == 0, result.output
    params = run[1].trainer_state.model["net"]["params"]
    template = legacy_optim.Adam(learning_rate=0.01).create(jax.tree.map(jnp.zeros_like, params))
    old: Any = serialization.from_bytes(template, (tmp_path / "old").read_bytes())
    jax.tree.map(np.testing.assert_array_equal, old.target, dict(params))
    state = run[1].trainer_state.learner["optimizer"]
    assert int(old.state.step) == 3
    moment = old.state.param_states["Dense_0"]["kernel"].grad_ema
    np.testing.assert_array_equal(moment, state.mu["net"]["params"]["Dense_0"]["kernel"])


def _sides():
    adam = config_for_function(optax_bridge.adam).set(learning_rate=0.01)
    return {
        "optimizer": adam,
        "definition": config_for_class(legacy_optim.Adam).set(learning_rate=0.01),
        "trainer": regression.trainer().set(learner=Learner.default_config().set(optimizer=adam)),
        "transformation": optimizers.from_optax(adam.instantiate()),
    }


@pytest.mark.parametrize("kind", _sides())
def test_a_config_is_the_transformation_that_it_makes(kind):
    params = {"w": jnp.linspace(-1.0, 1.0, 5), "b": {"c": jnp.ones(3)}}
    tx: Any = transformation_of(_sides()[kind])
    if kind == "definition":
        assert isinstance(tx, legacy_optim.Adam)
        return
    assert isinstance(tx, optax_bridge.ExactTransformation)
    states = [
        optax_bridge.TrainState.create(apply_fn=None, params=params, tx=each)
        for each in (tx, optax_bridge.adam(0.01))
    ]
    step = jax.jit(lambda state: state.apply_gradients(grads=jax.tree.map(jnp.cos, state.params)))
    for _ in range(3):
        states = [step(state) for state in states]
    jax.tree.map(np.testing.assert_array_equal, states[0].params, states[1].params)


# From flax.optim.


def test_a_training_of_flax_optim_goes_on(tmp_path):
    optimizer = config_for_function(optax_bridge.lamb).set(learning_rate=0.01, weight_decay=0.1)
    definition = legacy_optim.LAMB(learning_rate=0.01, weight_decay=0.1)
    net: Any = Net()
    batches = ArrayBatches(regression.samples(), global_batch_size=16)
    old: Any = definition.create(jax.jit(net.init)(KEY, jnp.ones((1, 8)))["params"])

    @jax.jit
    def step(old, batch):
        def loss_fn(params):
            predicted = net.apply({"params": params}, batch["x"])
            return jnp.mean(jnp.square(predicted - batch["y"]))

        loss, grads = jax.value_and_grad(loss_fn)(old.target)
        return loss, old.apply_gradient(grads)

    for _ in range(3):
        _, old = step(old, next(batches))
    file = tmp_path / "checkpoint_3"
    file.write_bytes(serialization.to_bytes(old))
    cfg: Any = regression.trainer(steps=6, mesh_shape=(1, 1)).set(
        dir=str(tmp_path / "run"),
        model=LinenRegression.default_config().set(dtype=jnp.float32),
        learner=Learner.default_config().set(optimizer=optimizer),
        init_state_builder=config_for_function(legacy_checkpoint).set(
            path=str(file), optimizer="LAMB(0.01, weight_decay=0.1)", below="net/params"
        ),
    )
    position = batches.get_state()

    def rest():
        again = ArrayBatches(regression.samples(), global_batch_size=16)
        again.set_state(position)
        return again

    cfg.input = IteratorInput.default_config().set(source=rest)
    losses, trainer = trained(cfg, devices=1)
    for number in (4, 5, 6):
        loss, old = step(old, next(batches))
        assert losses[number] == float(loss)
    jax.tree.map(
        np.testing.assert_array_equal, trainer.trainer_state.model["net"]["params"], old.target
    )
    cfg.init_state_builder.below = "params"
    cfg.dir = str(tmp_path / "other")
    with refused(ValueError, r"found no .*\['learner'\]\['optimizer'\]"):
        trained(cfg, devices=1)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_of_the_correspondence_is_a_learners_optimizer(name):
    entry = ENTRIES[name]
    case = entry.cases[0]
    tx = optax_bridge.from_legacy(entry.definition(case, case.learning_rate))
    cfg = Learner.default_config().set(name="learner", optimizer=tx)
    learner = cfg.instantiate(parent=None)
    specs = {
        "dense": {
            "kernel": ParameterSpec((6, 4), dtype=jnp.float32, mesh_axes=("data", "model")),
            "bias": ParameterSpec((4,), dtype=jnp.float32, mesh_axes=("model",)),
        }
    }
    shapes = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), specs)
    state = jax.eval_shape(learner_transformation(learner, specs).init, shapes)
    state_specs = learner.create_state_partition_specs(specs)
    assert jax.tree.structure(state) == jax.tree.structure(state_specs)
    for (path, leaf), spec in zip(flatten_items(state), jax.tree.leaves(state_specs), strict=True):
        assert (leaf.shape, leaf.dtype) == (tuple(spec.shape), spec.dtype), path
        if leaf.shape == (6, 4):
            assert tuple(spec.mesh_axes) == ("data", "model"), path


def test_a_checkpoint_that_does_not_fit_names_every_leaf():
    def leaf(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    def plan(leaves: dict[tuple[str, ...], Any], new: list[str]) -> Any:
        return plan_of(Path("run"), leaves, expected, {path: path for path in leaves}, new)

    expected = {
        ("step",): leaf(), ("prng_key",): leaf(2), ("model", "w"): leaf(3),
        ("learner", "ema"): leaf(3),
    }  # fmt: skip
    plan({("step",): jnp.zeros(()), ("model", "w"): jnp.zeros(3)}, ["learner/.*"]).check()
    wrong = {
        ("model", "w"): jnp.zeros(4), ("model", "b"): jnp.zeros(1),
        ("step",): jnp.zeros((), jnp.int32),
    }  # fmt: skip
    with refused(ValueError, r"^run: expected the state of this model") as error:
        plan(wrong, ["model/.*", "learner"]).check()
    for problem in (
        "no ['learner']['ema'];",
        "['model']['w']: float32[4] for float32[3];",
        "['step']: int32[] for float32[];",
        "['model']['b'] in addition.",
        "Pass `below=`",
    ):
        assert problem in str(error.value)
