# pyright: strict
"""Literals of Python as text: parsed, never evaluated. Imports nothing that is slow."""

import ast
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

_NOTHING: Mapping[str, object] = MappingProxyType({})
NO_LITERAL = "it is not a literal"


def expression(text: str) -> ast.expr:
    """The syntax tree of an expression; a ValueError if it cannot be parsed."""
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # of `1or 2`
            return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{error.msg} at column {error.offset}") from None
    except (RecursionError, MemoryError) as error:
        raise ValueError(str(error) or "it is nested too deep") from None


def literal(
    node: ast.expr,
    names: Mapping[str, object] = _NOTHING,
    call: Callable[[ast.Call], object] | None = None,
) -> object:
    """The value of a literal, which may hold names and calls that the caller knows."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = literal(operand, names, call)
            if isinstance(value, int | float | complex) and not isinstance(value, bool):
                return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items):
            return [literal(item, names, call) for item in items]
        case ast.Tuple(elts=items):
            return tuple(literal(item, names, call) for item in items)
        case ast.Dict(keys=keys, values=values) if all(keys):
            pairs = [(key, value) for key, value in zip(keys, values, strict=True) if key]
            return {literal(key, names, call): literal(value, names, call) for key, value in pairs}
        case ast.Call() if call is not None:
            return call(node)
        case _:
            pass
    raise ValueError(NO_LITERAL)
