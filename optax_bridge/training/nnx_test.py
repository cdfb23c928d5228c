"""A migrated optimizer drives NNX: the same trajectory, and a hand-off in mid-training."""

from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

import legacy_optim
import optax_bridge
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.entry import Entry
from optax_bridge.metadata import axis_metadata
from optax_bridge.training import nnx as nnx_optimizer

INPUTS = jnp.asarray(np.random.default_rng(0).standard_normal((16, 4)), jnp.float32)
RENAMED = {"Dense_1": "hidden", "Dense_0": "out"}  # Linen names in the order of construction


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(2)(nn.tanh(nn.Dense(8)(x)))


class Nnx(nnx.Module):
    def __init__(self):
        self.hidden = nnx.Linear(4, 8, rngs=nnx.Rngs(1))
        self.out = nnx.Linear(8, 2, rngs=nnx.Rngs(2))

    def __call__(self, x: Any) -> Any:
        return self.out(jnp.tanh(self.hidden(x)))


def rename(path: str) -> str:
    module, name = path.split("/")
    return f"{RENAMED[module]}/{name}"


def loss(apply: Any) -> Any:
    return jnp.mean((apply(INPUTS) - 1.0) ** 2)


def linen_state(tx: Any) -> Any:
    model = Linen()
    params = model.init(jax.random.key(0), INPUTS)["params"]
    return optax_bridge.TrainState.create(apply_fn=model.apply, params=params, tx=tx)


@jax.jit
def linen_step(state: Any) -> Any:
    grads = jax.grad(lambda p: loss(lambda x: state.apply_fn({"params": p}, x)))(state.params)
    return state.apply_gradients(grads=grads)


@nnx.jit
def nnx_step(model: Any, optimizer: Any) -> None:
    grads = nnx.grad(loss)(model)
    optimizer.update(model, grads)


def in_order(params: Any, model: Any) -> list[tuple[Any, Any]]:
    theirs = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return [
        (params[old][leaf], theirs[new][leaf])
        for old, new in RENAMED.items()
        for leaf in ("kernel", "bias")
    ]


# One optimizer with a plain state, and those whose states are of another form.
MOVED = [
    entry
    for entry in ENTRIES.values()
    if "nnx" not in entry.excluded and (entry.name == "adam" or entry.parts or entry.inferred)
]


@pytest.mark.parametrize("entry", MOVED, ids=lambda entry: entry.name)
def test_the_same_trajectory_after_a_hand_off_in_mid_training(entry: Entry):
    definition = entry.definition(entry.cases[0], entry.cases[0].learning_rate)
    state = linen_state(optax_bridge.from_legacy(definition))
    for _ in range(2):
        state = linen_step(state)
    model = Nnx()
    optimizer = nnx_optimizer.hand_off(state, model, rename=rename)
    for _ in range(3):
        state = linen_step(state)
        nnx_step(model, optimizer)
    assert int(optimizer.step[...]) == int(state.step) == 5
    for ours, theirs in in_order(state.params, model):
        np.testing.assert_array_equal(ours, theirs)


def test_update_returns_what_it_added():
    model = Nnx()
    optimizer = nnx_optimizer.Optimizer(model, optax_bridge.sgd(0.5), wrt=nnx.Param)
    before = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    updates = optimizer.update(model, nnx.grad(loss)(model))
    after = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    added = jax.tree.map(lambda a, b: a - b, after, before)
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(updates), added)


def test_a_sharded_model_under_a_mesh():
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("data", "model"))
        model = nnx.Linear(128, 256, kernel_init=init, rngs=nnx.Rngs(0))
        tx = optax_bridge.with_axis_metadata(optax.adafactor(0.1))
        optimizer = nnx_optimizer.Optimizer(model, tx, wrt=nnx.Param)
        before = np.asarray(model.kernel[...])
        step = nnx.jit(lambda model, optimizer, grads: optimizer.update(model, grads))
        step(model, optimizer, nnx.state(model, nnx.Param))
        assert np.any(before != np.asarray(model.kernel[...]))
        kept = axis_metadata.leaves_with_path(nnx.state(optimizer.opt_state))
    assert {("data",), ("model",)} <= {axis_metadata.names_of(box) for _, box in kept}
    if len(jax.tree.leaves(model.kernel)[0].sharding.device_set) > 1:  # from flax 0.12 on
        specs = {jax.tree.leaves(box)[0].sharding.spec for _, box in kept}
        assert {PartitionSpec("data"), PartitionSpec("model")} <= specs


class LinenNorm(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.BatchNorm(use_running_average=False, momentum=0.9)(nn.Dense(3)(x))
        return nn.Dropout(0.5, deterministic=False)(x)


class NnxNorm(nnx.Module):
    def __init__(self, dropouts: int = 1):
        self.dense = nnx.Linear(4, 3, rngs=nnx.Rngs(1))
        self.norm = nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(1))
        streams = nnx.Rngs(dropout=7)
        self.dropout = nnx.Dropout(0.0, rngs=streams)
        if dropouts == 2:
            self.another = nnx.Dropout(0.0, rngs=nnx.Rngs(dropout=8))

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.norm(self.dense(x)))


MODULES = {"Dense_0": "dense", "BatchNorm_0": "norm"}


def module_of(path: str) -> str:
    module, name = path.split("/")
    return f"{MODULES[module]}/{name}"


def full_state(**fields: Any) -> Any:
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = LinenNorm().init(keys, INPUTS)
    state = optax_bridge.FullTrainState.create(
        apply_fn=None, params=variables["params"], tx=optax_bridge.momentum(0.1),
        batch_stats={"BatchNorm_0": {"mean": jnp.arange(3.0), "var": jnp.arange(3.0) + 1}},
        ema_decay=0.9, rngs={"dropout": jax.random.key(5)}, **fields,
    )  # fmt: skip
    return state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params))


def variables(model: Any, kind: Any) -> Any:
    return nnx.to_pure_dict(nnx.state(model, kind))


def test_all_collections_the_average_and_the_keys_are_handed_over() -> None:
    state, model = full_state(), cast("Any", NnxNorm())
    model.mean = nnx.BatchStat(jnp.zeros(1))
    state = state.replace(batch_stats={**state.batch_stats, "mean": jnp.ones(1)})
    optimizer: Any = nnx_optimizer.hand_off(state, model, rename=module_of)
    assert variables(model, nnx.BatchStat)["mean"] == 1
    stats = variables(model, nnx.BatchStat)["norm"]
    np.testing.assert_array_equal(stats["mean"], state.batch_stats["BatchNorm_0"]["mean"])
    np.testing.assert_array_equal(stats["var"], state.batch_stats["BatchNorm_0"]["var"])
    assert jax.random.key_data(_leaf(variables(model, nnx.RngKey))).tolist() == [0, 5]
    assert int(_leaf(variables(model, nnx.RngCount))) == 1
    for _ in range(2):
        state = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params))
        grads = jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param))
        before = variables(model, nnx.Param)
        update = nnx.to_pure_dict(optimizer.update(model, grads))
        after = variables(model, nnx.Param)
        moved = jax.tree.map(jnp.subtract, after, before)
        jax.tree.map(np.testing.assert_array_equal, update, moved)
    average = nnx.to_pure_dict(optimizer.ema_params)
    for old, new in MODULES.items():
        for name, leaf in state.ema_params[old].items():
            np.testing.assert_array_equal(average[new][name], leaf)


def _leaf(tree: Any) -> Any:
    (leaf,) = jax.tree.leaves(tree)
    return leaf


def test_streams_of_one_name_get_keys_of_their_own() -> None:
    model = NnxNorm(dropouts=2)
    nnx_optimizer.hand_off(full_state(), model, rename=module_of)
    keys = [jax.random.key_data(k).tolist() for k in jax.tree.leaves(variables(model, nnx.RngKey))]
    folded = [jax.random.fold_in(jax.random.key(5), i) for i in range(2)]
    assert keys == [jax.random.key_data(k).tolist() for k in folded]


@pytest.mark.filterwarnings("ignore:hand_off.*left over")
def test_keys_go_on_and_collections_are_given_or_kept() -> None:
    state = full_state(dynamic_scale=legacy_optim.DynamicScale(), accumulate_every=2)
    state, model = state.replace(step=jnp.int32(3), micro_step=jnp.int32(1)), NnxNorm()
    nnx_optimizer.hand_off(state, model, rename=module_of)
    assert int(_leaf(variables(model, nnx.RngCount))) == 3 * 2 + 1  # one key for each call
    plain = full_state().replace(batch_stats=None)
    model = NnxNorm()
    stats = {"BatchNorm_0": {"mean": jnp.full(3, 4.0), "var": jnp.full(3, 5.0)}}
    nnx_optimizer.hand_off(plain, model, rename=module_of, collections={"batch_stats": stats})
    assert float(variables(model, nnx.BatchStat)["norm"]["var"][0]) == 5.0
    model = NnxNorm()
    nnx_optimizer.hand_off(plain, model, rename=module_of, missing="keep")
    assert float(variables(model, nnx.BatchStat)["norm"]["mean"][0]) == 0.0


def hand(state: Any, make: Any = NnxNorm, rename: Any = module_of, **options: Any) -> Any:
    new = nnx_optimizer.hand_off(state, make(), rename=rename, **options)
    return f"an optimizer of {type(new).__module__.partition('.')[0]}"


def one(**leaves: Any) -> Any:
    """A state over the parameters of one layer, some of them changed."""
    params = {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3), **leaves}
    return optax_bridge.TrainState.create(None, params, optax_bridge.adam(0.1))


def linear() -> nnx.Linear:
    return nnx.Linear(2, 3, rngs=nnx.Rngs(0))


def with_squares(nu: Any) -> Any:
    """A state whose second moments are these."""
    state = one()
    return state.replace(opt_state=state.opt_state._replace(nu={"kernel": W, "bias": nu}))


W, HALF = jnp.ones((2, 3)), jnp.zeros(3, jnp.bfloat16)
STATS = {"BatchNorm_0": {"mean": jnp.zeros(3), "var": jnp.ones(3)}}
SAID: dict[str, Any] = {
    "other names": lambda: hand(linen_state(optax_bridge.sgd(0.1)), Nnx, lambda path: path),
    "missing": lambda: hand(linen_state(optax_bridge.sgd(0.1)), Nnx, rename, missing="drop"),
    "another state": lambda: hand(
        linen_state(optax_bridge.sgd(0.1)).replace(tx=optax_bridge.momentum(0.1)), Nnx, rename
    ),
    "left over": lambda: hand(
        full_state(dynamic_scale=legacy_optim.DynamicScale(), accumulate_every=2)
    ),
    "an average": lambda: hand(full_state(), optimizer=nnx.Optimizer),
    "keys": lambda: hand(full_state().replace(rngs={"noise": jax.random.key(0)})),
    "no statistics": lambda: hand(full_state().replace(batch_stats=None)),
    "statistics kept": lambda: hand(full_state().replace(batch_stats=None), missing="keep"),
    "statistics given": lambda: hand(
        full_state().replace(batch_stats=None), collections={"batch_stats": STATS}
    ),
    "short statistics": lambda: hand(
        full_state().replace(batch_stats=jax.tree.map(lambda leaf: leaf[:2], STATS))
    ),
    "another shape": lambda: hand(one(bias=jnp.zeros(4)), linear, str),
    "parameters in half precision": lambda: hand(
        one(kernel=W.astype(HALF.dtype), bias=HALF), linear, str
    ),
    "some in half precision": lambda: hand(one(bias=HALF), linear, str),
    "whole numbers": lambda: hand(one(bias=jnp.zeros(3, jnp.int8)), linear, str),
    "NaN in parameters": lambda: hand(one(bias=jnp.full(3, jnp.nan)), linear, str),
    "NaN let through": lambda: hand(one(bias=jnp.full(3, jnp.nan)), linear, str, allow_nan=True),
    "NaN in moments": lambda: hand(with_squares(W[0] * jnp.nan), linear, str),
    "NaN in moments, let through": lambda: hand(
        with_squares(W[0] * jnp.nan), linear, str, allow_nan=True
    ),
    "below 0": lambda: hand(with_squares(-W[0]), linear, str),
}


def test_what_does_not_go_over_is_said(recorded: Any) -> None:
    recorded("nnx.txt", SAID)
