"""Restoring by Orbax, whole or not at all: a handler and arguments that a program names.

Asked by `PyTreeRestore` for an array of another shape, Orbax hands out the checkpoint's without an
error. `StandardRestore` refuses it, as does this handler, which also says what to do about boxes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from optax_bridge.checkpoints.devices import quiet_orbax
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.fit import Fit, check_finite
from optax_bridge.checkpoints.formats.orbax.read import METADATA, read_orbax
from optax_bridge.checkpoints.trees import is_array, leaves, named_as_pytree, plain, state_dict_of
from optax_bridge.metadata.axis_metadata import key_names, leaves_with_path
from optax_bridge.metadata.trees import PyTree


class TrainStateHandler(ocp.PyTreeCheckpointHandler):
    """Orbax's handler of pytrees, which compares a checkpoint with the template first.

    In place of `ocp.PyTreeCheckpointHandler`; what either has saved, the other one restores:

        checkpointer = ocp.Checkpointer(optax_bridge.checkpoints.TrainStateHandler())
        state = checkpointer.restore(path, item=state)
    """

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Restores as `ocp.PyTreeCheckpointHandler` does.

        Raises:
          CheckpointError: the checkpoint lacks a leaf of the template, has one more, or one of
            another shape or type; parameters or moments are not finite.
        """
        options = kwargs.get("args")
        item = args[0] if args else kwargs.get("item", getattr(options, "item", None))
        as_asked = item is None or _asks_for_other_leaves(options, kwargs)
        if not as_asked:
            check(Path(directory), item)
        with quiet_orbax():
            restored = super().restore(directory, *args, **kwargs)
        if not as_asked:
            check_finite(restored, item, directory)
        return restored


@ocp.args.register_with_handler(TrainStateHandler, for_save=True)
@dataclass
class TrainStateSave(ocp.args.PyTreeSave):
    """In place of `ocp.args.PyTreeSave`: what is saved so, `TrainStateRestore` restores."""


@ocp.args.register_with_handler(TrainStateHandler, for_restore=True)
@dataclass
class TrainStateRestore(ocp.args.PyTreeRestore):
    """In place of `ocp.args.PyTreeRestore`: whole or not at all, see `TrainStateHandler`."""


def _asks_for_other_leaves(options: Any, kwargs: dict[str, Any]) -> bool:
    """True if the caller wants a part, arrays cut to size, or a transformation of its own."""

    def option(name: str) -> Any:
        return kwargs.get(name, getattr(options, name, None))

    arguments = jax.tree.leaves(option("restore_args"), is_leaf=lambda x: hasattr(x, "strict"))
    is_loose = any(not getattr(argument, "strict", True) for argument in arguments)
    # Flax adds a transformation with use_fallback for each field that is None, to leave it so.
    transforms = _leaves(option("transforms"))
    transformed = any(getattr(t, "use_fallback", None) is not True for t in transforms)
    return bool(option("partial_restore")) or is_loose or transformed


def _leaves(transforms: Any) -> Iterator[Any]:
    for value in (transforms or {}).values():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield value


def check(folder: Path, item: PyTree) -> None:
    """Compares a checkpoint of Orbax with a template."""
    if not (folder / METADATA).is_file():  # in a bucket, or of a time without metadata
        return
    try:
        saved = plain(read_orbax(folder))
    except CheckpointError:  # damaged, or of types of the program's own: Orbax says what is wrong
        return
    if named_as_pytree(item, saved):
        _check_types(folder, item, saved)
        return
    fit = Fit(folder, allow_nan=True)  # what Orbax restores is looked at then
    fit.tree(state_dict_of(item), saved, (), "program")
    fit.settle()
    if fit.changed:
        raise CheckpointError(
            folder, "boxes around the same arrays as the template has them", "others",
            "Orbax cannot put them on or off: use optax_bridge.checkpoints.restore_checkpoint, or "
            "restore without a template, then optax_bridge.restored_into(template, restored).",
        )  # fmt: skip


def _check_types(folder: Path, item: PyTree, saved: PyTree) -> None:
    """Refuses arrays of another type than the template's, which Orbax hands out as they are."""
    expected = {key_names(path): leaf for path, leaf in leaves_with_path(item) if is_array(leaf)}
    for path, leaf in leaves(saved):
        template = expected.get(path)
        if template is None or not is_array(leaf) or leaf.dtype == template.dtype:
            continue
        if all(jnp.issubdtype(each.dtype, jnp.integer) for each in (leaf, template)):
            continue
        raise CheckpointError(
            folder, f"{'/'.join(path)} of type {template.dtype}, the template's", str(leaf.dtype),
            "Orbax hands it out as it is: make the template's array of that type, or use "
            "optax_bridge.checkpoints.restore_checkpoint, which converts what keeps its value.",
        )  # fmt: skip
