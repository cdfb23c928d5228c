"""What a user names on the command line: `module:name` or `file.py:name`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from equivalence_tests.sides.adapt import EXPECTED, EquivalenceError, adapted


def loaded(name: str, *, make: bool = False) -> Any:
    """The object that a name stands for; modules of the current folder are found.

    Args:
      name: `module:name`, `package.module:name` or `path/to/file.py:name`.
      make: whether a function is called, without arguments.

    Raises:
      EquivalenceError: there is no such thing, or it raised an error.
    """
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise EquivalenceError(
            f"{name}: expected module:name or file.py:name, e.g. mypackage.optimizers:adam"
        )
    try:
        value = getattr(_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise EquivalenceError(f"{name}: {error}") from None
    except Exception as error:  # whatever the user's module raises when it is imported
        raise EquivalenceError(
            f"{name}: importing {module} raised {type(error).__name__}: {error}"
        ) from error
    if not make or not callable(value):
        return value
    try:
        return value()
    except Exception as error:
        raise EquivalenceError(f"{name}(): raised {type(error).__name__}: {error}") from error


def side(name: str) -> Any:
    """The side that a name stands for, or that the function of that name makes.

    Raises:
      EquivalenceError: it is neither.
    """
    value = loaded(name)
    try:
        adapted(value)
        return value
    except EquivalenceError:
        if not callable(value):
            raise EquivalenceError(
                f"{name}: {EXPECTED}, or a function that makes one; found {type(value).__name__}"
            ) from None
    return loaded(name, make=True)


def _module(name: str) -> ModuleType:
    file = Path(name)
    folder = str(file.parent.resolve() if file.suffix == ".py" else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if file.suffix != ".py":
        return importlib.import_module(name)
    if not file.is_file():
        raise ImportError(f"there is no file {file}")
    # Under a name of its own: the old program and the migrated one may both be train.py.
    own = f"_loaded_from_{abs(hash(file.resolve()))}_{file.stem}"
    if own in sys.modules:
        return sys.modules[own]
    spec = importlib.util.spec_from_file_location(own, file)
    assert spec is not None and spec.loader is not None  # of a .py file there always is
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]
        raise
    return module
