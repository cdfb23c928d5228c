"""From one checkpoint to another: reads, converts, writes, reads again and compares."""

import os
from collections.abc import Callable, Iterable, Mapping
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
    placed_among,
    read_layout,
    renamed_back,
)
from optax_bridge.checkpoints.lazy import BLOCK, bytes_of, release
from optax_bridge.checkpoints.read import Read, read_checkpoint
from optax_bridge.checkpoints.recognise import Names, at_path, find_states, is_array, leaves
from optax_bridge.checkpoints.restore import restored_like

_LEGACY = "msgpack"  # what programs of flax.optim read
KEEP, FLAT = "keep", "flat"
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
    exact: bool | None = True,
    layout: str = KEEP,
    like: Any = None,
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
      exact: see `optax_bridge.from_legacy`; None: what `migrate` writes unless told otherwise, the
        stock recipe where it is identical or differs by rounding alone.
      layout: "keep": what stood around the optimizer stays where it stood, so that the program's
        own restore finds it; "flat": all of it as fields of one TrainState.
      like: what the program saves, a `TrainState` or a tree with some in it, as the template; it
        says what every optimizer of the checkpoint becomes.
      part: which optimizer, where there are several; on the way back, where it is to stand.
      allow_nan: let NaN in the optimizer's state through.
      verify: read again what was written, and compare every leaf.
      force: replace the destination if it is a checkpoint.
      told: told of progress.

    Returns:
      What was read and what was written.

    Raises:
      CheckpointError: see the readers; nothing is left at the destination then.
      ValueError: no such format is written.
    """
    if layout not in (KEEP, FLAT):
        raise ValueError(f"layout: expected {KEEP!r} or {FLAT!r}, found {layout!r}")
    if msgpack or to_legacy:
        file_format = _LEGACY
    written_as(file_format)
    read = read_checkpoint(source)
    _check_apart(read.path, destination)
    definition, step = optimizer_def, None
    if params_only:
        definition, tree = None, _parameters(read, part)
    elif to_legacy:
        tree, step = back(read, optimizer_def, part)
    elif like is not None:
        tree = restored_like(like, read.tree, read.path)
    else:
        converted = convert_tree(
            read.tree, optimizer_def, exact=exact, part=part, allow_nan=allow_nan, place=read.path
        )
        definition, step = converted.definition, int(converted.step)
        # Every checkpoint of T5X has that level; the way back is Flax's.
        of_level = set(read.tree) == {read.level}
        flat = layout == FLAT or of_level
        tree = converted.flat_tree() if flat else converted.tree(read.path)
        if of_level:
            del tree[LAYOUT]
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
    states = _named(find_states(read.tree), part)
    if len(states) == 1:
        return at_path(read.tree, states[0])["params"]
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


def _named(paths: Iterable[Names], part: str | None) -> list[Names]:
    name = part and part.strip("/")
    return [path for path in paths if not name or not path or name == "/".join(path)]


def back(
    read: Read, definition: legacy_optim.OptimizerDef | None, part: str | None = None
) -> tuple[Any, int]:
    """The legacy tree for a TrainState's checkpoint, and its step.

    Args:
      read: the checkpoint.
      definition: the legacy definition.
      part: where the optimizer is to stand among what else there is, `models/generator`; where
        it stood if None, else at `optimizer`, or alone if there is nothing else. In a checkpoint
        with TrainStates at several places: which.

    Raises:
      CheckpointError: it is no TrainState, or one of another optimizer.
    """
    states = _named(find_states(read.tree), part)
    if len(states) > 1:
        raise CheckpointError(
            read.path, "one TrainState to convert", ", ".join(map("/".join, states)),
            "Name one: --part NAME, or part= in Python.",
        )  # fmt: skip
    if not states:
        names = shown(sorted(read.tree)) if isinstance(read.tree, Mapping) else shown(read.tree)
        raise CheckpointError(
            read.path, "a TrainState: step, params, opt_state", names, "Is it a legacy checkpoint?"
        )
    if definition is None:
        raise CheckpointError(
            read.path, "the legacy optimizer to make", "none given",
            'Name it: --optimizer "Adam(learning_rate=1e-3)".',
        )  # fmt: skip
    state = at_path(read.tree, states[0])
    params, step = state["params"], state["step"]
    number = int(np.asarray(step))
    opt_state = _fitted(state["opt_state"], definition, params, read.path)
    tree = legacy_tree(params, opt_state, step, definition)
    if states[0]:
        return _replaced(read.tree, states[0], tree), number
    others = {
        renamed_back(name): value
        for name, value in read.tree.items()
        if name not in ("step", "params", "opt_state", LAYOUT)
    }
    layout = read_layout(read.tree[LAYOUT], read.path) if LAYOUT in read.tree else Layout()
    if not others and not layout.part and part is None:
        return tree, number
    path = tuple(part.strip("/").split("/")) if part else layout.part or place_in(others)
    return placed_among(others | layout.steps_at(step), path, tree, read.path), number


def _replaced(tree: Any, path: Names, value: Any) -> Any:
    if not path:
        return value
    if isinstance(tree, list | tuple):
        tree = {str(index): item for index, item in enumerate(tree)}
    return {**tree, path[0]: _replaced(tree[path[0]], path[1:], value)}


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
