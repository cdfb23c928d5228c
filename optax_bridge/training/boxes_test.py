"""Boxes around parameters come and go with every format, to the bit, for every optimizer."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import linen as nn
from flax import nnx, serialization

import legacy_optim
from optax_bridge import TrainState, from_legacy
from optax_bridge.checkpoints import convert_file, restore_checkpoint
from optax_bridge.checkpoints.convert_test import same_bits
from optax_bridge.correspondence import ENTRIES
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.training.nnx import hand_off

PARAMS = {"dense": {"kernel": jnp.linspace(-1.0, 1.0, 12).reshape(4, 3), "bias": jnp.ones(3)}}
GRADS = jax.tree.map(jnp.cos, PARAMS)
AXES = {"dense": {"kernel": ("embed", "mlp"), "bias": ("mlp",)}}
BOXES: dict[str, Any] = {
    "none": lambda x, names: x,
    "Partitioned": nn.Partitioned,
    "LogicallyPartitioned": nn.LogicallyPartitioned,
}
DEFINITIONS = {name: entry.definition(entry.cases[0], 0.1) for name, entry in ENTRIES.items()}
DEFINITIONS["multi_optimizer"] = legacy_optim.MultiOptimizer(
    *(
        (legacy_optim.ModelParamTraversal(lambda path, _, name=name: name in path), one)
        for name, one in (("kernel", legacy_optim.Adam(0.1)), ("bias", legacy_optim.LARS(0.1)))
    )
)
DEFINITIONS["adafactor"] = legacy_optim.Adafactor(0.1, min_dim_size_to_factor=2, beta1=0.9)


def boxed(kind: str, params: Any = PARAMS) -> Any:
    return jax.tree.map(lambda x, names: BOXES[kind](x, names), params, AXES)


@functools.cache
def optimizer(name: str) -> Any:
    return DEFINITIONS[name].create(PARAMS).apply_gradient(GRADS)


@functools.cache
def transformation(name: str) -> Any:
    return from_legacy(DEFINITIONS[name])


def trained(name: str, kind: str) -> Any:
    state = TrainState.create(apply_fn=None, params=boxed(kind), tx=transformation(name))
    taken = TrainState.from_legacy(optimizer(name))
    values = (taken.step, taken.params, taken.opt_state)
    return jax.tree.unflatten(jax.tree.structure(state), jax.tree.leaves(values))


def fresh(name: str, kind: str) -> Any:
    params = boxed(kind, jax.tree.map(jnp.zeros_like, PARAMS))
    return TrainState.create(apply_fn=None, params=params, tx=transformation(name))


def assert_taken_over(state: Any, name: str, kind: str) -> None:
    expected = trained(name, kind)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "Partitioned") for name in DEFINITIONS), *(("adafactor", kind) for kind in BOXES)],
)
def test_the_old_file_has_no_level_for_a_box(name: str, kind: str, tmp_path: Path) -> None:
    """It is the file that flax.optim writes, byte for byte."""
    state = trained(name, kind)
    state.to_legacy_checkpoint(tmp_path / "old", optimizer_def=DEFINITIONS[name])
    assert (tmp_path / "old").read_bytes() == serialization.to_bytes(optimizer(name))


def old_msgpack(path: Path, name: str) -> Path:
    (path / "checkpoint_1").write_bytes(serialization.to_bytes(optimizer(name)))
    return path


def old_of_boxes(path: Path, name: str) -> Path:
    """What a program saves that runs flax.optim on boxed parameters today."""
    there = DEFINITIONS[name].create(boxed("Partitioned"))
    values = jax.tree.leaves(optimizer(name))
    tree = jax.tree.unflatten(jax.tree.structure(there), values)
    (path / "checkpoint_1").write_bytes(serialization.to_bytes(tree))
    return path


def new_orbax(path: Path, name: str) -> Path:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(path / "checkpoint_1", trained(name, "Partitioned"))
    return path


def new_msgpack(path: Path, name: str) -> Path:
    data = serialization.to_bytes(trained(name, "LogicallyPartitioned"))
    (path / "checkpoint_1").write_bytes(data)
    return path


def converted(path: Path, name: str) -> Path:
    source = old_msgpack(path, name) / "checkpoint_1"
    convert_file(source, path / "new", DEFINITIONS[name], recipe="exact")
    return path / "new"


WAYS = {
    way.__name__: way
    for way in (
        old_msgpack, old_of_boxes, new_orbax, new_msgpack, converted
    )
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for name in DEFINITIONS
        for way in WAYS
        if way == "old_msgpack" or name == "weight_norm"
    ],
)
def test_a_file_goes_into_boxes_and_into_none(name: str, way: str, tmp_path: Path) -> None:
    path = WAYS[way](tmp_path, name)
    for kind in ("LogicallyPartitioned", "none"):
        assert_taken_over(restore_checkpoint(path, fresh(name, kind)), name, kind)
        if way == "new_msgpack":  # Flax alone would hand out {"value": array} for a box
            data = (path / "checkpoint_1").read_bytes()
            assert_taken_over(serialization.from_bytes(fresh(name, kind), data), name, kind)


@pytest.mark.parametrize("kind", BOXES)
def test_boxed_states_are_handed_to_nnx(kind: str) -> None:
    model: Any = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    state = trained("adam", kind)
    handed = hand_off(state, model, rename=lambda path: path.replace("dense", "layers/0"))
    same_bits(model.layers[0].kernel[...], unboxed(state.params)["dense"]["kernel"])
    assert int(handed.step[...]) == int(state.step)
