"""Meshes of devices, as a config describes them."""

import dataclasses
import logging
import math
import operator
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import ConfigBase, ConfigModifier, maybe_instantiate
from optax_bridge.spmd.trees import flatten_items

_log = logging.getLogger(__name__)
C = TypeVar("C", bound=ConfigBase)
Devices = Sequence[Any]  # `jax.Device` is a variable to type checkers


@dataclasses.dataclass(frozen=True)
class HybridMeshShape:
    """A mesh over granules of devices: slices of TPUs, or processes.

    Attributes:
      ici_mesh_shape: along each axis, how many devices of one granule.
      dcn_mesh_shape: along each axis, how many granules.
    """

    ici_mesh_shape: Sequence[int]
    dcn_mesh_shape: Sequence[int]

    def __post_init__(self):
        if len(self.ici_mesh_shape) != len(self.dcn_mesh_shape):
            raise ValueError(
                f"HybridMeshShape: expected as many axes in both shapes, found "
                f"{tuple(self.ici_mesh_shape)} and {tuple(self.dcn_mesh_shape)}"
            )

    def __len__(self) -> int:
        return len(self.ici_mesh_shape)

    @property
    def sizes(self) -> list[int]:
        """Along each axis, how many devices."""
        return [i * d for i, d in zip(self.ici_mesh_shape, self.dcn_mesh_shape, strict=True)]


MeshShape = Sequence[int]


def infer_mesh_shape(
    mesh_shape: MeshShape | HybridMeshShape, *, num_devices: int | None = None
) -> MeshShape | HybridMeshShape:
    """The shape with its -1 replaced by the size with which the mesh fits the devices.

    Args:
      mesh_shape: at most one -1; a `HybridMeshShape` may have one in each part if `num_devices` is
        left out, as the devices then say how many granules there are.
      num_devices: all devices unless given.

    Raises:
      ValueError: there are several -1, or the devices cannot be divided so.
    """
    if num_devices is None:
        devices = jax.devices()
        return _infer_shape(mesh_shape, len(devices), _num_granules(devices))
    return _infer_shape(mesh_shape, num_devices, None)


def _infer_shape(
    mesh_shape: MeshShape | HybridMeshShape, num_devices: int, num_granules: int | None
) -> MeshShape | HybridMeshShape:
    if not isinstance(mesh_shape, HybridMeshShape):
        return _infer(mesh_shape, num_devices, mesh_shape)
    ici, dcn = mesh_shape.ici_mesh_shape, mesh_shape.dcn_mesh_shape
    if -1 not in dcn:
        num_granules = math.prod(dcn)
    elif -1 not in ici:
        num_granules = num_devices // math.prod(ici)
    elif num_granules is None:
        raise ValueError(
            f"{mesh_shape}: both parts have a -1, and num_devices does not say how many granules "
            "there are. Leave num_devices out, or give one part in full."
        )
    return HybridMeshShape(
        _infer(ici, num_devices // num_granules, mesh_shape), _infer(dcn, num_granules, mesh_shape)
    )


def _infer(
    shape: MeshShape, num_devices: int, mesh_shape: MeshShape | HybridMeshShape
) -> tuple[int, ...]:
    if -1 not in shape:
        return tuple(shape)
    if list(shape).count(-1) > 1:
        raise ValueError(f"mesh shape {mesh_shape}: at most one axis may be -1, to be inferred")
    others = math.prod(size for size in shape if size != -1)
    if num_devices % others:
        raise ValueError(
            f"mesh shape {mesh_shape}: {num_devices} devices cannot be divided by {others}, the "
            "product of the other axes"
        )
    return tuple(num_devices // others if size == -1 else size for size in shape)


def create_device_mesh(
    mesh_shape: MeshShape | HybridMeshShape, *, devices: Devices | None = None
) -> np.ndarray:
    """Devices as an array of this shape, neighbours near to each other.

    Args:
      mesh_shape: the shape; see `infer_mesh_shape` for -1. On several granules, which are slices
        of TPUs and processes elsewhere, a plain shape is cut across them along its first axis that
        is not 1.
      devices: all devices unless given.

    Returns:
      An array of devices.

    Raises:
      ValueError: the mesh has another number of devices, or cannot be cut across the granules.
    """
    flat = list(jax.devices() if devices is None else np.asarray(devices, dtype=object).flat)
    granules = _num_granules(flat)
    shape = _infer_shape(mesh_shape, len(flat), granules)
    sizes = shape.sizes if isinstance(shape, HybridMeshShape) else list(shape)
    if math.prod(sizes) != len(flat):
        raise ValueError(
            f"mesh shape {mesh_shape} needs {math.prod(sizes)} devices, there are {len(flat)} "
            f"({flat[0].platform}). Set mesh_shape to their number, or make one axis -1; on the "
            "CPU XLA_FLAGS=--xla_force_host_platform_device_count=N makes N."
        )
    if not isinstance(shape, HybridMeshShape):
        if granules == 1 or flat[0].platform == "gpu":
            return _plain(sizes, flat)
        axis = next((i for i, size in enumerate(sizes) if size != 1), 0)
        if sizes[axis] % granules:
            raise ValueError(
                f"mesh shape {mesh_shape}: axis {axis} of size {sizes[axis]} cannot be cut across "
                f"{granules} granules. Make the first axis that is not 1 a multiple of it, or give "
                "a HybridMeshShape."
            )
        dcn = [granules if i == axis else 1 for i in range(len(sizes))]
        ici = [size // d for size, d in zip(sizes, dcn, strict=True)]
        shape = HybridMeshShape(ici, dcn)
    try:
        return mesh_utils.create_hybrid_device_mesh(
            shape.ici_mesh_shape,
            shape.dcn_mesh_shape,
            devices=flat,
            process_is_granule=_granule_attribute(flat) == "process_index",
        )
    except (NotImplementedError, AssertionError) as error:
        _log.warning("mesh shape %s does not follow the network: %s", mesh_shape, error)
        return _hybrid_by_reshape(shape, flat)


def _plain(sizes: Sequence[int], devices: Devices) -> np.ndarray:
    try:
        return mesh_utils.create_device_mesh(sizes, devices=devices)
    except (NotImplementedError, AssertionError) as error:
        _log.warning("mesh shape %s does not follow the network: %s", tuple(sizes), error)
        return np.asarray(devices, dtype=object).reshape(sizes)


def _granule_attribute(devices: Devices) -> str:
    return "slice_index" if devices[0].platform == "tpu" else "process_index"


def _num_granules(devices: Devices) -> int:
    """The number of slices of TPUs, however many hosts each has, or of processes elsewhere."""
    attribute = _granule_attribute(devices)
    return len({getattr(device, attribute, 0) for device in devices})


def _hybrid_by_reshape(shape: HybridMeshShape, devices: Devices) -> np.ndarray:
    """Granules one after another, as a mesh of meshes."""
    ordered = sorted(devices, key=operator.attrgetter(_granule_attribute(devices)))
    rank = len(shape)
    blocks = np.asarray(ordered, dtype=object).reshape(
        [*shape.dcn_mesh_shape, *shape.ici_mesh_shape]
    )
    order = [axis for i in range(rank) for axis in (i, rank + i)]
    return blocks.transpose(order).reshape(shape.sizes)


def select_mesh_config(trainer_config: C, *, mesh_selector: str) -> C:
    """Sets a trainer's mesh by the first of its `mesh_rules` that fits.

    Args:
      trainer_config: the config; a mesh shape is set in place.
      mesh_selector: a text for the rules' regular expressions, such as a type of machine.

    Returns:
      The config, as changed by the rule if that is a `ConfigModifier`.
    """
    for pattern, rule in trainer_config.mesh_rules or ():
        if not re.fullmatch(pattern, mesh_selector):
            continue
        rule = maybe_instantiate(rule)
        if isinstance(rule, ConfigModifier):
            return rule(trainer_config)
        return trainer_config.set(mesh_shape=rule)
    return trainer_config


def mesh_of(cfg: ConfigBase, devices: Devices | None) -> Mesh:
    """The mesh of a trainer's config.

    Args:
      cfg: the config.
      devices: all devices unless given.

    Raises:
      ValueError: names and shape do not fit each other, or the devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    names = tuple(cfg.mesh_axis_names)
    if len(cfg.mesh_shape) != len(names):
        raise ValueError(
            f"{cfg.name}: mesh_shape {cfg.mesh_shape} has {len(cfg.mesh_shape)} axes, "
            f"mesh_axis_names {names} {len(names)}. Give one name for each axis."
        )
    entry = axis_entry(cfg.batch_axis_names)
    for axis in entry if isinstance(entry, tuple) else (entry,):
        if axis not in names:
            raise ValueError(
                f"{cfg.name}: batch_axis_names has {axis!r}, which is not in mesh_axis_names "
                f"{names}"
            )
    return Mesh(create_device_mesh(cfg.mesh_shape, devices=devices), names)


def axis_entry(names: str | Sequence[str]) -> str | tuple[str, ...]:
    """Names of axes as one entry of a `PartitionSpec`."""
    return names if isinstance(names, str) else tuple(names)


def check_axes(where: str, param_specs: PyTree, mesh: Mesh) -> None:
    """Checks that the mesh has the axes that parameters are divided over, and can divide them.

    Args:
      where: the trainer, for the message.
      param_specs: `ParameterSpec`s of the model.
      mesh: the mesh.

    Raises:
      ValueError: it lacks one, or cannot; the message names the parameter.
    """
    sizes = dict(mesh.shape)
    for path, spec in flatten_items(param_specs):
        shape = tuple(spec.shape)
        parameter = f"{where}: parameter {path}, shape {shape}"
        for size, entry in zip(shape, spec.mesh_axes or (), strict=False):
            ways = 1
            for axis in entry if isinstance(entry, tuple | list) else (entry,):
                if axis is None:
                    continue
                if axis not in sizes:
                    raise ValueError(
                        f"{parameter}, is to lie along {spec.mesh_axes}, but {axis!r} is no axis "
                        f"of the mesh {sizes}. Name it in mesh_axis_names, or set the layer's "
                        "param_partition_spec."
                    )
                ways *= sizes[axis]
            if size % ways:
                raise ValueError(
                    f"{parameter}: an axis of size {size} cannot be divided over {entry!r}, which "
                    f"has {ways} devices of the mesh {sizes}. Set the layer's "
                    "param_partition_spec, or another mesh_shape."
                )
