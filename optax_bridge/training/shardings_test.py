"""Where a state lies on a mesh, and checkpoints from mesh to mesh."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import optax_bridge
from optax_bridge.training.shardings import _Located

SIZE, HEADS = 16, 2


ADAFACTOR = optax_bridge.adafactor(0.01, min_dim_size_to_factor=8)


def init() -> Any:
    phases = iter(range(1, 7))

    def waves(*shape: int) -> Any:  # compiled in a tenth of the time of random numbers
        return (
            jnp.cos(jnp.arange(np.prod(shape)) * (1.0 + next(phases) / 7)).reshape(shape)
            / SIZE**0.5
        )

    attend = {"q": waves(SIZE, HEADS, SIZE), "out": waves(HEADS, SIZE, SIZE)}
    return {"attend": attend, "mlp": {"up": waves(SIZE, 32), "down": waves(32, SIZE)}}


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


def mesh(kind: Any = AxisType.Auto, devices: Any = None) -> Any:
    count = 8 if devices is None else len(devices)
    return jax.make_mesh((count,), ("devices",), axis_types=(kind,), devices=devices)


def create(tx: Any, where: Any, rule: Any) -> Any:
    return optax_bridge.TrainState.create_sharded(
        mesh=where, rules=rule, init=init, apply_fn=None, tx=tx
    )


def test_saved_on_one_mesh_goes_on_identically_on_another(tmp_path: Path):
    first, second = mesh(), mesh(devices=jax.devices()[:4])
    step = jax.jit(lambda state: state.apply_gradients(grads=jax.tree.map(jnp.cos, state.params)))
    state, template = step(create(ADAFACTOR, first, fsdp)), create(ADAFACTOR, second, tensor)
    shardings = optax_bridge.state_shardings(template, second, tensor)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        abstract = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), template, shardings
        )
        restored = checkpointer.restore(tmp_path / "state", abstract)
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    assert jax.tree.map(lambda x: x.sharding, restored) == shardings
    # From here on the same bits wherever it lies: a step on its own, on one device.
    left, right = (step(jax.device_put(each, jax.devices()[0])) for each in (state, restored))
    jax.tree.map(np.testing.assert_array_equal, left, right)


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
    other = NamedSharding(jax.make_mesh((8,), ("rows",)), PartitionSpec("rows"))
    elsewhere = jax.device_put(params, other)
    assert optax_bridge.param_shardings(elsewhere, mesh())["w"].is_fully_replicated
    here = jax.device_put(params, NamedSharding(mesh(), PartitionSpec("devices")))
    assert tuple(optax_bridge.param_shardings(here, mesh())["w"].spec) == ("devices", None)


def test_further_fields_are_made_on_the_mesh_as_well():
    full: Any = optax_bridge.FullTrainState
    state = full.create_sharded(
        mesh=mesh(), rules=fsdp, init=init, apply_fn=None, tx=ADAFACTOR, ema_decay=0.5
    )
    assert state.ema_decay == 0.5
    assert state.ema_params["mlp"]["up"].sharding == state.params["mlp"]["up"].sharding


def test_an_axis_that_comes_and_goes_leaves_the_others_where_they_were():
    box = _Located(jnp.ones((2, 3, 4)), ("a", "b", "c"))
    for index, left in ((0, ("b", "c")), (1, ("a", "c")), (2, ("a", "b"))):
        assert box.remove_axis(index, {}).spec == left
        assert box.remove_axis(index, {}).add_axis(index, {}).remove_axis(index, {}).spec == left


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
