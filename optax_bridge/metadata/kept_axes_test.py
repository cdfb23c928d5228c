"""Every transformation of Optax on boxed parameters: its state's places on a mesh, derived."""

import inspect
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from jax.sharding import AxisType

import optax_bridge
from optax_bridge.metadata import axis_metadata

P = nn.Partitioned
# A square kernel: which axis a row of it is, its shape does not tell.
PARAMS = {
    "kernel": P(jnp.ones((128, 128)), ("data", "model")),
    "table": P(jnp.ones((16, 8)), ("data", "model")),
    "bias": P(jnp.ones((128,)), ("model",)),
}
KERNELS = {"kernel": True, "table": True, "bias": False}


def members() -> Iterator[tuple[str, optax.GradientTransformation]]:
    """What Optax exports that is made from nothing, or from a learning rate."""
    for module in (optax, optax.contrib):
        for name, make in inspect.getmembers(module, inspect.isfunction):
            given = inspect.signature(make).parameters.values()
            required = {
                p.name for p in given if p.default is p.empty and p.kind is not p.VAR_KEYWORD
            }
            if name.startswith("_") or not required <= {"learning_rate"}:
                continue
            rate = {"learning_rate": 0.1} if any(p.name == "learning_rate" for p in given) else {}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of keys that a coming version wants
                made = make(**rate)
            if isinstance(made, optax.GradientTransformation):
                yield name, made


def adafactor(**kwargs: Any) -> optax.GradientTransformation:
    return optax.adafactor(0.1, **kwargs)


COMPOSED: dict[str, optax.GradientTransformation] = {
    "chain": optax.chain(optax.clip_by_global_norm(1.0), adafactor()),
    "MultiSteps": optax.MultiSteps(adafactor(), 2).gradient_transformation(),
    "apply_if_finite": optax.apply_if_finite(adafactor(), 3),
    "masked": optax.masked(adafactor(), KERNELS),
    "partition": optax.partition(
        {True: adafactor(), False: optax.adam(0.1)}, {k: bool(v) for k, v in KERNELS.items()}
    ),
    "inject_hyperparams": optax.inject_hyperparams(optax.adamw)(learning_rate=0.1),
    "sam": optax.contrib.sam(optax.sgd(0.1), optax.adam(0.1)),
    "schedule_free": optax.contrib.schedule_free(optax.adam(0.1), 0.1),
    "mechanize": optax.contrib.mechanize(optax.adam(0.1)),
    "multi_optimizer": optax_bridge.multi_optimizer((KERNELS, adafactor())),
}


def every_other(step: Any, *args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    return step % 2 == 0


CASES = {
    **dict(members()),
    **COMPOSED,
    # What a warning asks for where nothing else tells rows from columns.
    "asked for": optax.conditionally_transform(
        optax_bridge.with_axis_metadata(adafactor()), every_other
    ),
}


# Under `lax.cond`, whose outputs had no sharding in their types in older JAX.
UNDER_COND = ("apply_if_finite", "MultiSteps")
_OLDER = pytest.mark.skipif(
    jax.__version_info__ < (0, 10),
    reason="older JAX: lax.cond drops the axes; users are warned and told the remedy",
)


def _named(names: Iterable[str]) -> list[Any]:
    return [pytest.param(n, marks=_OLDER if n in UNDER_COND else ()) for n in names]


def mesh() -> Any:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.mark.parametrize("name", _named(CASES))
def test_the_state_lies_like_the_axes_that_it_keeps(name: str):
    tx = CASES[name]
    shardings = optax_bridge.opt_state_shardings(tx, PARAMS, mesh())
    state = jax.eval_shape(optax_bridge.with_axis_metadata(tx).init, PARAMS)
    assert jax.tree.structure(shardings) == jax.tree.structure(state)
    for path, leaf in axis_metadata.leaves_with_path(state):
        axis_metadata.names_of(leaf, axis_metadata.keystr(path))  # raises where ranks differ
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True):
        assert len(sharding.spec) <= leaf.ndim
        sharding.shard_shape(leaf.shape)  # raises where an axis cannot be divided
        if leaf.size >= 128:  # nothing large is whole everywhere
            assert not sharding.is_fully_replicated


def kept(state: Any) -> set[tuple[Any, ...]]:
    boxes = [leaf for _, leaf in axis_metadata.leaves_with_path(state) if isinstance(leaf, P)]
    return {box.names for box in boxes if box.value.shape == (128,) and len(box.names) == 1}


@pytest.mark.parametrize(
    "name", _named(["adafactor", "chain", *UNDER_COND, "masked", "partition", "asked for"])
)
def test_rows_and_columns_of_a_square_kernel_keep_their_own_names(name: str):
    state = jax.eval_shape(optax_bridge.with_axis_metadata(CASES[name]).init, PARAMS)
    assert kept(state) == {("data",), ("model",)}
    rows = [
        leaf.names
        for path, leaf in axis_metadata.leaves_with_path(state)
        if {"v_row", "kernel"} <= {*axis_metadata.key_names(path)} and isinstance(leaf, P)
    ]
    assert rows == [("data",)]
