"""What a TrainState says of names and calls that an Optimizer of flax.optim had."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.training.old_names import OLD_ATTRIBUTES

PARAMS = {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}
STATES = {
    kind.__name__: kind.create(apply_fn=None, params=PARAMS, tx=optax_bridge.adam(0.1))
    for kind in (optax_bridge.TrainState, optax_bridge.FullTrainState)
}


def test_an_old_attribute_is_missing_by_its_name():
    for state in STATES.values():
        for name in OLD_ATTRIBUTES:
            assert not hasattr(state, name)
            with pytest.raises(AttributeError) as error:
                getattr(state, name)
            assert (error.value.name, error.value.obj) == (name, state)


def test_every_public_name_of_an_optimizer_is_known():
    optimizer = legacy_optim.Adam(0.1).create(PARAMS)
    names = {name for name in dir(optimizer) if not name.startswith("_")}
    assert names - set(dir(STATES["TrainState"])) <= OLD_ATTRIBUTES.keys()


def test_a_field_of_ones_own_may_have_an_old_name():
    class Own(optax_bridge.TrainState):
        target: Any = None

    state = Own.create(apply_fn=None, params=PARAMS, tx=optax_bridge.sgd(0.1), target=3)
    assert state.target == 3
    assert state.apply_gradients(grads=PARAMS, target=4).target == 4


def _is_the_same(state: Any) -> bool:
    return jax.tree.all(jax.tree.map(jnp.array_equal, state, STATES["TrainState"]))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda s: s.replace()], ids=["copy", "deepcopy", "replace"]
)
def test_copies_and_trees_are_not_disturbed(copied: Callable[[Any], Any]):
    state = STATES["TrainState"]
    assert _is_the_same(copied(state))
    assert _is_the_same(jax.jit(lambda s: s)(state))


def _twice(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.stack([x, x]), tree)


class Own(optax_bridge.TrainState):
    """A state with a property of an old name that asks for what is not there."""

    @property
    def target(self) -> Any:
        return getattr(self, "mistake")  # noqa: B009


STATE = STATES["TrainState"]
ANY: Any = STATE  # calls that no type allows
TX = optax_bridge.sgd(0.1)
OLD = legacy_optim.Adam(0.1)
PAIRS = jax.tree.map(lambda leaf: leaf[..., None], PARAMS)


def create(params: Any = PARAMS, **fields: Any) -> Any:
    return optax_bridge.FullTrainState.create(apply_fn=None, params=params, tx=TX, **fields)


SAID: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: getattr(STATE, name) for name in OLD_ATTRIBUTES},
    "no attribute": lambda: ANY.other,
    "a mistake within a property": lambda: Own.create(apply_fn=None, params=PARAMS, tx=TX).target,
    "by position": lambda: ANY.apply_gradients(PARAMS),
    "by position, accumulating": lambda: create(accumulate_every=2).apply_gradients(PARAMS),
    "update": lambda: ANY.update(PARAMS),
    "by another name": lambda: ANY.apply_gradients(gradients=PARAMS),
    "updates": lambda: ANY.apply_gradients(updates=PARAMS),
    "none": lambda: ANY.apply_gradients(learning_rate=1),
    "what a step sets": lambda: ANY.apply_gradients(grads=PARAMS, step=1, params=PARAMS),
    "no such field": lambda: ANY.create(None, PARAMS, TX, ema_decay=0.5, batch_stats={}),
    "text": lambda: ANY.create(None, {"a": b"1"}, TX),
    "text as a gradient": lambda: ANY.apply_gradients(grads={**PARAMS, "bias": "0"}),
    "another leaf": lambda: ANY.apply_gradients(grads={"kernel": 1.0, "biases": 1.0}),
    "another container": lambda: create([PARAMS]).apply_gradients(grads=(PARAMS,)),
    "another shape": lambda: ANY.apply_gradients(grads={**PARAMS, "bias": jnp.ones(3)}),
    "one axis more": lambda: ANY.apply_gradients(grads={**PARAMS, "bias": jnp.ones((3, 2))}),
    "one axis more at the end": lambda: ANY.apply_gradients(grads=PAIRS),
    "no step so often": lambda: create(accumulate_every=0),
    "above 1": lambda: create(ema_decay=1.5),
    "below 0": lambda: create(ema_decay=-0.1),
    "at the limits": lambda: create(ema_decay=1, accumulate_every=1).ema_decay,
    "at the other limit": lambda: create(ema_decay=0).ema_decay,
    "replicated": lambda: _twice(STATE).apply_gradients(grads=PARAMS),
    "replicated, accumulating": lambda: _twice(create(accumulate_every=2)).apply_gradients(
        grads=PARAMS
    ),
    "replicated gradients": lambda: STATE.apply_gradients(grads=_twice(PARAMS)),
    "replicated optimizer": lambda: ANY.from_legacy(_twice(OLD.create(PARAMS))),
    "replicated, to legacy": lambda: _twice(STATE).to_legacy(OLD),
}


def test_what_has_another_name_or_cannot_be_is_said(recorded: Any):
    recorded("old_names.txt", SAID)
