# pyright: strict
"""Parameters of public functions, read from their sources: to import Optax takes seconds."""

import ast
import functools
import inspect
from importlib.machinery import PathFinder
from pathlib import Path

from optax_bridge.correspondence.recipe import Source

NO_DEFAULT = inspect.Parameter.empty


@functools.cache
def parameters_of(function: str) -> dict[str, object] | None:
    """Parameters that may be given by position -> their defaults; None if they cannot be read.

        >>> list(parameters_of("optax.sgd"))[:2]
        ['learning_rate', 'momentum']

    Args:
      function: its dotted name, `optax.sgd`.
    """
    package, _, name = function.rpartition(".")
    for statement in _statements(package):
        if isinstance(statement, ast.ImportFrom):
            names = {alias.asname or alias.name: alias.name for alias in statement.names}
            if name in names and statement.level == 0:
                return parameters_of(f"{statement.module}.{names[name]}")
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return _parameters(statement.args)
    return None


def _parameters(args: ast.arguments) -> dict[str, object]:
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    missing = len(names) - len(args.defaults)
    values = [NO_DEFAULT] * missing + [_value(node) for node in args.defaults]
    return dict(zip(names, values, strict=True))


def _value(node: ast.expr) -> object:
    """A literal, or what else stands there as its source."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Source(ast.unparse(node).replace("jnp.", "jax.numpy."))


@functools.cache
def _statements(module: str) -> list[ast.stmt]:
    """The statements of an installed module, which is not imported."""
    root, *parts = module.split(".")
    spec = PathFinder.find_spec(root)
    if spec is None or not spec.submodule_search_locations:
        return []
    place = Path(spec.submodule_search_locations[0], *parts)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    try:
        return ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
