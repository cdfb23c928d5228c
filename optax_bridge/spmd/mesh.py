"""Meshes of devices from what a config says of them."""

import dataclasses
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
    """The shape with its -1 replaced by what makes the mesh fit the devices.

    Args:
      mesh_shape: at most one -1 in each part.
      num_devices: all devices unless given.

    Raises:
      ValueError: there are several -1, or the devices cannot be divided so.
    """
    count = jax.device_count() if num_devices is None else num_devices
    if not isinstance(mesh_shape, HybridMeshShape):
        return _infer(mesh_shape, count, mesh_shape)
    ici, dcn = mesh_shape.ici_mesh_shape, mesh_shape.dcn_mesh_shape
    if -1 in ici and -1 in dcn:
        raise ValueError(f"only one of the shapes of {mesh_shape} may have a -1")
    return HybridMeshShape(
        _infer(ici, count // abs(math.prod(dcn)), mesh_shape),
        _infer(dcn, count // abs(math.prod(ici)), mesh_shape),
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
      mesh_shape: the shape, without -1. A plain shape on several granules is cut across them along
        its first axis that is not 1.
      devices: all devices unless given.

    Returns:
      An array of devices.

    Raises:
      ValueError: the mesh has another number of devices, or cannot be cut across the granules.
    """
    flat = list(jax.devices() if devices is None else np.asarray(devices, dtype=object).flat)
    shape = mesh_shape
    sizes = shape.sizes if isinstance(shape, HybridMeshShape) else list(shape)
    if math.prod(sizes) != len(flat):
        raise ValueError(
            f"mesh shape {mesh_shape} needs {math.prod(sizes)} devices, there are {len(flat)} "
            f"({flat[0].platform}). Set mesh_shape to what there is, or make one axis -1; on the "
            "CPU XLA_FLAGS=--xla_force_host_platform_device_count=N makes N."
        )
    granules, by_process = _granules(flat)
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
            process_is_granule=by_process,
        )
    except (NotImplementedError, AssertionError):
        return _hybrid_by_reshape(shape, flat, by_process)


def _plain(sizes: Sequence[int], devices: Devices) -> np.ndarray:
    try:
        return mesh_utils.create_device_mesh(sizes, devices=devices)
    except (NotImplementedError, AssertionError):
        return np.asarray(devices, dtype=object).reshape(sizes)


def _granules(devices: Devices) -> tuple[int, bool]:
    """Returns the number of granules, and True if they are processes."""
    slices = {getattr(device, "slice_index", None) for device in devices}
    if None not in slices and len(slices) > 1:
        return len(slices), False
    return len({device.process_index for device in devices}), True


def _hybrid_by_reshape(shape: HybridMeshShape, devices: Devices, by_process: bool) -> np.ndarray:
    """Granules one after another, as a mesh of meshes."""
    granule = operator.attrgetter("process_index" if by_process else "slice_index")
    ordered = np.asarray(sorted(devices, key=granule), dtype=object)
    rank = len(shape)
    blocks = ordered.reshape([*shape.dcn_mesh_shape, *shape.ici_mesh_shape])
    order = [axis for i in range(rank) for axis in (i, rank + i)]
    return blocks.transpose(order).reshape(shape.sizes)


def select_mesh_config(trainer_config: C, *, mesh_selector: str) -> C:
    """Sets a trainer's mesh by the first of its `mesh_rules` that fits.

    Args:
      trainer_config: the config; a mesh shape is set in place.
      mesh_selector: what the rules' regular expressions are to fit, such as a type of machine.

    Returns:
      The config; what a `ConfigModifier` makes of it if the rule is one.
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
    shape = infer_mesh_shape(cfg.mesh_shape, num_devices=len(devices))
    return Mesh(create_device_mesh(shape, devices=devices), names)


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
