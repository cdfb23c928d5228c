"""`optax-bridge convert`: one checkpoint to another."""

import warnings
from pathlib import Path
from typing import Any

import rich.progress
from rich.console import Console

from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.recognise import is_array, leaves
from optax_bridge.checkpoints.transfer import convert_file
from optax_bridge.correspondence import UnsupportedSetting
from optax_bridge.parse import ExpressionError

DONE, FAILED, MISUSE = 0, 1, 2


def run(source: Path, destination: Path, optimizer: str | None, **options: Any) -> int:
    """Converts, with a progress bar, and says what was done.

    Args:
      source: see `convert_file`.
      destination: see `convert_file`.
      optimizer: a legacy constructor call as text, or None to read it from the state.
      **options: of `convert_file`.

    Returns:
      0, 1 if the checkpoint cannot be converted, 2 if the optimizer is no legacy constructor call.
    """
    errors = Console(stderr=True, soft_wrap=True)
    # The old optimizers' advice to move on is what is being followed.
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        definition = None if optimizer is None else parse_definition(optimizer)
    except (ExpressionError, TypeError, ValueError) as error:
        errors.print(str(error), markup=False, highlight=False)
        return MISUSE
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    try:
        with rich.progress.Progress(*columns, console=errors, transient=True) as bar:
            tasks: dict[str, rich.progress.TaskID] = {}

            def told(phase: str, done: int, total: int) -> None:
                if phase not in tasks:
                    tasks[phase] = bar.add_task(phase, total=total)
                bar.update(tasks[phase], completed=done)

            read, tree = convert_file(source, destination, definition, told=told, **options)
    except (CheckpointError, UnsupportedSetting) as error:
        errors.print(str(error), markup=False, highlight=False)
        return FAILED
    except OSError as error:
        errors.print(f"{destination}: {error}", markup=False, highlight=False)
        return FAILED
    arrays = [leaf for _, leaf in leaves(_plain(tree)) if is_array(leaf)]
    size = sum(leaf.nbytes for leaf in arrays)
    checked = ", read again and compared" if options.get("verify", True) else ""
    Console(soft_wrap=True).print(
        f"{read.path} ({read.description}) -> {destination}: {len(arrays)} arrays, {size:,} "
        f"bytes{checked}",
        markup=False, highlight=False,
    )  # fmt: skip
    return DONE


def _plain(tree: Any) -> Any:
    from flax.serialization import to_state_dict

    return to_state_dict(tree)
