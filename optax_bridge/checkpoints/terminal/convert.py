"""`optax-bridge convert`: one checkpoint to another."""

import contextlib
import logging
import signal
import sys
import warnings
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Any

import rich.progress
from flax.serialization import to_state_dict

from optax_bridge._interrupts import repeat_interrupt
from optax_bridge._terminal import plain_terminal
from optax_bridge.checkpoints.conversion import FLAT, Conversion, convert_file
from optax_bridge.checkpoints.definitions import parse_definitions
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.read import Read
from optax_bridge.checkpoints.recognise import find_parts, is_array, leaves, looks_like
from optax_bridge.checkpoints.template import template_named
from optax_bridge.correspondence import UnsupportedSetting, default_recipe, recipe_of
from optax_bridge.correspondence.expression import ExpressionError
from optax_bridge.metadata.trees import Params
from optax_bridge.optimizers.selectors import NothingSelectedWarning

DONE, FAILED, MISUSE = 0, 1, 2


def run(
    source: Path,
    destination: Path,
    optimizers: Sequence[str],
    like: str | None = None,
    json: bool = False,
    **options: Any,
) -> int:
    """Converts, with a progress bar, and says what was done.

    Args:
      source: see `convert_file`.
      destination: see `convert_file`.
      optimizers: a legacy constructor call as text; of several optimizers `"PATH=CALL"` for each;
        none: read from the state.
      like: the name of a program's function that makes the template, see `template_named`.
      json: print what was done as JSON.
      **options: of `convert_file`.

    Returns:
      0, 1 if the checkpoint cannot be converted, 2 if the optimizer is no legacy constructor call.
    """
    errors = plain_terminal(stderr=True)
    # The old optimizers' advice to move on is what is being followed.
    warnings.simplefilter("ignore", DeprecationWarning)
    if like is None:  # a group that holds nothing is the checkpoint's own, and stays as it is
        warnings.simplefilter("ignore", NothingSelectedWarning)
    alone = options.get("to_legacy") or options.get("params_only") or options.get("part")
    flat = options.get("layout") == FLAT
    if like is not None and (optimizers or alone or flat or options.get("exact") is not None):
        errors.print(
            "--like says what everything becomes: leave --optimizer, --to legacy, --params-only, "
            "--part, --layout flat and --recipe out"
        )
        return MISUSE
    try:
        named = parse_definitions(optimizers)
    except (ExpressionError, TypeError, ValueError) as error:
        errors.print(str(error))
        return MISUSE
    definition: Any = named[""] if set(named) == {""} else named or None
    if isinstance(definition, dict) and (alone or flat):
        errors.print(
            "with several optimizers all are converted where they stand: leave --to legacy, "
            "--params-only, --part and --layout flat out"
        )
        return MISUSE
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    bar = rich.progress.Progress(*columns, console=errors, transient=True)
    # So that nothing is left behind; an interrupt from the keyboard is an exception anyway.
    before = signal.signal(signal.SIGTERM, _terminate)
    # Orbax's threads report a failure once more, and may do so late; one error is enough.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    hook, sys.unraisablehook = sys.unraisablehook, _without_closed_loops
    try:
        with bar if errors.is_terminal else contextlib.nullcontext():
            tasks: dict[str, rich.progress.TaskID] = {}

            def progress(phase: str, done: int, total: int) -> None:
                if phase not in tasks:
                    tasks[phase] = bar.add_task(phase, total=total)
                bar.update(tasks[phase], completed=done)

            done = convert_file(
                source,
                destination,
                definition,
                like=None if like is None else template_named(like),
                progress=progress if errors.is_terminal else None,
                **options,
            )
    except (CheckpointError, UnsupportedSetting, OSError) as error:
        errors.print(f"{destination}: {error}" if isinstance(error, OSError) else str(error))
        return FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
        if hook is not sys.__unraisablehook__:  # the plain one need not come back: threads go on
            sys.unraisablehook = hook
    is_new_state = not (options.get("to_legacy") or options.get("params_only"))
    recipes = _recipes(done, options) if is_new_state else {}
    if "stock" in recipes.values() and _has_small_floats(done.read.tree):
        errors.print(
            "note: the bounds of public Optax are for float32; these parameters have fewer bits, "
            "and its steps may differ by more. `optax-bridge recipe` says how."
        )
    _report(done, destination, options.get("verify", True), json, like, recipes)
    return DONE


def _looks(read: Read) -> dict[str, str]:
    """What each optimizer looks like by where it stands; none where only the template knows."""
    try:
        return {part.name: looks_like(part) for part in find_parts(read.tree, read.path)}
    except CheckpointError:  # the members of a population, which no definition is asked about
        return {}


def _without_closed_loops(unraisable: Any) -> None:
    """Drops what threads of tensorstore say to an event loop that Orbax closed when it failed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        repeat_interrupt(unraisable)


def _recipes(done: Conversion, options: dict[str, Any]) -> dict[str, str]:
    """Which recipe's state was written, `exact` or `stock`, by order or by default, by path."""
    exact = options.get("exact", True)

    def is_exact(definition: Any) -> bool:
        return default_recipe(definition) == recipe_of(definition)[0] if exact is None else exact

    return {
        path: "exact" if is_exact(definition) else "stock"
        for path, definition in _by_path(done.definition).items()
    }


def _by_path(definition: Any) -> dict[str, Any]:
    """The definitions of a checkpoint by where they stand, "" for the one of the whole."""
    if isinstance(definition, dict):
        return definition
    return {} if definition is None else {"": definition}


def _has_small_floats(params: Params) -> bool:
    return any(leaf.dtype.itemsize < 4 for _, leaf in leaves(params) if is_array(leaf))


def _terminate(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _report(
    done: Conversion,
    destination: Path,
    verified: bool,
    json: bool,
    like: str | None,
    recipes: dict[str, str],
) -> None:
    read = done.read
    plain = to_state_dict(done.tree)
    arrays = [leaf for _, leaf in leaves(plain) if is_array(leaf)]
    size = sum(leaf.nbytes for leaf in arrays)
    classes = {path: type(each).__name__ for path, each in _by_path(done.definition).items()}
    if like:
        classes = _looks(read)

    def listed(ends: dict[str, str]) -> str:
        return ", ".join(
            f"{path}: {name}{ends.get(path, '')}" if path else f"{name}{ends.get(path, '')}"
            for path, name in classes.items()
        )

    if json:
        kinds = set(recipes.values())
        recipe = kinds.pop() if len(kinds) == 1 else recipes or None
        print(dumps({
            "source": str(read.path), "format": read.description, "destination": str(destination),
            "optimizer": listed({}) or None, "recipe": recipe, "step": done.step,
            "arrays": len(arrays), "bytes": size, "verified": verified,
        }))  # fmt: skip
        return
    what = listed({path: f" ({recipe})" for path, recipe in recipes.items()})
    what = f"{what} as the template has it".lstrip() if like else what or "parameters alone"
    checked = ", read again and compared" if verified else ""
    plain_terminal().print(
        f"{read.path} ({read.description}) -> {destination}: {what}, {len(arrays)} arrays, "
        f"{size:,} bytes{checked}"
    )
