from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import optax_bridge
from optax_bridge.recorded_test import refused
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.layer import ParameterSpec
from optax_bridge.spmd.learner import (
    CompositeLearner,
    ConditionalUpdateTransformation,
    ForwardOutputs,
    Learner,
    OverrideInplaceUpdateTransformation,
    Updates,
    UpdateType,
    _apply_updates,
    mask_tree,
)
from optax_bridge.spmd.module import functional, new_output_collection
from optax_bridge.spmd.optimizers import OptParam
from optax_bridge.spmd.optimizers.optimizers_test import OPTIMIZERS
from optax_bridge.spmd.trees import tree_paths

SGD = config_for_function(optimizers.sgd_optimizer).set(
    learning_rate=0.1, decouple_weight_decay=True
)
VALUES = {"w": jnp.array([1.0, 2.0]), "b": jnp.array([3.0]), "stats": {"mean": jnp.array([0.0])}}


def opt_params():
    return jax.tree.map(lambda value: OptParam(value, None, None), VALUES)


def specs():
    return jax.tree.map(
        lambda v: ParameterSpec(shape=v.shape, dtype=v.dtype, mesh_axes=PartitionSpec(None)), VALUES
    )


def forward(*, model_params, inputs):
    """A loss of all parameters, a state update, and whatever the inputs are as aux."""
    loss = sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(model_params)) / 2
    collection = new_output_collection()
    collection.state_updates["stats"] = {"mean": jnp.array([7.0])}
    collection.state_updates["empty"] = {}
    return ForwardOutputs(loss=loss, aux=inputs, output_collection=collection)


def learner_of(**kwargs):
    kwargs.setdefault("optimizer", SGD)
    return Learner.default_config().set(name="learner", **kwargs).instantiate(parent=None)


def step_of(learner, state=None):
    state = learner.init(opt_params()) if state is None else state
    return functional(
        learner,
        None,
        state,
        {"fn": forward, "inputs": {"x": jnp.ones(2)}, "opt_params": opt_params()},
        method="forward_and_backward",
        is_training=True,
    )


@pytest.mark.parametrize(
    "update_type, changed",
    [
        (UpdateType.NO_UPDATE, [0.0]),
        (UpdateType.OPTIMIZERS, [0.9 * 0.0]),
        (UpdateType.STATE_UPDATES, [7.0]),
        (UpdateType.ALL_UPDATES, [7.0]),
    ],
)
def test_update_rules(update_type, changed):
    rules = [("stats/.*", update_type), ("b", UpdateType.NO_UPDATE)]
    learner = learner_of(update_rules=rules, norm_summaries=True)
    state = learner.init(opt_params())
    assert (state["optimizer"][0].trace["stats"]["mean"] is None) == (
        update_type in (UpdateType.NO_UPDATE, UpdateType.STATE_UPDATES)
    )
    assert jax.tree.structure(state) == jax.tree.structure(
        learner.create_state_partition_specs(specs())
    )
    outputs, collection = step_of(learner)
    new = outputs.backward_outputs.updated_params
    np.testing.assert_allclose(new["w"], [0.9, 1.8], rtol=1e-6)
    np.testing.assert_allclose(new["b"], [3.0])
    np.testing.assert_allclose(new["stats"]["mean"], changed)
    assert "empty" not in new
    assert jax.tree.structure(collection.state_updates) == jax.tree.structure(state)
    assert float(outputs.forward_outputs.loss) == 7.0
    summaries = collection.summaries
    assert float(summaries["optimizer"]["learning_rate"]) == pytest.approx(0.1)
    assert float(summaries["gradient_norm"]) == pytest.approx(5**0.5)
    assert float(summaries["update_norm"]) == pytest.approx(0.1 * 5**0.5)


def test_a_rule_that_fits_no_parameter_is_said(caplog):
    half_of_b = config_for_function(optimizers.per_param_scale_by_path).set(
        scale_by_path=[("b", 0.5), ("bb", 0.0)], description="learning_rate"
    )
    scale = config_for_function(optimizers.scale_update_per_param).set(per_param_scale=half_of_b)
    rules = [("stats/.*", UpdateType.NO_UPDATE), ("stats", UpdateType.NO_UPDATE)]
    optimizer = config_for_function(optimizers.chain).set(args=[SGD, scale])
    step_of(learner_of(update_rules=rules, optimizer=optimizer))
    assert [message.split(";")[0] for message in caplog.messages] == [
        "learner.update_rules: 'stats' fits no parameter",
        "per_param_scale_by_path, learning_rate: 'bb' fits no parameter",
    ]


def test_average_of_the_new_parameters():
    learner = learner_of(ema=config_for_function(optimizers.param_ema).set(decay=0.5))
    outputs, collection = step_of(learner)
    state = collection.state_updates["ema"]
    assert int(state.count) == 1 and "gradient_norm" not in collection.summaries
    for average, value in zip(
        jax.tree.leaves(state.ema),
        jax.tree.leaves(outputs.backward_outputs.updated_params),
        strict=True,
    ):
        np.testing.assert_allclose(average, 0.5 * value)


@pytest.mark.parametrize(
    "wanted, names",
    [
        (True, {"param_rms/w", "param_rms/b", "grad_rms/stats/mean", "grad_rms/w"}),
        (["stats", "w"], {"grad_norm/stats", "grad_norm/w"}),
    ],
)
def test_summaries_of_variables(wanted, names):
    _, collection = step_of(learner_of(enable_per_variable_summaries=wanted))
    assert names <= set(collection.summaries)
    if wanted is True:
        assert float(collection.summaries["param_rms/stats/mean"]) == pytest.approx(1e-3)


def test_summaries_below_a_path_are_not_those_of_a_longer_name():
    params = {name: {"w": jnp.array([float(i)])} for i, name in ((3, "comp_1"), (4, "comp_10"))}
    learner = learner_of(enable_per_variable_summaries=["comp_1", "comp_1/w", "comp_10/"])
    updates = Updates(
        opt_params=jax.tree.map(lambda v: OptParam(v, None, None), params), delta_updates=params
    )
    _, collection = functional(
        learner,
        None,
        learner.init(updates.opt_params),
        (updates,),
        method="update",
        is_training=True,
    )
    norms = {path: float(collection.summaries[f"grad_norm/{path}"]) for path in
             ("comp_1", "comp_1/w", "comp_10/")}  # fmt: skip
    assert norms == {"comp_1": 3.0, "comp_1/w": 3.0, "comp_10/": 4.0}


# Of each way to combine transformations one.
@pytest.mark.parametrize("name", ["adafactor", "adastar", "skip, by averages", "offloaded"])
def test_an_instance_is_as_good_as_its_config(name):
    """What a config holds it copies, and so it must be able to."""
    cfg = OPTIMIZERS[name]
    of_config, of_instance = learner_of(optimizer=cfg), learner_of(optimizer=cfg.instantiate())
    (_, expected), (_, collection) = map(step_of, (of_config, of_instance))
    jax.tree.map(np.testing.assert_array_equal, collection.state_updates, expected.state_updates)


def test_override_takes_gradients_for_values():
    cfg = OverrideInplaceUpdateTransformation.default_config().set(
        transformation=config_for_function(optimizers.adam_optimizer).set(
            learning_rate=0.1, b1=0.9, b2=0.9, eps=1e-8
        ),
        rules=["stats/.*"],
    )
    learner = learner_of(optimizer=cfg)
    state = learner.init(opt_params())
    assert state["optimizer"][1].mu["stats"]["mean"] == optax.MaskedNode()
    assert jax.tree.structure(state) == jax.tree.structure(
        learner.create_state_partition_specs(specs())
    )
    grads = {"w": jnp.ones(2), "b": jnp.ones(1), "stats": {"mean": jnp.array([5.0])}}
    new, _ = functional(
        learner,
        None,
        state,
        (Updates(opt_params=opt_params(), delta_updates=grads),),
        method="update",
        is_training=True,
    )
    np.testing.assert_array_equal(new["stats"]["mean"], [5.0])
    np.testing.assert_allclose(new["b"], [2.9], rtol=1e-5)


ADAM = config_for_function(optax_bridge.adam).set(learning_rate=0.1)


def test_override_of_a_transformation_that_gives_values():
    """The port in legacy arithmetic gives new parameters, not differences."""
    cfg = OverrideInplaceUpdateTransformation.default_config().set(
        transformation=ADAM, rules=["stats/.*", "|b.+"]
    )
    learner = learner_of(optimizer=cfg)
    updates = Updates(opt_params=opt_params(), delta_updates=VALUES)
    new, _ = functional(
        learner, None, learner.init(opt_params()), (updates,), method="update", is_training=True
    )
    np.testing.assert_array_equal(new["stats"]["mean"], VALUES["stats"]["mean"])
    tx = optax_bridge.adam(learning_rate=0.1)
    others = {name: VALUES[name] for name in ("w", "b")}
    state = optax_bridge.TrainState.create(apply_fn=None, params=others, tx=tx)
    expected = state.apply_gradients(grads=others).params
    jax.tree.map(np.testing.assert_array_equal, {name: new[name] for name in others}, expected)


def test_the_forward_function_may_be_another():
    def twice(fn):
        def forward_twice(*, model_params, inputs):
            outputs = fn(model_params=model_params, inputs=inputs)
            return outputs.replace(loss=2 * outputs.loss)

        return forward_twice

    plain, _ = step_of(learner_of())
    other, _ = step_of(learner_of(forward_fn_transformation=twice))
    assert float(other.forward_outputs.loss) == 2 * float(plain.forward_outputs.loss)
    for name in ("w", "b"):
        steps = [
            VALUES[name] - found.backward_outputs.updated_params[name] for found in (plain, other)
        ]
        np.testing.assert_allclose(steps[1], 2 * steps[0], rtol=1e-5)


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_conditional_updates(optimizer):
    cfg = ConditionalUpdateTransformation.default_config().set(
        name="optimizer", inner=optimizer, update_schedule=lambda count: count % 2 == 0
    )
    module = cfg.instantiate(parent=None)
    state = module.init(opt_params())
    assert jax.tree.structure(state) == jax.tree.structure(
        module.create_state_partition_specs(specs())
    )
    updates = Updates(opt_params=opt_params(), delta_updates=VALUES)

    @jax.jit
    def transform(state):
        new, collection = functional(module, None, state, (updates,), is_training=True)
        return new.delta_updates, new.new_values, collection.state_updates

    deltas, _, on = transform(state)
    assert float(deltas["b"][0]) != 0
    deltas, values, off = transform(on)
    assert float(deltas["b"][0]) == 0 and int(off["should_update"].count) == 2
    jax.tree.map(np.testing.assert_array_equal, off["inner"], on["inner"])
    if values is not None:
        jax.tree.map(np.testing.assert_array_equal, values, VALUES)
    with refused(NotImplementedError, "in-place"):
        in_place = updates.replace(inplace_updates={"b": jnp.ones(1)})
        functional(module, None, state, (in_place,), is_training=True)


def test_what_is_no_transformation():
    not_one = config_for_function(optax.constant_schedule).set(value=1.0)
    with refused(ValueError, "optimizer: expected a PartitionedGradientTransf"):
        learner_of(optimizer=not_one)
    several = config_for_function(lambda: optax.MultiSteps(optax.sgd(0.1), 2))
    for optimizer in (several, config_for_function(optimizers.chain).set(args=[several])):
        with refused(ValueError, r"Give its gradient_transformation\(\)"):
            learner_of(optimizer=optimizer)


def climbing_with_w(grads: Any, params: Any) -> Any:
    return {**grads, "b": 0 * grads["b"]}


@pytest.mark.parametrize(
    "optimizer, warned",
    [
        (config_for_function(optax.sgd).set(learning_rate=None), True),
        (optax.scale_by_adam(), True),
        (optax_bridge.sgd(-0.1), True),
        (optax.adam(0.1), False),
        (optax.identity(), True),
        (optax.stateless(climbing_with_w), True),
        (optax.adam(optax.linear_schedule(0.0, 0.1, 9)), False),  # which is 0 at first
    ],
)
def test_an_optimizer_that_climbs_is_said(optimizer, warned, caplog):
    learner_of(optimizer=optimizer).create_state_partition_specs(specs())
    assert [r.getMessage().split(", ")[0] for r in caplog.records] == warned * [
        "learner.optimizer: its steps have the gradient's sign"
    ]


class Again(Learner):
    def update(self, updates):
        again = updates.forward_pass["default"]
        outputs = again.forward_fn(model_params=again.model_params, inputs=again.inputs)
        self.add_summary("again", outputs.loss)
        assert updates.delta_updates["b"] is None and updates.param_specs()["w"].shape == (2,)
        return super().update(updates)


def test_an_update_may_take_the_forward_pass_again():
    cfg = Again.default_config().set(optimizer=SGD, update_rules=[("b", UpdateType.NO_UPDATE)])
    outputs, collection = step_of(cfg.set(name="learner").instantiate(parent=None))
    assert float(collection.summaries["again"]) == float(outputs.forward_outputs.loss) == 7


def test_masks_and_updates_in_place():
    keep = {"a": True, "b": True, "c": None}
    masked = mask_tree({"a": 1, "b": None, "c": 3}, keep=keep, mask_value=0)
    assert masked == {"a": 1, "b": None, "c": 0}
    own = Updates(opt_params={"a": OptParam(jnp.ones(1), None, 0.5)}).param_specs()["a"]
    assert own.weight_decay_scale == 0.5
    updates = Updates(opt_params={"a": 1, "b": {"c": 2}}, delta_updates={"a": 3, "b": {"c": 4}})
    masked = updates.mask(lambda tree: jax.tree.map(lambda p: p != "a", tree_paths(tree)))
    assert masked.opt_params == {"a": optax.MaskedNode(), "b": {"c": 2}}
    assert masked.delta_updates == {"a": optax.MaskedNode(), "b": {"c": 4}}
    base = {"a": 1, "b": {"c": optax.MaskedNode()}}
    new = {"a": optax.MaskedNode(), "b": {"c": 5, "d": 6}}
    assert _apply_updates(base, new) is base
    assert base == {"a": 1, "b": {"c": optax.MaskedNode(), "d": 6}}


# Several learners.


RULES = [("w", "weights"), (".*", "rest")]


def composite(**kwargs):
    kwargs.setdefault("learners", {
        "weights": Learner.default_config().set(optimizer=ADAM),
        "rest": Learner.default_config().set(
            optimizer=SGD, update_rules=[("b", UpdateType.NO_UPDATE)]
        ),
    })  # fmt: skip
    cfg = CompositeLearner.default_config().set(**{"name": "learner", "rules": RULES, **kwargs})
    return cfg.instantiate(parent=None)


def test_each_parameter_is_its_learners():
    learner = composite(
        ema=config_for_function(optimizers.param_ema).set(decay=0.5), norm_summaries=True
    )
    state = learner.init(opt_params())
    assert sorted(state) == ["ema", "rest", "weights"]
    assert state["weights"]["optimizer"].mu["b"] == optax.MaskedNode()
    trace = state["rest"]["optimizer"][0].trace
    assert (trace["w"], trace["b"]) == (optax.MaskedNode(), None)  # its own, and not updated
    assert jax.tree.structure(learner.create_state_partition_specs(specs())) == (
        jax.tree.structure(state)
    )
    updated = {"w": True, "b": False, "stats": {"mean": True}}
    assert learner.should_update_with_optimizers(opt_params()) == updated
    outputs, collection = jax.jit(lambda s: step_of(learner, s))(state)
    new = outputs.backward_outputs.updated_params
    adam = ADAM.instantiate()
    own = {"w": VALUES["w"]}
    expected, _ = jax.jit(adam.step)(own, adam.init(own), own)
    np.testing.assert_array_equal(new["w"], expected["w"])
    np.testing.assert_array_equal(new["b"], VALUES["b"])
    np.testing.assert_array_equal(new["stats"]["mean"], [7.0])  # in place, after the optimizer
    np.testing.assert_allclose(collection.state_updates["ema"].ema["stats"]["mean"], [3.5])
    assert jax.tree.structure(collection.state_updates) == jax.tree.structure(state)
    assert float(collection.summaries["gradient_norm"]) == pytest.approx((1 + 4 + 0) ** 0.5)
    assert float(collection.summaries["rest"]["optimizer"]["learning_rate"]) == pytest.approx(0.1)
    step_of(learner, collection.state_updates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": [(".*", "other")]}, "'other' is not found in the known learners"),
        ({"rules": [("w|b", "rest")]}, "rules do not update all model params: .*stats"),
        ({"learners": {"ema": Learner.default_config()}}, "Sublearner name cannot be ema"),
    ],
)
def test_rules_and_names_that_cannot_be(change, message):
    if "learners" in change:
        change = {**change, "rules": [(".*", "ema")]}
    with refused(ValueError, message):
        composite(**change).init(opt_params())


@pytest.mark.parametrize("field", ["ema", "forward_fn_transformation"])
def test_what_only_the_whole_can_have(field):
    own = Learner.default_config().set(optimizer=SGD)
    if field == "ema":
        own.ema.decay = 0.5
    else:
        own.forward_fn_transformation = forward
    with refused(ValueError, f"learner 'all' has {field}.*set it on learner itself"):
        composite(learners={"all": own}, rules=[(".*", "all")])


def test_undefined_losses_are_handled_if_all_do():
    def handles(*each):
        learners = {
            f"l{index}": Learner.default_config().set(optimizer=SGD, ignore_undefined_loss=value)
            for index, value in enumerate(each)
        }
        return composite(learners=learners, rules=[(".*", "l0")]).handles_undefined_loss()

    assert handles(True, True) and not handles(True, False)
