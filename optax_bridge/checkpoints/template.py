"""`--like module:make_state`: the state of a program as the template of a conversion."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from optax_bridge.checkpoints.errors import CheckpointError, shown


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
        value = getattr(_module(module), attribute)
        return value() if callable(value) else value
    except Exception as error:  # whatever the user's program raises
        raise CheckpointError(
            name, "what a program saves", f"{type(error).__name__}: {shown(str(error), 300)}",
            "The program is imported and the function called without arguments.",
        ) from error  # fmt: skip


def _module(name: str) -> Any:
    path = Path(name)
    is_file = path.suffix == ".py"
    folder = str((path.parent if is_file else Path()).resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not is_file:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
