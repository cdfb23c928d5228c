import jax
import numpy as np
import pytest

from optax_bridge.spmd.config import ConfigModifier, config_class
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.launch import setup
from optax_bridge.spmd.mesh import (
    HybridMeshShape,
    create_device_mesh,
    infer_mesh_shape,
    select_mesh_config,
)


@pytest.mark.parametrize(
    "shape, expected",
    [
        ((4, 2), (4, 2)),
        ((-1, 2), (4, 2)),
        ((2, -1, 2), (2, 2, 2)),
        (HybridMeshShape((-1, 2), (2, 1)), HybridMeshShape((2, 2), (2, 1))),
        (HybridMeshShape((1, 2), (-1, 1)), HybridMeshShape((1, 2), (4, 1))),
    ],
)
def test_inferred(shape, expected):
    assert infer_mesh_shape(shape, num_devices=8) == expected


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: infer_mesh_shape((-1, -1)), "at most one"),
        (lambda: infer_mesh_shape((-1, 3), num_devices=8), "cannot be divided by 3"),
        (lambda: HybridMeshShape((1,), (1, 2)), "as many axes"),
        (lambda: create_device_mesh((16,)), "needs 16 devices, there are 8"),
    ],
)
def test_shapes_that_fit_nothing(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Device:
    """What a mesh looks at in a device of another process."""

    platform = device_kind = "cpu"

    def __init__(self, id, process_index):
        self.id, self.process_index = id, process_index


def test_a_plain_shape_is_cut_across_processes_along_its_first_axis():
    devices = [Device(i, i // 4) for i in range(8)]
    mesh = create_device_mesh((1, 4, 2), devices=devices)
    assert np.vectorize(lambda d: d.process_index)(mesh)[0, :, 0].tolist() == [0, 0, 1, 1]
    mesh = create_device_mesh(HybridMeshShape((2, 2), (1, 2)), devices=devices)
    assert np.vectorize(lambda d: d.process_index)(mesh)[0].tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="cannot be cut across"):
        create_device_mesh((3, 2), devices=[Device(i, i // 3) for i in range(6)])


class WithoutEvalers(ConfigModifier):
    @config_class
    class Config(ConfigModifier.Config):
        max_step: int = 3

    def __call__(self, cfg):
        return cfg.set(max_step=self.config.max_step)


def test_meshes_by_rule():
    cfg = regression.trainer().set(
        mesh_rules=[("gpu-.*", (8, 1)), ("tpu", WithoutEvalers.default_config()), (".*", (2, 4))]
    )
    assert select_mesh_config(cfg.clone(), mesh_selector="gpu-h200").mesh_shape == (8, 1)
    assert select_mesh_config(cfg.clone(), mesh_selector="tpu").max_step == 3
    assert select_mesh_config(cfg.clone(), mesh_selector="cpu").mesh_shape == (2, 4)
    assert select_mesh_config(regression.trainer(), mesh_selector="x").mesh_shape == (-1, 1)


@pytest.mark.parametrize(
    "kwargs, message",
    [({"num_processes": 2}, "come together"), ({"num_processes": 2, "process_id": 0}, "need")],
)
def test_processes_that_cannot_find_each_other(kwargs, message):
    with pytest.raises(ValueError, match=message):
        setup(jax_backend="cpu", prng_impl=str(jax.random.key_impl(jax.random.key(0))), **kwargs)
