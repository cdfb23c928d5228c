"""The modules of programs that a user names on the command line: `package.module` or `file.py`."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

from legacy_optim.logs import without_note_on_tensorflow


@contextlib.contextmanager
def with_own_arguments(name: str) -> Generator[None]:
    """Within it a program sees its own name on the command line, and no arguments.

    Programs read `sys.argv` as they are imported, or as they make their state; the options there
    are those of the command that names the program.

    Args:
      name: `package.module` or `path/to/file.py`.
    """
    before = sys.argv
    sys.argv = [name]
    try:
        yield
    finally:
        sys.argv = before


def module_named(name: str) -> ModuleType:
    """Imports a module by its name, or a file by its path; what lies beside it is found.

    Args:
      name: `package.module`, looked for in the current folder as well, or `path/to/file.py`.

    Raises:
      ImportError: there is no such file or module.
      Exception: whatever the program raises when it is imported.
    """
    without_note_on_tensorflow()
    file = Path(name)
    folder = str(file.parent.resolve() if file.suffix == ".py" else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if file.suffix != ".py":
        with with_own_arguments(name):
            return importlib.import_module(name)
    if not file.is_file():
        raise ImportError(f"there is no file {file}")
    # Under a name of its own: the old program and the migrated one may both be train.py.
    own = str(file.resolve())  # which messages show
    if own in sys.modules:
        return sys.modules[own]
    spec = importlib.util.spec_from_file_location(own, file)
    assert spec is not None and spec.loader is not None  # of a .py file there always is
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        with with_own_arguments(name):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]
        raise
    return module
