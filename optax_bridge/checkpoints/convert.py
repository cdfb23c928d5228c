# pyright: strict, reportMissingTypeStubs=false
"""From one checkpoint to another: read, convert in the way that is asked for, write, compare.

The ways are in `conversions`: each chooses a planner, whose plan `moves` checks and carries out.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from optax_bridge._atomic import remove_abandoned
from optax_bridge.checkpoints.conversions import (
    Conversion,
    Definitions,
    Way,
    as_template,
    parameters_alone,
    to_optimizers,
    to_states,
)
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.layout import add_optimizer
from optax_bridge.checkpoints.read import Read, read_checkpoint, written_as
from optax_bridge.checkpoints.to_legacy import legacy_tree
from optax_bridge.checkpoints.trees import fields_of, plain, state_dict
from optax_bridge.checkpoints.write import write
from optax_bridge.checks import check_optimizer_def
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.metadata.trees import PyTree

_LEGACY = "msgpack"  # the format that programs of flax.optim read
KEEP, FLAT = "keep", "flat"


def convert_file(
    source: Path | str,
    destination: Path | str,
    optimizer_def: Definitions = None,
    *,
    to_legacy: bool = False,
    file_format: str = "orbax",
    params_only: bool = False,
    recipe: RecipeKind = "auto",
    layout: str = KEEP,
    like: PyTree = None,
    part: str | None = None,
    allow_nan: bool = False,
    verify: bool = True,
    force: bool = False,
    moved: Callable[[Read, PyTree], Read] | None = None,
    dry_run: bool = False,
) -> Conversion:
    """Converts a checkpoint; the source is only read.

    Args:
      source: see `read_checkpoint`.
      destination: a file for msgpack, a folder for Orbax.
      optimizer_def: the legacy definition; read from the state's fields if None. Of several
        optimizers, the '/'-joined path of each -> its definition.
      to_legacy: from a TrainState to an `Optimizer`, which is Flax msgpack always.
      file_format: the format to write, one of `read.writable()`.
      params_only: write the parameters alone.
      recipe: whose state; see `correspondence.choose_recipe`.
      layout: "keep": entries around the optimizer stay in place, so that the program's own
        restore finds them; "flat": all of them become fields of one TrainState.
      like: a template of the tree that the program saves, which decides the whole result.
      part: which optimizer, where there are several; on the way back, where it is to stand.
      allow_nan: let NaN and infinities in parameters and moments through.
      verify: read the result again, and compare every leaf.
      force: replace the destination if it is a checkpoint.
      dry_run: check everything, and write nothing.
      moved: lays out a checkpoint of another library as `flax.optim` did, given it and `like`.

    Raises:
      CheckpointError: see the readers; nothing is left at the destination then.
      ValueError: no such format is written, or the options do not go together.
    """
    way = _way(
        optimizer_def, to_legacy=to_legacy, params_only=params_only, recipe=recipe, layout=layout,
        like=like, part=part, allow_nan=allow_nan,
    )  # fmt: skip
    file_format = _LEGACY if to_legacy else file_format
    written_as(file_format)
    destination = Path(destination).absolute()
    remove_abandoned(destination.parent)  # also where nothing can be converted
    read = read_checkpoint(source)
    read = read if moved is None else moved(read, like)
    _check_apart(read.path, destination)
    conversion = way(read)
    if not dry_run:
        write(destination, conversion.tree, file_format, force, verify)
    return conversion


def _way(
    optimizer_def: Definitions,
    *,
    to_legacy: bool,
    params_only: bool,
    recipe: RecipeKind,
    layout: str,
    like: PyTree,
    part: str | None,
    allow_nan: bool,
) -> Way:
    """The way to convert; raises ValueError if options do not go together."""
    are_several = isinstance(optimizer_def, Mapping)
    for definition in optimizer_def.values() if are_several else [optimizer_def]:
        check_optimizer_def(definition)
    if are_several and (params_only or part is not None or layout == FLAT):
        raise ValueError(
            "a dict of optimizers converts each of them in place: leave out params_only, part and "
            "layout='flat'"
        )
    if like is not None and layout == FLAT:
        raise ValueError("like decides the whole result: leave out layout='flat'")
    if layout not in (KEEP, FLAT):
        raise ValueError(f"layout: expected {KEEP!r} or {FLAT!r}, found {layout!r}")
    if params_only:
        return partial(parameters_alone, part=part, allow_nan=allow_nan)
    if to_legacy:
        return partial(to_optimizers, definitions=optimizer_def, part=part, allow_nan=allow_nan)
    if like is not None:
        return partial(as_template, like=like, allow_nan=allow_nan)
    return partial(
        to_states, definitions=optimizer_def, part=part, recipe=recipe, is_flat=layout == FLAT,
        allow_nan=allow_nan,
    )  # fmt: skip


def _check_apart(source: Path, destination: Path) -> None:
    # Unlike Path.resolve, this takes links in a circle.
    paths = sorted(Path(os.path.realpath(path)) for path in (source, destination))
    if paths[0] in (paths[1], *paths[1].parents):
        raise CheckpointError(
            destination, "a destination other than the source", f"the source, {source}",
            "The source is only read, never replaced: name another destination.",
        )  # fmt: skip


def to_legacy_checkpoint(
    state: PyTree, path: Path | str, optimizer_def: PyTree, *, part: str | None, force: bool
) -> None:
    """See `TrainState.to_legacy_checkpoint`."""
    path = Path(path)
    tree, _ = legacy_tree(state.params, state.opt_state, state.step, optimizer_def)
    if part is not None:
        names = [name for name in fields_of(state) if name not in ("params", "opt_state")]
        others = {name: v for name in names if (v := getattr(state, name)) is not None}
        others = plain(state_dict(unboxed(others)))  # with keys as the bits that programs had then
        tree = add_optimizer(others, tuple(part.strip("/").split("/")), tree, path)
    write(path, tree, _LEGACY, force)
