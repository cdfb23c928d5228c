# pyright: strict
"""`--like module:make_state`: the state of a program as the template of a conversion."""

import os
import re
import shlex
import traceback
from pathlib import Path
from typing import Any

from optax_bridge._named import module_named, with_own_arguments
from optax_bridge.checkpoints.errors import CheckpointError, shown

# What the error of a program that imports flax.optim, or asks Flax for it, is about.
_OLD_NAMES = {"flax", "optim"}


def template_named(name: str) -> Any:
    """What a function of a program makes.

    Args:
      name: `package.module:make_state`, or `folder/program.py:make_state`; modules of the current
        folder are found. The function takes no arguments and returns a `TrainState`, or whatever
        the program saves that holds some; it may also be that itself.

    Raises:
      CheckpointError: there is nothing of that name, or it fails.
    """
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise CheckpointError(
            name, "module:function, e.g. train.py:make_state", shown(name),
            "Name the function that makes what the program saves.",
        )  # fmt: skip
    try:
        value = getattr(module_named(module), attribute)
        if not callable(value):
            return value
        with with_own_arguments(module):
            return value()
    except (Exception, SystemExit) as error:  # whatever the user's program raises
        remedy = (
            "The program is imported and the function called without arguments: what runs it "
            "belongs below if __name__ == '__main__', or the function into a file of its own."
        )
        words = {*re.findall(r"\w+", str(error))}
        if isinstance(error, ImportError | AttributeError) and words.issuperset(_OLD_NAMES):
            file = shlex.quote(_file_that_raised(error))
            remedy = f"Migrate it first: optax-bridge migrate --write {file}"
        raise CheckpointError(
            name, "what a program saves", f"{type(error).__name__}: {shown(str(error), 300)}",
            remedy,
        ) from error  # fmt: skip


def _file_that_raised(error: BaseException) -> str:
    """The file that an error comes from, which the one that was named may only import."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    file = next((Path(file) for file in reversed(files) if os.path.isfile(file)), Path("FILE"))
    is_near = file.is_relative_to(Path.cwd())
    return str(file.relative_to(Path.cwd()) if is_near else file)
