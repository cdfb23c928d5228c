from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.config import ConfigModifier, config_class
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.launch import setup
from optax_bridge.spmd.layer import ParameterSpec
from optax_bridge.spmd.mesh import (
    HybridMeshShape,
    check_axes,
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
        (lambda: infer_mesh_shape((-1, 3), num_devices=8), "cannot be divided by 3"),
        (lambda: HybridMeshShape((1,), (1, 2)), "as many axes"),
        (lambda: infer_mesh_shape(HybridMeshShape((-1,), (-1,)), num_devices=8), "both parts"),
    ],
)
def test_shapes_that_fit_nothing(make, message):
    with refused(ValueError, message):
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
    gpus = [Device(i, i // 2) for i in range(6)]  # which are not cut
    for gpu in gpus:
        gpu.platform = "gpu"
    assert ids(create_device_mesh((2, 3), devices=gpus)) == [[0, 1, 2], [3, 4, 5]]
    with refused(ValueError, "cannot be cut across"):
        create_device_mesh((3, 2), devices=[Device(i, i // 3) for i in range(6)])


class TpuDevice(Device):
    """One chip of a TPU v4, as `mesh_utils` reads it."""

    platform, device_kind, core_on_chip = "tpu", "TPU v4", 0

    def __init__(self, id, coords, slice_index=0):
        super().__init__(id, process_index=id // 4)
        self.coords, self.slice_index = coords, slice_index


def tpu_slice(slice_index=0):
    """16 chips of 4 hosts, a 4 by 4 plane."""
    return [TpuDevice(16 * slice_index + i, (i % 4, i // 4, 0), slice_index) for i in range(16)]


def ids(mesh):
    return np.vectorize(lambda device: device.id)(mesh).tolist()


@pytest.mark.parametrize("shape", [(4, 4), (16,), (1, 16), (4, 1, 4)])
def test_hosts_of_one_tpu_slice_do_not_cut_a_mesh(shape):
    devices = [tpu_slice()[i] for i in np.random.default_rng(0).permutation(16)]
    expected = mesh_utils.create_device_mesh(shape, devices=devices)
    assert ids(create_device_mesh(shape, devices=devices)) == ids(expected)


def test_a_mesh_that_the_torus_has_no_place_for_is_said(caplog):
    mesh = create_device_mesh((2, -1), devices=tpu_slice())
    assert ids(mesh) == np.arange(16).reshape(2, 8).tolist()
    assert "mesh shape (2, 8) does not follow the network: Failed to find assignment" in caplog.text
    two = [*tpu_slice(1), *tpu_slice()]
    mesh = create_device_mesh(HybridMeshShape((2, 8), (1, 2)), devices=two)
    assert (np.asarray(ids(mesh))[0] // 16).tolist() == [0] * 8 + [1] * 8  # slice by slice


@pytest.mark.parametrize(
    "shape, ici, dcn",
    [
        ((-1, 4), (4, 4), (2, 1)),
        ((1, -1, 4), (1, 4, 4), (1, 2, 1)),
        (HybridMeshShape((-1, 4), (1, -1)), (4, 4), (1, 2)),
        (HybridMeshShape((4, -1), (-1, 1)), (4, 4), (2, 1)),
    ],
)
def test_two_tpu_slices_cut_a_mesh_and_every_minus_one_is_inferred(shape, ici, dcn):
    devices = [*tpu_slice(), *tpu_slice(1)]
    expected = mesh_utils.create_hybrid_device_mesh(ici, dcn, devices=devices)
    assert ids(create_device_mesh(shape, devices=devices)) == ids(expected)


def test_an_axis_over_several_of_the_mesh_is_divided_over_all_their_devices():
    mesh: Any = jax.sharding.AbstractMesh((2, 3), ("data", "model"))
    spec = ParameterSpec(shape=(6, 5), mesh_axes=(("data", "model"), None))
    check_axes("trainer", {"w": spec}, mesh)
    spec.shape = (3, 5)
    with refused(ValueError, r"parameter w, .*size 3 .*which has 6 devices"):
        check_axes("trainer", {"w": spec}, mesh)


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
    for other in ("tpu-v4", "my-gpu-h200", "a gpu-"):  # a pattern is of the whole name
        assert select_mesh_config(cfg.clone(), mesh_selector=other).mesh_shape == (2, 4)
    assert select_mesh_config(regression.trainer(), mesh_selector="x").mesh_shape == (-1, 1)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"num_processes": 2}, "come together"),
        ({"process_id": 0}, "come together"),
        ({"num_processes": 2, "process_id": 0}, "need"),
    ],
)
def test_processes_that_cannot_find_each_other(kwargs, message):
    with refused(ValueError, message):
        setup(jax_backend="cpu", prng_impl=str(jax.random.key_impl(jax.random.key(0))), **kwargs)


def test_keys_are_fast_on_tpus_unless_told_otherwise():
    before = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    try:
        setup(jax_backend="cpu")
        assert str(jax.random.key_impl(jax.random.key(0))) == "rbg"
    finally:
        jax.config.update("jax_default_prng_impl", before)
