"""Checks of a trainer's config before there is any array."""

from collections.abc import Collection, Sequence
from pathlib import Path

import jax
from jax.sharding import Mesh

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import ConfigBase
from optax_bridge.spmd.mesh import Devices, create_device_mesh, infer_mesh_shape
from optax_bridge.spmd.trees import flatten_items


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


def check_folder(where: str, folder: str) -> None:
    """Raises ValueError if a run's folder is a file, or would lie below one."""
    path = Path(folder)
    for parent in (path, *path.parents):
        if parent.exists() and not parent.is_dir():
            raise ValueError(
                f"{where}: dir={folder!r}: {parent} is a file, expected a folder for the files of "
                "the run. Take another one."
            )


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


def forced_evalers(wanted: object, evalers: Collection[str]) -> set[str]:
    """The evalers that `SpmdTrainer.run` is asked to run at last.

    Args:
      wanted: None or False for none, True for all, or names.
      evalers: the names that there are.

    Raises:
      ValueError: something else, or a name that there is not.
    """
    if wanted is None or wanted is False:
        return set()
    if wanted is True:
        return set(evalers)
    if not isinstance(wanted, set | frozenset | list | tuple):
        raise ValueError(
            "return_evaler_summaries: expected True or a set of names, found "
            f"{type(wanted).__name__}: {wanted!r}"
        )
    unknown = set(wanted) - set(evalers)
    if unknown:
        raise ValueError(
            f"return_evaler_summaries: no evaler {sorted(unknown)}; there are {sorted(evalers)}"
        )
    return set(wanted)
