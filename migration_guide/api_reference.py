# pyright: strict
"""The API reference: every public name of a module, for Sphinx's autodoc to document."""

import functools
import importlib
import inspect
import re
from collections.abc import Iterable
from types import ModuleType

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


# Every span of code, so that what stands between two spans is not one.
_CODE = re.compile(r"(`[^`\n]+`)(\w?)")
_RETURNS = ("Returns:", "Yields:")


@functools.cache
def public_names(module_name: str) -> tuple[str, ...]:
    """The public names of a module or package, sorted without regard to case."""
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if _is_own(module, name, value)]
    public = [name for name in names if not isinstance(getattr(module, name), ModuleType)]
    return tuple(sorted(public, key=str.lower))


def _is_own(module: ModuleType, name: str, value: object) -> bool:
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
    """Directives for all public names of a module; what another one documents is linked."""
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


def _directive(module_name: str, name: str, value: object) -> Iterable[str]:
    full = f"{module_name}.{name}"
    if inspect.isclass(value):
        yield f".. autoclass:: {full}"
        yield from (f"   {option}" for option in (":members:", ":show-inheritance:"))
    elif inspect.isroutine(value) or callable(value):
        yield f".. autofunction:: {full}"
    else:
        yield f".. autodata:: {full}"
    yield ""


def as_rest(lines: list[str]) -> list[str]:
    r"""The lines of a docstring as Sphinx reads them: ours are Markdown, autodoc wants reST."""
    result: list[str] = []
    above = 0  # indentation of the last line of prose
    code: int | None = None
    for index, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            result.append(line)
            continue
        if code is not None and indent < code:
            code = None
        if code is None and indent >= above + 4 and index and not lines[index - 1].strip():
            code = indent
            kind = "pycon" if line.lstrip().startswith(">>>") else "python"
            result += [f"{' ' * above}.. code-block:: {kind}", ""]
        if code is None:
            above = indent
            line = _CODE.sub(lambda m: f"{m[1]}\\ {m[2]}" if m[2] else m[1], line)
            if index and lines[index - 1].strip() in _RETURNS:
                line = f"{line[:indent]}: {line[indent:]}"
        result.append(line)
    return result
