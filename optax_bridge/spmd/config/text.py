"""Keys and values as text, read by a parser of literals, never evaluated; what differs by them."""

import ast
import math
import re
from typing import Any

from optax_bridge.spmd.config.base import ConfigBase
from optax_bridge.spmd.config.required import REQUIRED
from optax_bridge.spmd.config.walking import Children, leaf_text

# A step of a key: the name of a field, or a list with the index of an element or the key of a dict.
Step = str | list[Any]

_FIELD = re.compile(r"[a-z][a-z0-9_]*")
# What is in brackets; those in strings do not count.
_ELEMENT = re.compile(r"""\[((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^]'"])*)\]""")
_NAMES = {"None": None, "True": True, "False": False, "inf": math.inf, "nan": math.nan}
_NAMES["REQUIRED"] = REQUIRED


def parse_value(text: str) -> Any:
    """The value of a literal.

    Literals of Python are read, and `inf`, `nan`, `REQUIRED`, `P('data', None)` (or
    `PartitionSpec(...)`) and `dtype('float32')`.

    Raises:
      ValueError: it is no such literal.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        return _value(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"not a literal: {text!r}") from None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
            value = _value(operand)
            if type(value) not in (int, float):
                raise ValueError("a sign is for numbers")
            return -value if isinstance(op, ast.USub) else value
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element) for element in elements)
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            pairs = zip(keys, values, strict=True)
            return {_value(key): _value(value) for key, value in pairs if key is not None}
        case ast.Call(func=func, args=arguments, keywords=[]):
            return _call(ast.unparse(func), [_value(argument) for argument in arguments])
        case _:
            raise ValueError("not a literal")


def _call(name: str, arguments: list[Any]) -> object:
    if name in ("P", "PartitionSpec"):
        from jax.sharding import PartitionSpec  # JAX, which few configs need to be read

        return PartitionSpec(*arguments)
    if name == "dtype":
        import numpy as np  # slow to import, too

        return np.dtype(*arguments)
    if name == "np.float64":  # a float, and shown so
        return float(*arguments)
    raise ValueError(f"{name} is not known")


def parse_key(text: str, start: int = 0) -> tuple[list[Step], int]:
    """The steps of a key such as `model.layers[0].rules['a']`, from a position of the text on.

    Returns:
      The steps, and the position behind the key.

    Raises:
      ValueError: there is no key.
    """
    steps: list[Step] = []
    at = start
    while True:
        element = _ELEMENT.match(text, at) if steps else None
        if element is not None:
            steps.append([parse_value(element.group(1))])
            at = element.end()
            continue
        if steps and text[at : at + 1] != ".":
            return steps, at
        field = _FIELD.match(text, at + bool(steps))
        if field is None:
            raise ValueError(f"not a key: {text[start:]!r}")
        steps.append(field.group())
        at = field.end()


def key_text(steps: list[Step]) -> str:
    """The key of these steps, as text."""
    shown = [f"[{step[0]!r}]" if isinstance(step, list) else f".{step}" for step in steps]
    return "".join(shown).removeprefix(".")


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


class ConfigDiff(dict[str, tuple[object, object]]):
    """Pairs of values by key; `ABSENT` for what one config lacks. As text, a line for each."""

    def __str__(self) -> str:
        return "\n".join(
            f"{key}: {leaf_text(before)} -> {leaf_text(after)}"
            for key, (before, after) in self.items()
        )


def diff(a: ConfigBase, b: ConfigBase) -> ConfigDiff:
    """Returns the differences of b from a, by the keys of `debug_string`.

    Values of other types differ, even if they are equal, as 1 and 1.0 are. Containers that differ
    in type, and empty ones, have entries of their own.

    Example:
      >>> from optax_bridge.spmd.layer import Linear
      >>> cfg = Linear.default_config()
      >>> print(diff(cfg, cfg.clone(input_dim=3, bias=False)))
      bias: True -> False
      input_dim: REQUIRED -> 3
    """
    before, after = _flat(a), _flat(b)
    differences = ConfigDiff()
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(key, ABSENT), after.get(key, ABSENT)
        if type(old) is not type(new) or not (old is new or bool(old == new)):
            differences[key] = old, new
    return differences


def _flat(cfg: ConfigBase) -> dict[str, object]:
    """Leaves by key, and the type of every container; of an empty one the container itself."""
    flat: dict[str, object] = {}

    def enter(key: str, value: object, children: Children | None) -> Children | None:
        if isinstance(value, ConfigBase) or children:
            flat[key] = type(value)
        elif children is not None:
            flat[key] = value
        return children

    cfg.visit(flat.__setitem__, enter_fn=enter)
    return flat
