"""From one checkpoint to another: reads, converts, writes, reads again and compares."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization

import legacy_optim
from optax_bridge.checkpoints.convert import (
    check_parameters,
    choose_part,
    convert_tree,
    legacy_tree,
    loaded,
    state_templates,
)
from optax_bridge.checkpoints.destination import written_whole
from optax_bridge.checkpoints.devices import on_device as on_device
from optax_bridge.checkpoints.errors import CheckpointError, leaf_name, shown
from optax_bridge.checkpoints.formats.registry import contents, written_as
from optax_bridge.checkpoints.layout import (
    LAYOUT,
    Layout,
    place_in,
    read_layout,
    renamed_back,
)
from optax_bridge.checkpoints.lazy import BLOCK, bytes_of, release
from optax_bridge.checkpoints.read import Read, read_checkpoint
from optax_bridge.checkpoints.recognise import is_array, is_train_state, leaves

_LEGACY = "msgpack"  # what programs of flax.optim read
Told = Callable[[str, int, int], None]  # phase, bytes done, bytes in all


@dataclass(frozen=True)
class Conversion:
    """What `convert_file` did.

    Attributes:
      read: what was read.
      tree: the tree that was written.
      definition: the legacy definition; None if only parameters were asked for.
      step: steps taken; None if only parameters were asked for.
    """

    read: Read
    tree: Any
    definition: Any
    step: int | None


def convert_file(
    source: Path,
    destination: Path,
    optimizer_def: legacy_optim.OptimizerDef | None = None,
    *,
    to_legacy: bool = False,
    file_format: str = "orbax",
    msgpack: bool = False,
    params_only: bool = False,
    exact: bool = True,
    part: str | None = None,
    allow_nan: bool = False,
    verify: bool = True,
    force: bool = False,
    told: Told | None = None,
) -> Conversion:
    """Converts a checkpoint; the source is only read.

    Args:
      source: see `read_checkpoint`.
      destination: a file for msgpack, a folder for Orbax.
      optimizer_def: the legacy definition; read from the state's fields if None.
      to_legacy: from a TrainState to an `Optimizer`, which is Flax msgpack always.
      file_format: what to write, one of `formats.registry.writable()`.
      msgpack: the same as `file_format="msgpack"`.
      params_only: write the parameters alone.
      exact: see `optax_bridge.from_legacy`.
      part: which optimizer, where there are several; on the way back, where it is to stand.
      allow_nan: let NaN in the optimizer's state through.
      verify: read again what was written, and compare every leaf.
      force: replace the destination.
      told: told of progress.

    Returns:
      What was read and what was written.

    Raises:
      CheckpointError: see the readers; nothing is left at the destination then.
      ValueError: no such format is written.
    """
    if msgpack or to_legacy:
        file_format = _LEGACY
    written_as(file_format)
    read = read_checkpoint(source)
    _check_apart(read.path, destination)
    definition, step = optimizer_def, None
    if params_only:
        definition, tree = None, _parameters(read, part)
    elif to_legacy:
        tree = back(read, optimizer_def, part)
        step = int(np.asarray(read.tree["step"]))
    else:
        converted = convert_tree(
            read.tree, optimizer_def, exact=exact, part=part, allow_nan=allow_nan, place=read.path
        )
        definition, tree, step = converted.definition, converted.tree(), int(converted.step)
        if set(read.tree) == {read.level}:
            del tree[LAYOUT]  # every checkpoint of T5X has that level; the way back is Flax's
    with written_whole(destination, force=force) as path:
        write(path, tree, file_format, told=told, name=destination)
        if verify:
            compare(path, tree, destination, file_format, told)
    return Conversion(read, tree, definition, step)


def _check_apart(source: Path, destination: Path) -> None:
    # Unlike Path.resolve, this takes links in a circle.
    one, other = (Path(os.path.realpath(path)) for path in (source, destination))
    if one == other or one in other.parents or other in one.parents:
        raise CheckpointError(
            destination, "another place than the source", f"the source, {source}",
            "The source is only read, never replaced: name another destination.",
        )  # fmt: skip


def _parameters(read: Read, part: str | None) -> Any:
    """The parameters alone: whoever wants no more need not say which optimizer it was."""
    if is_train_state(read.tree):
        return read.tree["params"]
    if part is None and not any("param_states" in path for path, _ in leaves(read.tree)):
        return read.tree
    chosen = choose_part(read.tree, read.path, part)
    check_parameters(chosen, read.path)
    return chosen.target


def write(
    path: Path,
    tree: Any,
    file_format: str = "orbax",
    *,
    told: Told | None = None,
    name: Path | None = None,
) -> None:
    """Writes a tree in a format of this option; errors call it by its name."""
    writer = written_as(file_format).write
    assert writer is not None
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if is_array(leaf))
    tell = told or (lambda phase, done, total: None)
    tell("write", 0, total)
    writer(path, tree, lambda done: tell("write", min(done, total), total), name or path)
    tell("write", total, total)


def compare(
    path: Path, tree: Any, name: Path, file_format: str = "orbax", told: Told | None = None
) -> None:
    """Reads again what was written and compares every leaf, bit for bit.

    Raises:
      CheckpointError: something differs.
    """
    tell = told or (lambda phase, done, total: None)
    found = contents(written_as(file_format), path).tree
    expected = dict(leaves(serialization.to_state_dict(tree)))
    actual = {leaf_path: leaf for leaf_path, leaf in leaves(found)}
    total = sum(leaf.nbytes for leaf in expected.values() if is_array(leaf))
    done = 0
    for leaf_path in [*expected, *(p for p in actual if p not in expected)]:
        pair = expected.get(leaf_path), actual.get(leaf_path)
        if not _same(*pair):
            raise CheckpointError(
                f"{name}, {leaf_name(leaf_path)}", "what was written", shown(pair[1]),
                "Writing failed, nothing was left behind: is the disk full or failing?",
            )  # fmt: skip
        done += getattr(pair[0], "nbytes", 0)
        tell("verify", done, total)


def _same(expected: Any, found: Any) -> bool:
    if not is_array(expected):
        return is_array(found) == is_array(expected) and bool(expected == found)
    if not is_array(found) or expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    one, other, size = bytes_of(expected), bytes_of(found), expected.nbytes
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        if not np.array_equal(one(start, stop), other(start, stop)):
            return False
        if size > BLOCK:
            release(expected)
            release(found)
    return True


def back(read: Read, definition: legacy_optim.OptimizerDef | None, part: str | None = None) -> Any:
    """The legacy tree for a TrainState's checkpoint.

    Args:
      read: the checkpoint.
      definition: the legacy definition.
      part: where the optimizer is to stand among what else there is, `models/generator`; where
        it stood if None, else at `optimizer`, or alone if there is nothing else.

    Raises:
      CheckpointError: it is no TrainState, or one of another optimizer.
    """
    if not is_train_state(read.tree):
        names = shown(sorted(read.tree)) if isinstance(read.tree, Mapping) else shown(read.tree)
        raise CheckpointError(
            read.path, "a TrainState: step, params, opt_state", names, "Is it a legacy checkpoint?"
        )
    if definition is None:
        raise CheckpointError(
            read.path, "the legacy optimizer to make", "none given",
            'Name it: --optimizer "Adam(learning_rate=1e-3)".',
        )  # fmt: skip
    params, step = read.tree["params"], read.tree["step"]
    opt_state = _fitted(read.tree["opt_state"], definition, params, read.path)
    tree = legacy_tree(params, opt_state, step, definition)
    others = {
        renamed_back(name): value
        for name, value in read.tree.items()
        if name not in ("step", "params", "opt_state", LAYOUT)
    }
    layout = read_layout(read.tree[LAYOUT], read.path) if LAYOUT in read.tree else Layout()
    if not others and not layout.part and part is None:
        return tree
    path = tuple(part.strip("/").split("/")) if part else layout.part or place_in(others)
    return placed_among(others | layout.steps_at(step), path, tree, read.path)


def placed_among(others: Any, path: tuple[str, ...], tree: Any, place: Path) -> Any:
    """What else there is, with the optimizer at a path.

    Raises:
      CheckpointError: something else stands there.
    """
    name, *rest = path
    if not isinstance(others, Mapping) or (name in others and not rest):
        raise CheckpointError(
            f"{place}, {leaf_name((name,))}", "a place for the optimizer", "something else there",
            "Name another one: --part NAME.",
        )  # fmt: skip
    inner = placed_among(others.get(name, {}), tuple(rest), tree, place) if rest else tree
    return {**others, name: inner}


def _fitted(found: Any, definition: legacy_optim.OptimizerDef, params: Any, place: Path) -> Any:
    """The state of a file in the NamedTuples of the exact or of the stock recipe."""
    actual = {p: (v.shape, v.dtype) for p, v in leaves(found) if is_array(v)}
    differing: list[str] = []
    for exact, template in state_templates(definition, params):
        plain = serialization.to_state_dict(template)
        wanted = {p: (v.shape, v.dtype) for p, v in leaves(plain) if is_array(v)}
        if wanted == actual:
            state = serialization.from_state_dict(template, _completed(plain, found))
            return state if exact else loaded(state)
        differing += [
            leaf_name(p) for p in set(wanted.items()) ^ set(actual.items()) for p in p[:1]
        ]
    raise CheckpointError(
        f"{place}, ['opt_state']", f"the state of {type(definition).__name__}'s transformation",
        f"leaves that differ: {shown(sorted(set(differing)))}",
        "Give the optimizer whose transformation wrote it.",
    )  # fmt: skip


def _completed(plain: Any, found: Any) -> Any:
    """The found leaves in the structure of a state dict, with the empty nodes that Orbax drops."""
    if isinstance(plain, Mapping):
        if isinstance(found, list | tuple):
            found = {str(index): value for index, value in enumerate(found)}
        return {k: _completed(v, (found or {}).get(k)) for k, v in plain.items()}
    return found
