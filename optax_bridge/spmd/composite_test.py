from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_bridge
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.layer import ParameterSpec
from optax_bridge.spmd.learner import CompositeLearner, ForwardOutputs, Learner, UpdateType
from optax_bridge.spmd.module import functional, new_output_collection
from optax_bridge.spmd.optimizers import OptParam

VALUES = {"net": {"w": jnp.array([1.0, 2.0]), "b": jnp.array([3.0])}, "stats": jnp.array([4.0])}
PARAMS: Any = jax.tree.map(lambda value: OptParam(value, None, None), VALUES)
SGD = config_for_function(optimizers.sgd_optimizer).set(
    learning_rate=0.1, decouple_weight_decay=True, momentum=0.5
)
ADAM = config_for_function(optax_bridge.adam).set(learning_rate=0.1)
RULES = [("net/w", "weights"), (".*", "rest")]


def composite(**kwargs) -> Any:
    kwargs.setdefault("learners", {
        "weights": Learner.default_config().set(optimizer=ADAM),
        "rest": Learner.default_config().set(
            optimizer=SGD, update_rules=[("net/b", UpdateType.NO_UPDATE)]
        ),
    })  # fmt: skip
    cfg = CompositeLearner.default_config().set(**{"name": "learner", "rules": RULES, **kwargs})
    return cfg.instantiate(parent=None)


def forward(*, model_params, inputs):
    del inputs
    loss = sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(model_params)) / 2
    collection = new_output_collection()
    collection.state_updates["stats"] = jnp.array([7.0])
    return ForwardOutputs(loss=loss, aux={}, output_collection=collection)


def step(learner, state):
    inputs = {"fn": forward, "inputs": {}, "opt_params": PARAMS}
    return functional(learner, None, state, inputs, method="forward_and_backward", is_training=True)


def test_each_parameter_is_its_learners():
    learner = composite(
        ema=config_for_function(optimizers.param_ema).set(decay=0.5), norm_summaries=True
    )
    state = learner.init(PARAMS)
    assert sorted(state) == ["ema", "rest", "weights"]
    assert state["weights"]["optimizer"].mu["net"]["b"] == optax.MaskedNode()
    trace = state["rest"]["optimizer"][0].trace
    assert trace["net"] == {"w": optax.MaskedNode(), "b": None}  # its own, and not updated
    specs = jax.tree.map(
        lambda v: ParameterSpec(shape=v.shape, dtype=v.dtype, mesh_axes=(None,)), VALUES
    )
    assert jax.tree.structure(learner.create_state_partition_specs(specs)) == (
        jax.tree.structure(state)
    )
    assert learner.should_update_with_optimizers(PARAMS) == {
        "net": {"w": True, "b": False}, "stats": True
    }  # fmt: skip
    outputs, collection = jax.jit(lambda s: step(learner, s))(state)
    new = outputs.backward_outputs.updated_params
    adam = ADAM.instantiate()
    own = {"w": VALUES["net"]["w"]}
    expected, _ = jax.jit(adam.step)(own, adam.init(own), own)
    np.testing.assert_array_equal(new["net"]["w"], expected["w"])
    np.testing.assert_array_equal(new["net"]["b"], VALUES["net"]["b"])
    np.testing.assert_array_equal(new["stats"], [7.0])  # in place, after the optimizer
    np.testing.assert_allclose(collection.state_updates["ema"].ema["stats"], [3.5])
    assert jax.tree.structure(collection.state_updates) == jax.tree.structure(state)
    assert float(collection.summaries["gradient_norm"]) == pytest.approx((1 + 4 + 16) ** 0.5)
    assert float(collection.summaries["rest"]["optimizer"]["learning_rate"]) == pytest.approx(0.1)
    step(learner, collection.state_updates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": [(".*", "other")]}, "'other' is not found in the known learners"),
        ({"rules": [("net/.*", "rest")]}, "rules do not update all model params: .*stats"),
        ({"learners": {"ema": Learner.default_config()}}, "Sublearner name cannot be ema"),
    ],
)
def test_rules_and_names_that_cannot_be(change, message):
    if "learners" in change:
        change = {**change, "rules": [(".*", "ema")]}
    with pytest.raises(ValueError, match=message):
        composite(**change).init(PARAMS)


@pytest.mark.parametrize("field", ["ema", "forward_fn_transformation"])
def test_what_only_the_whole_can_have(field):
    own = Learner.default_config().set(optimizer=SGD)
    if field == "ema":
        own.ema.decay = 0.5
    else:
        own.forward_fn_transformation = forward
    with pytest.raises(ValueError, match=f"learner 'all' has {field}.*set it on learner itself"):
        composite(learners={"all": own}, rules=[(".*", "all")])


def test_undefined_losses_are_handled_if_all_do():
    def handles(*each):
        learners = {
            f"l{index}": Learner.default_config().set(optimizer=SGD, ignore_undefined_loss=value)
            for index, value in enumerate(each)
        }
        return composite(learners=learners, rules=[(".*", "l0")]).handles_undefined_loss()

    assert handles(True, True) and not handles(True, False)


def test_a_trainer_with_it(tmp_path):
    """One learner for all parameters is that learner, to the bit."""
    losses = []
    for kind in ("plain", "composite"):
        cfg = regression.trainer(steps=2, mesh_shape=(1, 1)).set(dir=str(tmp_path / kind))
        if kind == "composite":
            learners = {"one": cfg.learner, "two": cfg.learner}
            rules = [("first/.*", "one"), (".*", "two")]
            cfg.learner = CompositeLearner.default_config().set(learners=learners, rules=rules)
        trainer = cfg.instantiate(parent=None, devices=jax.devices()[:1])
        losses.append({})
        trainer.add_listener(losses[-1].__setitem__)
        trainer.run(jax.random.PRNGKey(0))
    assert losses[0] == losses[1] and sorted(losses[0]) == [1, 2]
