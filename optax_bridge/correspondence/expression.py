"""Reading a legacy constructor call from text: parsed as Python, never evaluated."""

import ast
import inspect
import warnings
from typing import Any

from optax_bridge.correspondence import ENTRIES, Described
from optax_bridge.correspondence.entry import Entry
from optax_bridge.correspondence.recipe import Name, Source

_DTYPES = ("bfloat16", "float16", "float32", "float64")
MAX_DEPTH = 50  # of calls, signs and brackets in one another; Python's own parser gives up as well
MAX_LENGTH = 10_000


class ExpressionError(ValueError):
    """An expression that is not a legacy constructor call; says where, and what would be."""


def parse(expression: str) -> Described:
    """Reads `"Adam(learning_rate=1e-3)"`; a prefix such as `optim.` or `flax.optim.` is allowed.

    Args:
      expression: the call. Arguments are literals, dtypes (`jnp.bfloat16`) or, for wrapped
        optimizers, constructor calls. Anything else is kept as the source text it is.

    Returns:
      The optimizer that it describes, defaults filled in.

    Raises:
      ExpressionError: it does not parse, or is no call of a legacy optimizer, or has arguments that
        the constructor does not take.
    """
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(
            f"{_cut(expression)} has {len(expression)} characters; expected one constructor call "
            f"of at most {MAX_LENGTH}"
        )
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # of `1or 2`
            tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(
            f"{_cut(expression)} is not a Python expression: {error.msg} at column {error.offset}"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte, or far too deep
        raise ExpressionError(
            f"{_cut(expression)} is not a Python expression that can be read: {error}"
        ) from None
    _check_depth(tree, expression)
    return _optimizer(tree, expression)


def _check_depth(tree: ast.AST, text: str) -> None:
    """Checks the depth without recursion, so that what follows may recurse."""
    nodes = [(tree, 0)]
    while nodes:
        node, depth = nodes.pop()
        if depth > MAX_DEPTH:
            raise ExpressionError(
                f"{_cut(text)} is nested too deep; expected at most {MAX_DEPTH} levels of calls, "
                "signs and brackets"
            )
        nodes += [(child, depth + 1) for child in ast.iter_child_nodes(node)]


def _cut(text: str) -> str:
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


def _optimizer(node: ast.expr, text: str) -> Described:
    by_class = {entry.legacy.__name__: entry for entry in ENTRIES.values()}
    name = _class_name(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name not in by_class:
        raise ExpressionError(
            f"{_text(node, text)!r} is no call of a legacy optimizer; expected one of "
            f'{", ".join(sorted(by_class))}, e.g. "Adam(learning_rate=1e-3)"'
        )
    entry = by_class[name]
    return Described(entry, entry.defaults() | _arguments(node, entry, text))


def _arguments(node: ast.Call, entry: Entry, text: str) -> dict[str, Any]:
    names = [hp.legacy for hp in entry.hyper_params]
    if any(hp.variadic for hp in entry.hyper_params):
        return {names[0]: tuple(_value(arg, text) for arg in node.args)}
    if len(node.args) > len(names) or any(isinstance(arg, ast.Starred) for arg in node.args):
        raise ExpressionError(
            f"{_text(node, text)!r}: {entry.legacy.__name__} takes {len(names)} arguments, "
            f"{', '.join(names)}, each written out"
        )
    given = dict(zip(names, (_value(arg, text) for arg in node.args), strict=False))
    for keyword in node.keywords:
        if keyword.arg not in names or keyword.arg in given:
            raise ExpressionError(
                f"{_text(node, text)!r}: {entry.legacy.__name__} has no argument "
                f"{_text(keyword, text)!r} left; it takes {', '.join(names)}"
            )
        given[keyword.arg] = _value(keyword.value, text)
    required = [hp.legacy for hp in entry.hyper_params if hp.default is inspect.Parameter.empty]
    missing = [name for name in required if name not in given]
    if missing:
        raise ExpressionError(f"{_text(node, text)!r}: {missing[0]} is missing")
    if entry.parts is not None and not isinstance(given[required[0]], Described | Source):
        raise ExpressionError(
            f"{_text(node, text)!r}: {required[0]} is an optimizer, e.g. {entry.parts.example}"
        )
    return given


def _value(node: ast.expr, text: str) -> Any:
    try:
        literal = ast.literal_eval(node)
    except (ValueError, TypeError):
        pass
    else:
        return _setting(literal, node, text)
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, text) for item in node.elts)
    name = _class_name(node.func) if isinstance(node, ast.Call) else _class_name(node)
    if isinstance(node, ast.Call) and name in {e.legacy.__name__ for e in ENTRIES.values()}:
        return _optimizer(node, text)
    if name in _DTYPES:
        return Name(f"jax.numpy.{name}")
    return Source(_text(node, text))


def _setting(value: Any, node: ast.expr, text: str) -> Any:
    for item in value if isinstance(value, tuple) else ():
        _setting(item, node, text)
    if isinstance(value, bool | int | float | str | tuple | None):
        return value
    raise ExpressionError(
        f"{_text(node, text)!r} is no setting of an optimizer; expected a number, text, None, a "
        "dtype such as jnp.bfloat16, or a tuple of them"
    )


def _class_name(node: ast.expr) -> str | None:
    """The last part of a dotted name, None for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr if _class_name(node.value) is not None else None
    return node.id if isinstance(node, ast.Name) else None


def _text(node: ast.AST, text: str) -> str:
    return ast.get_source_segment(text.strip(), node) or text
