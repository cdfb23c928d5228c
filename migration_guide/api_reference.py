# pyright: strict
"""The API reference: every public name of a module, for Sphinx's autodoc to document."""

import functools
import importlib
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any

# Every module whose names are public. A name that several have is documented with the first.
MODULES = (
    "optax_bridge",
    "optax_bridge.checkpoints",
    "optax_bridge.correspondence",
    "optax_bridge.torch",
    "optax_bridge.metadata.param_axes",
    "optax_bridge.training.nnx",
    "legacy_optim",
    "equivalence_tests",
    "equivalence_tests.proof",
    "equivalence_tests.pytest_plugin",
    "optax_bridge.spmd.config",
    "optax_bridge.spmd.module",
    "optax_bridge.spmd.layer",
    "optax_bridge.spmd.learner",
    "optax_bridge.spmd.optimizers",
    "optax_bridge.spmd.trainer",
    "optax_bridge.spmd.checkpointer",
    "optax_bridge.spmd.evaler",
    "optax_bridge.spmd.output_writer",
    "optax_bridge.spmd.input",
    "optax_bridge.spmd.dispatch",
    "optax_bridge.spmd.summaries",
    "optax_bridge.spmd.metrics",
    "optax_bridge.spmd.mesh",
    "optax_bridge.spmd.launch",
    "optax_bridge.spmd.trees",
)


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


def home(module_name: str, name: str) -> str:
    """The module whose page documents a public name: the first of `MODULES` that has it."""
    value = getattr(importlib.import_module(module_name), name)
    for other in MODULES:
        if name in public_names(other) and getattr(importlib.import_module(other), name) is value:
            return other
    return module_name


def api_markdown(module_name: str) -> str:
    """Directives for all public names of a module; what another one documents is linked.

    Args:
      module_name: dotted name.
    """
    module = importlib.import_module(module_name)
    homes = {name: home(module_name, name) for name in public_names(module_name)}
    here, lines = module_name, [f".. py:currentmodule:: {module_name}", ""]
    for name, where in homes.items():
        if where == here:
            lines += _directive(module_name, name, getattr(module, name))
    elsewhere = [f":py:obj:`{where}.{name}`" for name, where in homes.items() if where != here]
    if elsewhere:
        lines += [f"Also here: {', '.join(elsewhere)}.", ""]
    text = inspect.getdoc(module) or ""
    return "\n".join([text, "", "```{eval-rst}", *lines, "```"])


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
