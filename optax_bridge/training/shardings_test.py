"""Training on eight devices: one device's trajectory, and checkpoints from mesh to mesh."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import optax_bridge
from optax_bridge.training.shardings import _Located

SIZE, HEADS = 16, 2


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    jax.config.update("jax_default_matmul_precision", "highest")  # put back by conftest


def block(params: Any, x: Any) -> Any:
    """A pre-norm transformer block over (batch, length, SIZE)."""

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    q, k, v = (jnp.einsum("ble,ehd->blhd", norm(x), params["attend"][n]) for n in "qkv")
    weights = jax.nn.softmax(jnp.einsum("blhd,bmhd->bhlm", q, k) / SIZE**0.5)
    x = x + jnp.einsum("bhlm,bmhd,hde->ble", weights, v, params["attend"]["out"])
    return x + jax.nn.gelu(norm(x) @ params["mlp"]["up"]) @ params["mlp"]["down"]


def init() -> Any:
    phases = iter(range(1, 7))

    def waves(*shape: int) -> Any:  # compiled in a tenth of the time of random numbers
        return (
            jnp.cos(jnp.arange(np.prod(shape)) * (1.0 + next(phases) / 7)).reshape(shape)
            / SIZE**0.5
        )

    attend = {name: waves(SIZE, HEADS, SIZE) for name in "qkv"}
    attend["out"] = waves(HEADS, SIZE, SIZE)
    return {"attend": attend, "mlp": {"up": waves(SIZE, 32), "down": waves(32, SIZE)}}


# In ULP, of the program as anyone compiles it: split sums, XLA's simplifier and the contraction of
# products and sums all round in another way on eight devices, which `equivalence_tests/sharded.py`
# tells apart. The sums have 64 terms, whose order makes 8 by the square root; seen at most 3.
OTHERWISE_COMPILED = 16

DATA = jnp.asarray(np.random.default_rng(0).standard_normal((16, 4, SIZE)), jnp.float32)


def train_step(state: Any, x: Any) -> Any:
    grads = jax.grad(lambda p: jnp.mean((block(p, x) - 1.0) ** 2))(state.params)
    return state.apply_gradients(grads=grads)


def replicated(path: str, value: Any) -> Any:
    del path, value
    return PartitionSpec()


def fsdp(path: str, value: Any) -> Any:
    """The first axis that can be divided."""
    del path
    first = next(i for i, size in enumerate(value.shape) if size % 8 == 0)
    return PartitionSpec(*[None] * first, "devices")


def tensor(path: str, value: Any) -> Any:
    del value
    return {
        "/mlp/up": PartitionSpec(None, "devices"),
        "/mlp/down": PartitionSpec("devices"),
    }.get(path, PartitionSpec())


# rule for the parameters, how the batch lies, and whether a sum is split over devices
RUNS = {
    "fsdp": (fsdp, PartitionSpec("devices")),
    "tensor": (tensor, PartitionSpec()),
    "data": (replicated, PartitionSpec("devices")),
    "replicated": (replicated, PartitionSpec()),
}
OPTIMIZERS = {
    # eps: Adam divides by the size of a gradient, and one that cancels to nothing is all rounding.
    "adam": lambda: optax_bridge.adam(0.01, weight_decay=0.01, eps=1e-3),
    "adafactor": lambda: optax_bridge.adafactor(0.01, min_dim_size_to_factor=8),
    "stock adafactor": lambda: optax.adafactor(0.01, min_dim_size_to_factor=8),
}


def mesh(kind: Any = AxisType.Auto, devices: Any = None) -> Any:
    count = 8 if devices is None else len(devices)
    return jax.make_mesh((count,), ("devices",), axis_types=(kind,), devices=devices)


def create(tx: Any, where: Any, rule: Any) -> Any:
    return optax_bridge.TrainState.create_sharded(
        mesh=where, rules=rule, init=init, apply_fn=None, tx=tx
    )


def assert_close(left: Any, right: Any, ulps: int) -> None:
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        scale = np.spacing(np.abs(b).max()) if b.dtype == np.float32 else 0
        np.testing.assert_allclose(a, b, rtol=0, atol=ulps * scale)


def alone_on_one_device(tx: Any) -> Any:
    """Made by the same compiled initializer: eager arithmetic would start from other last bits."""
    return create(tx, mesh(devices=jax.devices()[:1]), replicated)


@pytest.mark.parametrize(
    ("run", "optimizer"),
    [("fsdp", "stock adafactor"), ("tensor", "adafactor"), ("data", "adam")],
)
def test_eight_devices_give_the_trajectory_of_one(run: str, optimizer: str):
    rule, batch = RUNS[run]
    tx = OPTIMIZERS[optimizer]()
    where = mesh()
    alone = alone_on_one_device(tx)
    state = create(tx, where, rule)
    shardings = optax_bridge.state_shardings(state, where, rule)
    step = jax.jit(train_step, out_shardings=shardings, donate_argnums=0)
    x = jax.device_put(DATA, NamedSharding(where, batch))
    one = jax.jit(train_step)
    start = alone.params
    for _ in range(3):
        state, alone = step(state, x), one(alone, DATA)
    assert step._cache_size() == 1  # type: ignore[attr-defined]
    assert jax.tree.map(lambda x: x.sharding, state.params) == shardings.params
    assert_close(state.params, alone.params, OTHERWISE_COMPILED)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), alone.params, start)
    assert min(jax.tree.leaves(moved)) > 1e-3


@pytest.mark.parametrize("rule", [fsdp, tensor, replicated])
def test_given_the_same_gradients_no_sum_is_split_and_a_step_rounds_by_one_ulp_at_most(rule: Any):
    tx = OPTIMIZERS["adam"]()
    grads = jax.tree.map(jnp.cos, init())

    @jax.jit
    def step(state: Any) -> Any:
        return state.apply_gradients(grads=grads)

    alone = alone_on_one_device(tx)
    state = jax.device_put(alone, optax_bridge.state_shardings(alone, mesh(), rule))
    for _ in range(3):
        state, alone = step(state), step(alone)
    # XLA's simplifier makes x * (1 / c) of x / c on one device and not on eight: 1 ULP each step.
    assert_close(state, alone, 3)


def test_reduced_statistics_lie_like_the_axes_they_keep():
    state = create(OPTIMIZERS["adafactor"](), mesh(), tensor)
    assert state.opt_state.v_row["mlp"]["down"].shape == (SIZE,)  # the longer axis is reduced
    assert state.opt_state.v_col["mlp"]["down"].sharding.spec == PartitionSpec("devices")
    assert state.opt_state.v_row["mlp"]["down"].sharding.is_fully_replicated
    assert len(state.params["mlp"]["up"].addressable_shards[0].data[0]) == 4


def test_an_explicit_mesh():
    where = mesh(AxisType.Explicit)
    tx = OPTIMIZERS["adafactor"]()
    with jax.set_mesh(where):
        state = create(tx, where, replicated)
        x = jax.device_put(DATA, NamedSharding(where, PartitionSpec("devices")))
        new = jax.jit(train_step)(state, x)
    alone = alone_on_one_device(tx)
    assert_close(new.params, jax.jit(train_step)(alone, DATA).params, OTHERWISE_COMPILED)


def test_saved_on_one_mesh_goes_on_identically_on_another(tmp_path: Path):
    tx = OPTIMIZERS["adafactor"]()
    first, second = mesh(), mesh(devices=jax.devices()[:4])
    state = jax.jit(train_step)(create(tx, first, fsdp), DATA)
    template = create(tx, second, tensor)
    shardings = optax_bridge.state_shardings(template, second, tensor)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        abstract = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), template, shardings
        )
        restored = checkpointer.restore(tmp_path / "state", abstract)
    assert_close(restored, state, 0)
    assert jax.tree.map(lambda x: x.sharding, restored) == shardings
    # From here on the same bits wherever it lies: a step on its own, on one device.
    on_one = [jax.device_put(s, jax.devices()[0]) for s in (state, restored)]
    left, right = (jax.jit(train_step)(s, DATA) for s in on_one)
    assert_close(left, right, 0)


def test_what_is_like_the_parameters_lies_where_they_do_and_the_rest_everywhere():
    params = {"w": jnp.ones((8, 2))}
    state = optax_bridge.FullTrainState.create(
        apply_fn=None, params=params, tx=optax_bridge.sgd(0.1), ema_decay=0.9,
        accumulate_every=2, batch_stats={"mean": jnp.ones(8)},
    )  # fmt: skip
    found: Any = optax_bridge.state_shardings(state, mesh(), fsdp)
    assert found.params["w"].spec[0] == "devices"
    assert found.params == found.ema_params == found.accumulated
    assert found.batch_stats["mean"].is_fully_replicated and found.step.is_fully_replicated


def test_an_axis_that_comes_and_goes_leaves_the_others_where_they_were():
    box = _Located(jnp.ones((2, 3, 4)), ("a", "b", "c"))
    for index, left in ((0, ("b", "c")), (1, ("a", "c")), (2, ("a", "b"))):
        assert box.remove_axis(index, {}).spec == left
        assert box.remove_axis(index, {}).add_axis(index, {}).remove_axis(index, {}).spec == left


def test_a_box_gives_what_is_in_it_and_takes_another():
    box = _Located(1, ("a",)).replace_boxed(2)
    assert (box, box.unbox()) == (_Located(2, ("a",)), 2)


def test_an_axis_of_the_mesh_is_used_once_in_an_array():
    """As `nn.logical_to_mesh_axes` does: the next rule for the name, else not sharded."""
    where = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rules = [("embed", "data"), ("mlp", ("data", "model")), ("mlp", "model"), ("heads", "model")]
    for names, spec in (
        (("embed", "mlp"), ("data", "model")),
        (("mlp", "heads"), (("data", "model"), None)),
        (("embed", "embed"), ("data", None)),
        (("embed", "of no rule"), ("data", None)),
    ):
        params = {"w": nn.Partitioned(jnp.ones((8, 8)), names)}  # type: ignore[arg-type]
        found = optax_bridge.param_shardings(params, where, rules)["w"].value.spec
        assert tuple(found) == spec


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (lambda path, x: PartitionSpec("rows"), r"'rows' is no axis of the mesh"),
        (lambda path, x: PartitionSpec(None, "devices"), r"attend.*\(16, 2, 16\).*be divided"),
    ],
    ids=["no such axis", "not divisible"],
)  # fmt: skip
def test_errors_name_the_leaf(rules: Any, message: str):
    with pytest.raises(ValueError, match=message):
        create(optax_bridge.adam(0.1), mesh(), rules)
