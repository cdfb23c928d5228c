"""The API reference: every public name of a module, for Sphinx's autodoc to document."""

import functools
import importlib
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any


@functools.cache
def public_names(module_name: str) -> tuple[str, ...]:
    """The public names of a module or package, sorted without regard to case.

    Those of its `__all__`; without one, what is defined in it or below it. Submodules are not
    among them: a page names the modules that it is about.

    Args:
      module_name: dotted name.
    """
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if _is_own(module, name, value)]
    public = [name for name in names if not isinstance(getattr(module, name), ModuleType)]
    return tuple(sorted(public, key=str.lower))


def _is_own(module: ModuleType, name: str, value: Any) -> bool:
    home = getattr(value, "__module__", None) or ""
    is_below = home == module.__name__ or home.startswith(f"{module.__name__}.")
    return not name.startswith("_") and is_below and (callable(value) or inspect.isclass(value))


def api_markdown(module_name: str) -> str:
    """Directives for all public names of a module, by where they are defined.

    Args:
      module_name: dotted name.
    """
    module = importlib.import_module(module_name)
    lines = ["```{eval-rst}", f".. currentmodule:: {module_name}", ""]
    for name in public_names(module_name):
        lines += _directive(module_name, name, getattr(module, name))
    return "\n".join([inspect.getdoc(module) or "", "", *lines, "```"])


def _directive(module_name: str, name: str, value: Any) -> Iterable[str]:
    full = f"{module_name}.{name}"
    if inspect.isclass(value):
        yield f".. autoclass:: {full}"
        yield from (f"   {option}" for option in (":members:", ":show-inheritance:"))
    elif inspect.isroutine(value) or callable(value):
        yield f".. autofunction:: {full}"
    else:
        yield f".. autodata:: {full}"
    yield ""
