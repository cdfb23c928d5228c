"""`optax-bridge convert`: one checkpoint to another."""

import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from json import dumps
from pathlib import Path
from typing import Any

import rich.progress
from flax.serialization import to_state_dict
from rich.console import Console

from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.recognise import is_array, leaves
from optax_bridge.checkpoints.transfer import Conversion, convert_file
from optax_bridge.correspondence import UnsupportedSetting
from optax_bridge.correspondence.expression import ExpressionError

DONE, FAILED, MISUSE = 0, 1, 2


def run(
    source: Path, destination: Path, optimizer: str | None, json: bool = False, **options: Any
) -> int:
    """Converts, with a progress bar, and says what was done.

    Args:
      source: see `convert_file`.
      destination: see `convert_file`.
      optimizer: a legacy constructor call as text, or None to read it from the state.
      json: print what was done as JSON.
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

            def told(phase: str, done: int, total: int) -> None:
                if phase not in tasks:
                    tasks[phase] = bar.add_task(phase, total=total)
                bar.update(tasks[phase], completed=done)

            done = convert_file(
                source,
                destination,
                definition,
                told=told if errors.is_terminal else None,
                **options,
            )
    except (CheckpointError, UnsupportedSetting) as error:
        errors.print(str(error), markup=False, highlight=False)
        return FAILED
    except OSError as error:
        errors.print(f"{destination}: {error}", markup=False, highlight=False)
        return FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
        if hook is not sys.__unraisablehook__:  # the plain one need not come back: threads go on
            sys.unraisablehook = hook
    is_new_state = not (options.get("to_legacy") or options.get("params_only"))
    if is_new_state and not options.get("exact", True) and _has_small_floats(done.tree["params"]):
        errors.print(
            "note: the bounds of public Optax are for float32; these parameters have fewer bits, "
            "and its steps may differ by more. `optax-bridge recipe` says how.",
            markup=False, highlight=False,
        )  # fmt: skip
    _report(done, destination, options.get("verify", True), json)
    return DONE


def _without_closed_loops(unraisable: Any) -> None:
    """Drops what threads of tensorstore say to an event loop that Orbax closed when it failed.

    An interrupt that came while a library called back, where it is lost, is repeated.
    """
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    elif str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _has_small_floats(params: Any) -> bool:
    return any(leaf.dtype.itemsize < 4 for _, leaf in leaves(params) if is_array(leaf))


def _terminate(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _report(done: Conversion, destination: Path, verified: bool, json: bool) -> None:
    read = done.read
    plain = to_state_dict(done.tree)
    arrays = [leaf for _, leaf in leaves(plain) if is_array(leaf)]
    size = sum(leaf.nbytes for leaf in arrays)
    name = None if done.definition is None else type(done.definition).__name__
    if json:
        print(dumps({
            "source": str(read.path), "format": read.description, "destination": str(destination),
            "optimizer": name, "step": done.step,
            "arrays": len(arrays), "bytes": size, "verified": verified,
        }))  # fmt: skip
        return
    what = "parameters alone" if name is None else name
    checked = ", read again and compared" if verified else ""
    Console(soft_wrap=True).print(
        f"{read.path} ({read.description}) -> {destination}: {what}, {len(arrays)} arrays, "
        f"{size:,} bytes{checked}",
        markup=False, highlight=False,
    )  # fmt: skip
