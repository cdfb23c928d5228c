"""Starts a Python process under `run`: the old names, then the `sitecustomize` that there was.

Python imports the first `sitecustomize` of its path before the program. `run` puts this folder
first, so the interpreter itself runs the program, and all that the program starts finds it again.
"""

import os
import sys


def _start() -> None:
    """Installs the old names as `run` asked, if this is the Python that it asked for."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if os.environ.get("LEGACY_OPTIM_PYTHON") == sys.prefix + sys.version:
        # Every Python process pays for what this file imports, so it waits until it is needed.
        # This very package, even if the program's own path has under the name.
        from importlib.util import module_from_spec, spec_from_file_location

        root = os.path.dirname(here)
        spec = spec_from_file_location("legacy_optim", os.path.join(root, "__init__.py"))
        assert spec is not None and spec.loader is not None
        sys.modules["legacy_optim"] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
        from legacy_optim import process

        process.start()


def _go_on() -> None:
    """Imports the `sitecustomize` that would have been imported without this one."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    from importlib.util import module_from_spec

    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


_start()
_go_on()
