"""Which arguments a transformation takes per call, asked of real Optax transformations."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_bridge
from optax_bridge import accepted_arguments
from optax_bridge.exact.arguments import unused_arguments
from optax_bridge.exact.leaf_rule import is_zero


def scale_by_weight() -> optax.GradientTransformationExtraArgs:
    """A transformation of a user's own, with a named extra argument."""

    def update(updates: Any, state: Any, params: Any = None, *, weight: Any, **extra: Any) -> Any:
        del params, extra
        return updates * weight, state

    function: Any = update  # the protocol's type knows no arguments by name
    return optax.GradientTransformationExtraArgs(lambda params: (), function)


def scale_by_anything() -> optax.GradientTransformationExtraArgs:
    """One that reads all its extra arguments, whatever they are called."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        values: Any = (value(params, 0) if callable(value) else value for value in extra.values())
        return updates * sum(values), state

    return optax.GradientTransformationExtraArgs(lambda params: (), update)


TAKEN = [
    (optax.scale(0.1), set()),
    (optax_bridge.sgd(0.1), {"learning_rate"}),
    (
        optax_bridge.weight_norm(optax_bridge.momentum()),
        {"wn_decay", "wn_eps", "learning_rate", "decay", "weight_decay", "nesterov"},
    ),
    (
        optax_bridge.multi_optimizer(({}, optax_bridge.sgd()), ({}, optax.scale(0.1))),
        {"hyper_params", "learning_rate"},
    ),
    (optax.GradientTransformation(lambda _: (), lambda u, s, p=None, v=0, *, w=1: (u, s)), {*"vw"}),  # type: ignore[arg-type]
    # What has `**extra` does not say.
    (optax.sgd(0.1), None),
    (optax.contrib.reduce_on_plateau(), None),
    (optax_bridge.multi_optimizer(({}, optax.sgd(0.1))), None),
]


@pytest.mark.parametrize(("tx", "names"), TAKEN)
def test_the_names_that_are_taken(tx: Any, names: set[str] | None):
    assert accepted_arguments(tx) == names


GIVEN = {
    "learning_rate": 0.5,
    "weight": jnp.ones(()),
    "value": 1.0,
    "grad_fn": lambda params, _: jnp.ones_like(params),
}
USED = {
    "alias": (optax.adamw(0.1), set()),
    "chain of aliases": (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)), set()),
    "MultiSteps": (optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(), set()),
    "MultiSteps of ours": (optax.MultiSteps(optax_bridge.sgd(), 2), {"learning_rate"}),
    "apply_if_finite": (optax.apply_if_finite(optax_bridge.adam(0.1), 2), {"learning_rate"}),
    "plateau": (optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), {"value"}),
    "masked": (optax.masked(scale_by_weight(), True), {"weight"}),
    "partition": (optax.partition({"a": scale_by_weight(), "b": optax.sgd(0.1)}, "a"), {"weight"}),
    "chain of ours": (optax.chain(optax.clip(1.0), optax_bridge.sgd(0.1)), {"learning_rate"}),
    "reads all": (optax.chain(optax.clip(1.0), scale_by_anything()), {*GIVEN}),
    "polyak": (optax.polyak_sgd(), {"value"}),
    "function": (
        optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True),
        {"grad_fn"},
    ),
    "groups": (
        optax_bridge.multi_optimizer((True, optax.chain(optax_bridge.sgd()))),
        {"learning_rate"},
    ),
}


@pytest.mark.parametrize(("tx", "used"), USED.values(), ids=USED)
def test_what_has_no_part_in_a_step_is_found_by_trying(tx: Any, used: set[str]):
    params = jnp.ones(2)
    unused = unused_arguments(tx, params, tx.init(params), params, GIVEN)
    assert set(unused) == GIVEN.keys() - used


@pytest.mark.parametrize("as_transformation", [False, True])
def test_arguments_reach_what_multi_steps_accumulates_for(as_transformation: bool):
    inner = optax.chain(optax_bridge.adam(), optax.contrib.reduce_on_plateau(0.5, patience=1))
    steps = optax.MultiSteps(inner, 2)
    tx = cast(Any, steps.gradient_transformation() if as_transformation else steps)
    params = cast(Any, jnp.ones(3))
    state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
    opt_state = tx.init(params)
    for step in range(6):
        grads = jnp.arange(3.0) + step
        updates, opt_state = steps.update(grads, opt_state, params, learning_rate=0.5, value=1.0)
        params = optax.apply_updates(params, updates)
        state = state.apply_gradients(grads=grads, learning_rate=0.5, value=1.0)
    np.testing.assert_array_equal(state.params, params)
    assert np.all(np.asarray(params) < 0.5)


def test_only_what_is_known_to_be_zero_is_zero():
    """A decay that may be anything, as traced ones and one for each of an ensemble, is applied."""
    for zero in (None, 0, 0.0, False, np.float32(0), jnp.zeros(())):
        assert is_zero(zero)
    for other in (1e-9, -1, np.float32(3), jnp.ones(()), jnp.zeros(2), np.zeros((1, 1))):
        assert not is_zero(other)
    seen = []
    jax.jit(lambda x: seen.append(is_zero(x)))(0.0)
    assert seen == [False]


def test_of_a_step_that_cannot_be_taken_nothing_is_known():
    def fails(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        raise RuntimeError("not this step")

    params = {"w": jnp.ones(2)}
    tx = optax.GradientTransformationExtraArgs(lambda params: (), fails)
    assert unused_arguments(tx, params, (), params, {"weight": 2.0}) == []
    taken, params = scale_by_weight(), jnp.ones(2)
    for shape in (jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(2), {1: 2.0}):
        given = {"weight": 2.0, "more": shape}
        assert unused_arguments(taken, params, (), params, given) == ["more"]
    for known in ("text", {1}):  # a set cannot be hashed
        given = {"weight": 2.0, "other": 2.0, "more": known}
        assert unused_arguments(taken, params, (), params, given) == ["other"]


def test_a_number_is_no_array_of_a_wider_dtype_when_a_step_is_tried():
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params
        scaled = jax.lax.cond(True, lambda: updates * extra["weight"], lambda: updates)
        return scaled, state

    tx = optax.GradientTransformationExtraArgs(lambda params: (), update)
    half = jnp.ones(2, jnp.bfloat16)
    assert unused_arguments(tx, half, (), half, {"weight": 2.0, "other": 1.0}) == ["other"]


def test_a_rate_for_this_step_goes_before_a_schedule():
    scheduled, ones = optax_bridge.sgd(lambda count: 0.125), jnp.ones(2)
    new, _ = scheduled.step(ones, scheduled.init(ones), ones, learning_rate=0.5)
    np.testing.assert_array_equal(new, [0.5, 0.5])


def test_a_setting_that_is_a_flag_is_one_in_a_step_too():
    tx, ones = optax_bridge.momentum(0.1), jnp.ones(2)
    plain, _ = tx.step(ones, tx.init(ones), ones, nesterov=False)
    ahead, _ = tx.step(ones, tx.init(ones), ones, nesterov=True)
    assert (plain != ahead).all()


def test_an_argument_that_the_state_holds_unchanged_is_made_use_of():
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del state, params
        return updates, extra["loss"]

    tx = optax.chain(
        optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update), optax.scale(2)
    )
    params = jnp.ones(2)
    extra = {"loss": jnp.float32(3), "los": jnp.float32(3)}
    assert unused_arguments(tx, params, tx.init(params), params, extra) == ["los"]
