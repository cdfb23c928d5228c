"""Linen models created and trained on a mesh: nothing whole on one device, scans, collections."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import optax_bridge

RULES = (("batch", "data"), ("embed", "data"), ("mlp", "model"), ("layers", None))


def mesh(kind: Any = AxisType.Auto, shape: tuple[int, int] = (2, 4)) -> Any:
    devices = jax.devices()[: shape[0] * shape[1]]
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2, devices=devices)


class Layer(nn.Module):
    """A residual layer with a running mean and dropout; its parameters have logical names."""

    width: int = 64
    dropout: float = 0.5

    @nn.compact
    def __call__(self, x: Any, train: bool) -> tuple[Any, None]:
        def named(*names: str) -> Any:
            return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)

        mean = self.variable("batch_stats", "mean", jnp.zeros, (x.shape[-1],))
        if train:
            mean.value = 0.9 * mean.value + 0.1 * x.mean(0)
        y = nn.Dense(self.width, kernel_init=named("embed", "mlp"), use_bias=False)(x - mean.value)
        y = nn.Dropout(self.dropout, deterministic=not train)(nn.relu(y))
        y = nn.Dense(x.shape[-1], kernel_init=named("mlp", "embed"), use_bias=False)(y)
        return x + y, None


class Stack(nn.Module):
    """Three layers under `nn.scan`."""

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        lift: Any = nn.scan
        scan = lift(
            Layer,
            variable_axes={"params": 0, "batch_stats": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=3,
            metadata_params={meta.PARTITION_NAME: "layers"},
        )
        return scan(name="stack")(x, train)[0]


X = jnp.asarray(np.random.default_rng(0).standard_normal((16, 32)), jnp.float32)


class State(optax_bridge.TrainState):
    batch_stats: Any


def create(where: Any, model: nn.Module, tx: Any) -> State:
    return State.create_sharded(
        mesh=where, rules=RULES, init=lambda: model.init(jax.random.key(0), X, False),
        apply_fn=model.apply, tx=tx,
    )  # fmt: skip


def train_step(state: State, x: Any) -> tuple[State, Any]:
    def loss(params: Any) -> Any:
        variables = {"params": params, "batch_stats": state.batch_stats}
        rngs = {"dropout": jax.random.fold_in(jax.random.key(1), state.step)}
        y, new = state.apply_fn(variables, x, True, rngs=rngs, mutable=["batch_stats"])
        return jnp.mean((y - 1.0) ** 2), new["batch_stats"]

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=stats), value


BY_AXIS = {"layers": "batch", "embed": "row", "mlp": "column"}


def test_logically_partitioned_models_train_as_on_one_device():
    model, where = Stack(), mesh()
    tx = optax_bridge.adafactor(0.01, axis_rules=BY_AXIS)
    state = create(where, model, tx)
    alone = jax.tree.map(np.array, state)  # a copy: the step donates it
    kernel = state.params["stack"]["Dense_0"]["kernel"]
    assert isinstance(kernel, nn.LogicallyPartitioned)
    assert kernel.names == ("layers", "embed", "mlp")
    assert kernel.value.sharding.spec == PartitionSpec(None, "data", "model")
    assert kernel.value.addressable_shards[0].data.shape == (3, 16, 16)
    shardings = optax_bridge.state_shardings(state, where, RULES)
    step = jax.jit(train_step, out_shardings=(shardings, None), donate_argnums=0)
    x = jax.device_put(X, NamedSharding(where, PartitionSpec("data")))
    one = jax.jit(train_step)
    losses = []
    for _ in range(4):
        (state, value), (alone, _) = step(state, x), one(alone, X)
        losses.append(float(value))
    assert losses[-1] < losses[0]
    assert np.any(np.asarray(state.batch_stats["stack"]["mean"]) != 0)
    opt_state: Any = state.opt_state
    row = opt_state.v_row["stack"]["Dense_0"]["kernel"]
    assert row.names == ("layers", "embed")
    assert row.value.sharding.spec == PartitionSpec(None, "data")
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(alone), strict=True):
        # Sums over 16 rows and 64 units in another order: 8 ULP a step by the square root of the
        # terms. (Adam would divide by its own size a gradient that is next to nothing.)
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if ours.dtype == np.float32:
            atol = 32 * np.spacing(np.abs(theirs).max())
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_nothing_is_ever_whole_on_one_device(kind: Any):
    where, model = mesh(kind), Stack()
    tx = optax_bridge.adam(0.01)
    before = {id(array) for array in jax.live_arrays()}
    state = create(where, model, tx)
    whole = 3 * 32 * 64
    for array in jax.live_arrays():  # nothing is left over from the creation either
        if id(array) not in before:
            assert max(s.data.size for s in array.addressable_shards) <= whole // 8
    large = [leaf for leaf in jax.tree.leaves(state) if leaf.size >= whole]
    assert len(large) == 6  # two kernels, two moments of each
