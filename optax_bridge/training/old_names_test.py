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
NEW = {
    "target": "state.params",
    "state": "state.step",
    "optimizer_def": "state.tx",
    "apply_gradient": "state.apply_gradients(grads=",
    "compute_gradient": "jax.value_and_grad(loss_fn)(state.params)",
    "replicate": "flax.jax_utils.replicate(state)",
    "state_dict": "flax.serialization.to_state_dict(state)",
    "restore_state": "optax_bridge.checkpoints.from_state_dict(state, saved)",
}


@pytest.mark.parametrize("name", NEW)
def test_an_old_attribute_says_the_new_one(name: str):
    for state in STATES.values():
        with pytest.raises(AttributeError) as error:
            getattr(state, name)
        assert NEW[name] in str(error.value)
        assert (error.value.name, error.value.obj) == (name, state)
        assert not hasattr(state, name)


def test_every_public_name_of_an_optimizer_is_known():
    optimizer = legacy_optim.Adam(0.1).create(PARAMS)
    names = {name for name in dir(optimizer) if not name.startswith("_")}
    assert names - set(dir(STATES["TrainState"])) <= OLD_ATTRIBUTES.keys()


def test_other_missing_attributes_say_what_python_says():
    with pytest.raises(AttributeError, match=r"^'TrainState' object has no attribute 'other'$"):
        getattr(STATES["TrainState"], "other")  # noqa: B009

    class Own(optax_bridge.TrainState):
        @property
        def target(self) -> Any:
            return getattr(self, "mistake")  # noqa: B009

    with pytest.raises(AttributeError, match="no attribute 'mistake'"):
        _ = Own.create(apply_fn=None, params=PARAMS, tx=optax_bridge.sgd(0.1)).target


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


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "by-position": (lambda s: s.apply_gradients(PARAMS), r"\(grads=...\), found them by position"),
    "update": (lambda s: s.update(PARAMS), r"\(grads=...\), found them by position"),
    "other-name": (lambda s: s.apply_gradients(gradients=PARAMS), "found gradients="),
    "none": (lambda s: s.apply_gradients(learning_rate=1), "found none"),
}


@pytest.mark.parametrize("case", CALLS)
def test_gradients_go_by_keyword(case: str):
    call, message = CALLS[case]
    for kind, state in STATES.items():
        with pytest.raises(TypeError, match=f"{kind}.apply_gradients takes .*{message}"):
            call(state)


def _twice(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.stack([x, x]), tree)


REPLICATED: dict[str, Callable[[], Any]] = {
    "step": lambda: _twice(STATES["TrainState"]).apply_gradients(grads=PARAMS),
    "accumulating": lambda: _twice(
        optax_bridge.FullTrainState.create(
            apply_fn=None, params=PARAMS, tx=optax_bridge.sgd(0.1), accumulate_every=2
        )
    ).apply_gradients(grads=PARAMS),
    "gradients": lambda: STATES["TrainState"].apply_gradients(grads=_twice(PARAMS)),
    "from-legacy": lambda: optax_bridge.TrainState.from_legacy(
        _twice(legacy_optim.Adam(0.1).create(PARAMS))
    ),
    "to-legacy": lambda: _twice(STATES["TrainState"]).to_legacy(legacy_optim.Adam(0.1)),
}


@pytest.mark.parametrize("case", REPLICATED)
def test_what_is_replicated_says_so(case: str):
    with pytest.raises(ValueError, match=r"replicated.*unreplicate") as error:
        REPLICATED[case]()
    assert "replicated" in str(error.value)
