"""Every wrapper that Optax exports around optimizers of this project, in both precisions.

The wrappers are found by what their signatures say, so that a new one is seen.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import optax_bridge

PARAMS = {"dense": {"kernel": jnp.arange(12.0).reshape(4, 3) / 12 + 0.1, "bias": jnp.ones(3)}}
ALL = {"dense": {"kernel": True, "bias": True}}
NONE = jax.tree.map(lambda _: False, ALL)


def is_kernel(params: Any) -> Any:
    return jax.tree.map(lambda param: jnp.ndim(param) > 1, params)


def decayed(learning_rate: Any = 0.1) -> Any:
    return optax_bridge.adam(learning_rate, weight_decay=0.1)


# From a learning rate to an optimizer.
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in inspect.getmembers(optax_bridge, inspect.isfunction)
    if next(iter(inspect.signature(function).parameters), "") == "learning_rate"
} | {
    "adam with decay": decayed,
    "adafactor with momentum": lambda learning_rate=0.1: optax_bridge.adafactor(
        learning_rate, momentum=0.9, min_dim_size_to_factor=2, weight_decay_rate=0.1
    ),
    "scale_by_adam": lambda learning_rate=0.1: optax.chain(
        optax_bridge.scale_by_adam(), optax.scale_by_learning_rate(learning_rate)
    ),
    "weight_norm": lambda learning_rate=0.1: optax_bridge.weight_norm(decayed(learning_rate)),
    "multi_optimizer": lambda learning_rate=0.1: optax_bridge.multi_optimizer(
        (is_kernel, decayed(learning_rate))
    ),
    "frozen": lambda learning_rate=0.1: optax_bridge.frozen(is_kernel, decayed(learning_rate)),
}


# What a wrapper can do to an optimizer: the frame is the same for all of them.
REPRESENTATIVE = {"adam with decay": jnp.bfloat16, "multi_optimizer": jnp.float32}


def always(step: Any, *args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    return step >= 0


# Around an optimizer so that, where it is in NEUTRAL, nothing changes.
WRAPPERS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "MultiSteps": lambda make: optax.MultiSteps(make(0.1), 1),
    "apply_if_finite": lambda make: optax.apply_if_finite(make(0.1), 3),
    "chain": lambda make: optax.chain(optax.identity(), make(0.1)),
    "conditionally_mask": lambda make: optax.conditionally_mask(make(0.1), always),
    "conditionally_transform": lambda make: optax.conditionally_transform(make(0.1), always),
    "flatten": lambda make: optax.flatten(make(0.1)),
    "galore": lambda make: optax.contrib.galore(0.1, rank=2, base_optimizer=make(0.1)),
    "inject_hyperparams": lambda make: optax.inject_hyperparams(make, static_args=static(make))(
        learning_rate=0.1
    ),
    "lookahead": lambda make: optax.lookahead(make(0.1), 2, 0.5),
    "masked": lambda make: optax.masked(make(0.1), ALL),
    "mechanize": lambda make: optax.contrib.mechanize(make(0.1)),
    "monitor": lambda make: optax.chain(make(0.1), optax.monitor({"norm": optax.tree.norm})),
    "multi_transform": lambda make: optax.multi_transform({True: make(0.1)}, ALL),
    "named_chain": lambda make: optax.named_chain(("ours", make(0.1))),
    "partition": lambda make: optax.partition({True: make(0.1)}, ALL),
    "sam": lambda make: optax.contrib.sam(make(0.1), make(0.1)),
    "scale_by_galore": lambda make: optax.contrib.scale_by_galore(2, base_optimizer=make(0.1)),
    "schedule_free": lambda make: optax.contrib.schedule_free(make(0.1), 0.1),
    "selective_transform": lambda make: optax.selective_transform(make(0.1), freeze_mask=NONE),
    "split_real_and_imaginary": lambda make: optax.contrib.split_real_and_imaginary(make(0.1)),
    "with_extra_args_support": lambda make: optax.with_extra_args_support(make(0.1)),
}
NEUTRAL = (
    "MultiSteps", "apply_if_finite", "chain", "conditionally_mask", "conditionally_transform",
    "masked", "monitor", "multi_transform", "named_chain", "partition", "selective_transform",
    "split_real_and_imaginary", "with_extra_args_support",
)  # fmt: skip
# They hand no parameters to what is in them: optimizers that read them must say so, the others go.
WITHOUT_PARAMETERS = ("galore", "scale_by_galore")
READ_PARAMETERS = tuple(REPRESENTATIVE)
# They hand on one vector in place of the parameters, so that no group holds anything.
WITHOUT_PATHS = ("flatten",)
BY_PATHS = ("multi_optimizer",)
LEFT_OUT = {
    "inject_stateful_hyperparams": "the deprecated name of inject_hyperparams",
    "lbfgs": "what it takes is a line search",
    "sophia": "what it takes is an estimator of the curvature",
}


def exported() -> Iterator[str]:
    """Names of what takes a transformation, or a function that makes one."""
    for module in (optax, optax.contrib):
        for name, function in inspect.getmembers(module, callable):
            if name.startswith("_") or not (inspect.isfunction(function) or name == "MultiSteps"):
                continue
            parameters = inspect.signature(function).parameters.values()
            if any("GradientTransformation" in str(p.annotation) for p in parameters):
                yield name


EXPORTED = sorted(exported())


def test_every_wrapper_of_optax_is_here():
    assert {*EXPORTED} <= {*WRAPPERS, *LEFT_OUT}, "a new one: add it to WRAPPERS"
    assert len(EXPORTED) > 15


def static(make: Any) -> list[str]:
    """What Optax's documentation names for its own Adafactor."""
    return [n for n in ("min_dim_size_to_factor",) if n in inspect.signature(make).parameters]


def trained(tx: Any, name: str, dtype: Any, steps: int = 3) -> Any:
    """A state some steps on; under `scan`, which refuses a state that changes its dtypes."""
    params = jax.tree.map(lambda param: param.astype(dtype), PARAMS)
    grads = jax.tree.map(jnp.cos, params)
    given: Any = optax.LookaheadParams.init_synced(params) if name == "lookahead" else params
    state: Any = optax_bridge.TrainState.create(apply_fn=None, params=given, tx=tx)
    state = state.apply_gradients(grads=grads)  # monitor's has other fields before
    return jax.lax.scan(
        lambda state, _: (state.apply_gradients(grads=grads), None), state, length=steps - 1
    )[0]


PAIRS = [
    (name, optimizer, REPRESENTATIVE.get(optimizer, jnp.bfloat16))
    for name in EXPORTED
    for optimizer in OPTIMIZERS
    if name in WRAPPERS and (optimizer in REPRESENTATIVE or name == "chain")
]


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize(("name", "optimizer", "dtype"), PAIRS)
def test_it_takes_optimizers(name: str, optimizer: str, dtype: Any):
    tx = WRAPPERS[name](OPTIMIZERS[optimizer])
    if name in WITHOUT_PARAMETERS and optimizer in READ_PARAMETERS:
        with pytest.raises(ValueError, match=r"update\(grads, state, params\)"):
            jax.eval_shape(lambda: trained(tx, name, dtype))
        return
    if name in WITHOUT_PATHS and optimizer in BY_PATHS:
        with pytest.warns(UserWarning, match="none of the 1 parameters is selected"):
            jax.eval_shape(lambda: trained(tx, name, dtype))
        return
    state: Any = jax.eval_shape(lambda: trained(tx, name, dtype))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize("name", [name for name in EXPORTED if name in NEUTRAL])
def test_a_wrapper_that_changes_nothing_changes_nothing(name: str):
    make = OPTIMIZERS["multi_optimizer"]
    left, right = (
        jax.jit(lambda tx=tx: trained(tx, name, jnp.float32).params)()
        for tx in (WRAPPERS[name](make), make(0.1))
    )
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        # Under `lax.cond` by update and addition: one rounding more at each step.
        np.testing.assert_allclose(a, b, rtol=0, atol=3 * 2**-23)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_map_params_get_and_set(optimizer: str):
    tx = optax.chain(optax.clip_by_global_norm(1.0), OPTIMIZERS[optimizer](0.1))
    state = tx.init(PARAMS)
    mapped = optax.tree.map_params(
        tx, lambda leaf: leaf + 1, state, transform_non_params=lambda leaf: leaf - 1
    )
    assert jax.tree.structure(mapped) == jax.tree.structure(state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        is_count = jax.tree_util.keystr(path).endswith("count")
        changed = dict(jax.tree_util.tree_leaves_with_path(mapped))[path]
        np.testing.assert_array_equal(changed, leaf - 1 if is_count else leaf + 1)
    changed = optax.tree.set(state, count=7)
    assert 7 in [value for _, value in optax.tree.get_all_with_path(changed, "count")]
