"""What Orbax restores into a `TrainState` is compared with the checkpoint first.

Asked for an array of another shape, Orbax's `PyTreeCheckpointer` hands out the checkpoint's; asked
through Flax's `checkpoints` for a leaf that a checkpoint has not, it hands out the template's own,
and leaves out what the template has not; all of it without a word. Orbax has no place where a class
could say what it needs, so its handler of pytrees is wrapped. Other trees are none of its business.
"""

import functools
import importlib.util
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from optax_bridge.checkpoints.devices import quiet
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.fit import Fit, check_finite
from optax_bridge.checkpoints.trees import is_state, named_as_pytree, outlined, plain
from optax_bridge.metadata.trees import PyTree

_ORBAX, _HANDLER, _WRAPPED = "orbax.checkpoint", "PyTreeCheckpointHandler", "_checks_train_states"


def check_what_orbax_restores() -> None:
    """Wraps Orbax's handler, now or as soon as the program imports it."""
    if _ORBAX in sys.modules:
        _wrap(sys.modules[_ORBAX])
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _ORBAX:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _wrap(module)

            loader.exec_module = exec_module
        return spec


def _wrap(module: ModuleType) -> None:
    handler: Any = getattr(module, _HANDLER, None)
    if handler is None or hasattr(handler.restore, _WRAPPED):
        return
    restore = handler.restore

    @functools.wraps(restore)
    def checked(self: Any, directory: Any, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("args")
        item = args[0] if args else kwargs.get("item", getattr(options, "item", None))
        if not any(map(is_state, jax.tree.leaves(item, is_leaf=is_state))):
            return restore(self, directory, *args, **kwargs)
        if not _is_asked_for(options, kwargs):
            check(Path(directory), item)
        with quiet():
            restored = restore(self, directory, *args, **kwargs)
        if not _is_asked_for(options, kwargs):
            check_finite(restored, item, directory)
        return restored

    setattr(checked, _WRAPPED, True)
    handler.restore = checked


def _is_asked_for(options: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the caller wants a part, or arrays cut to size, or a transformation of its own."""

    def option(name: str) -> Any:
        return kwargs.get(name, getattr(options, name, None))

    arguments = jax.tree.leaves(option("restore_args"), is_leaf=lambda x: hasattr(x, "strict"))
    loose = any(not getattr(argument, "strict", True) for argument in arguments)
    # Flax adds one for each field that is None, to leave it so.
    own = any(getattr(t, "use_fallback", None) is not True for t in _leaves(option("transforms")))
    return bool(option("partial_restore")) or loose or own


def _leaves(transforms: Any) -> Iterator[Any]:
    for value in (transforms or {}).values():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield value


def check(folder: Path, item: PyTree) -> None:
    """Compares a checkpoint with what is to be restored from it.

    Args:
      folder: the checkpoint of Orbax.
      item: a tree with a `TrainState` in it, of arrays or of their shapes.

    Raises:
      CheckpointError: the checkpoint lacks a leaf, has one more, or one of another shape.
    """
    # Formats of checkpoints, which not every TrainState needs.
    from optax_bridge.checkpoints.formats.orbax.read import METADATA, read_orbax

    if not (folder / METADATA).is_file():  # in a bucket, or of a time without metadata
        return
    try:
        saved = plain(read_orbax(folder))
    except CheckpointError:  # damaged, or of types of the program's own: Orbax says what is wrong
        return
    if named_as_pytree(item, saved):
        return
    fit = Fit(folder, allow_nan=True)  # what Orbax restores is looked at then
    fit.tree(outlined(item), saved, (), "program")
    fit.settle()
    if fit.changed:
        raise CheckpointError(
            folder, "boxes around the same arrays as the template has them", "others",
            "Orbax cannot put them on or off: use optax_bridge.checkpoints.restore_checkpoint, or "
            "restore without a template, then optax_bridge.restored_into(template, restored).",
        )  # fmt: skip
