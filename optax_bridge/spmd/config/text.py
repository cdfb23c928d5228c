"""Configs as text: keys and values, read by a parser of literals, never evaluated; differences."""

import ast
import enum
import importlib
import math
import re
from typing import Any, NamedTuple, Union, get_args, get_origin

import attr

from optax_bridge._literals import expression, literal
from optax_bridge.spmd.config.base import ConfigBase
from optax_bridge.spmd.config.instantiable import (
    Configurable,
    config_for_class,
    config_for_function,
)
from optax_bridge.spmd.config.values import REQUIRED, RequiredFieldValue, unknown_name
from optax_bridge.spmd.config.walking import (
    Children,
    by_name,
    field_names,
    field_names_of,
    leaf_text,
    record_fields,
    replace_fields,
)

# A step of a key: the name of a field, or a list with the index of an element or the key of a dict.
Step = str | list[Any]

_FIELD = re.compile(r"[a-z][a-z0-9_]*")
# An index or key in brackets; brackets in strings do not count.
_ELEMENT = re.compile(r"""\[((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^]'"])*)\]""")
_NAMES = {"None": None, "True": True, "False": False, "inf": math.inf, "nan": math.nan}
_NAMES["REQUIRED"] = REQUIRED


def parse_value(text: str) -> Any:
    """The value of a literal."""
    try:
        return literal(expression(text), _NAMES, _call)
    except (ValueError, RecursionError):
        raise ValueError(f"not a literal: {text!r}") from None


def _call(node: ast.Call) -> object:
    name = ast.unparse(node.func)
    arguments: list[Any] = [literal(arg, _NAMES, _call) for arg in node.args]
    if node.keywords:
        raise ValueError("an argument by name")
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
    """The steps of a key such as `model.layers[0].rules['a']`, from a position of the text on."""
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
    """Pairs of values by key; `ABSENT` where a config lacks it. As text, a line for each."""

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


class _Element(NamedTuple):
    """A step into a container; names of fields are strings."""

    key: Any


# The entries below a key by the next step, in the order of the text; leaves are text.
_Tree = dict[str | _Element, Union[str, "_Tree"]]


def from_debug_string(text: str, *, like: ConfigBase | None = None) -> Any:
    """The config that has this `debug_string`.

    Nothing in the text is evaluated. Classes and functions are imported by name, unless they are
    those of `like`. A string is looked up where the field's type is callable; elsewhere one that is
    the name of a class is taken for the class where the type does not mention str. Fields whose
    default is None or REQUIRED may be absent; others that are absent have been empty containers.

    Args:
      text: of `debug_string`, with its default separators. Lines that start with `#` are skipped.
      like: a config of nearly this content, such as one from the program that made the other. Where
        the text does not tell, list or tuple, dict or dataclass, it is as in this one; otherwise as
        in the field's default, else a list (a tuple at a field for tuples) or a dict. A value that
        cannot be read, such as an object of the program's class, is taken from it if it is shown by
        the same text there.

    Returns:
      A config of the class that the leaf `klass` or `fn` says.

    Raises:
      ValueError: naming the line; or the key that no config has, or whose value cannot be read.
    """
    root: _Tree = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            steps, end = parse_key(line)
        except ValueError:
            raise ValueError(f"line {number} has no key: {line!r}") from None
        if line[end : end + 2] != ": ":
            raise ValueError(f"line {number} has no ': ' behind the key {line[:end]!r}: {line!r}")
        *parents, last = (_Element(step[0]) if isinstance(step, list) else step for step in steps)
        tree = root
        for step in parents:
            below = tree.setdefault(step, {})
            if isinstance(below, str):
                raise ValueError(f"{line[:end]!r} is below another value.")
            tree = below
        if last in tree:
            raise ValueError(f"line {number}: {line[:end]} is there twice.")
        tree[last] = line[end + 2 :]
    return _config(root, [], like)


def _config(tree: _Tree, path: list[Step], like: object) -> ConfigBase:
    where = key_text(path) or "the config"
    maker = next((name for name in ("klass", "fn") if name in tree), None)
    cfg: Any = None
    if maker is None:
        if not isinstance(like, ConfigBase):
            raise ValueError(
                f"{where} has neither a klass nor a fn that says what it makes; pass a config "
                "`like` it."
            )
        cfg = like.clone()
    else:
        same = like if isinstance(like, ConfigBase) and maker in like else None
        now = getattr(same, maker, None)
        target = _leaf(tree[maker], [*path, maker], now, callable_wanted=True)
        if same is not None and getattr(same, maker) is target:
            cfg = same.clone()
        elif maker == "fn":
            cfg = config_for_function(target)
        elif isinstance(target, type) and issubclass(target, Configurable):
            cfg = target.default_config()
        else:
            cfg = config_for_class(target)
    values: dict[str, object] = {}
    for name, node in tree.items():
        if name == maker:
            continue
        if not isinstance(name, str) or name not in cfg:
            raise ValueError(f"{where} has no field {unknown_name(str(name), field_names(cfg))}")
        values[name] = _node(node, [*path, name], getattr(cfg, name), _field(cfg, name).type)
    for name in field_names(cfg):
        if name not in tree:
            values[name] = _absent(cfg, name, [*path, name])
    return cfg.set(**values)


def _field(cfg: ConfigBase, name: str) -> Any:
    return attr.fields_dict(type(cfg))[name]


def _absent(cfg: ConfigBase, name: str, path: list[Step]) -> object:
    """The value of a field that has no entry: its default was left out, or it is empty."""
    default, now = _field(cfg, name).default, getattr(cfg, name)
    if default is None or isinstance(default, RequiredFieldValue):
        empty = isinstance(now, list | tuple | dict) and not now
        return now if empty else default  # both have no entry
    for value in (now, default):
        if record_fields(value) is not None:
            break
        if isinstance(value, list | dict | tuple):
            return type(value)()
    raise ValueError(f"{key_text(path)} is absent, and its default {default!r} was not left out.")


def _node(node: str | _Tree, path: list[Step], like: object, annotation: object = None) -> object:
    if isinstance(node, str):
        return _leaf(node, path, like, annotation)
    if all(isinstance(step, str) for step in node):
        return _config(node, path, like)
    below: dict[Any, object] = {}
    for step, child in node.items():
        if not isinstance(step, _Element):
            raise ValueError(f"{key_text(path)} has both fields and elements.")
        part, of_part = _part(like, step.key), _of_elements(annotation)
        below[step.key] = _node(child, [*path, [step.key]], part, of_part)
    return _container(below, path, like, annotation)


def _part(value: Any, key: Any) -> object:
    """The element of a container, or None."""
    try:
        return (record_fields(value) or value)[key]
    except (LookupError, TypeError):
        return None


def _container(
    below: dict[Any, object], path: list[Step], like: object, annotation: object
) -> object:
    fields = record_fields(like)
    if fields is not None:
        for name in below.keys() - fields.keys():
            where = key_text([*path, [name]])
            raise ValueError(f"{where}: {type(like).__name__} has no such field.")
        return replace_fields(like, below)
    if isinstance(like, dict):
        return type(like)(below)
    if list(below) == list(range(len(below))):
        if isinstance(like, list | tuple):
            return type(like)(below.values())
        mentioned = _classes_in(annotation)
        is_tuple = tuple in mentioned and list not in mentioned
        return tuple(below.values()) if is_tuple else list(below.values())
    for kind in _classes_in(annotation):
        if isinstance(kind, type) and below.keys() <= set(field_names_of(kind) or ()):
            return kind(**below)
    return below


def _classes_in(annotation: object) -> list[object]:
    """The classes in an annotation, without those of elements."""
    parts = [annotation, *get_args(annotation)]
    return [part for annotated in parts for part in (annotated, get_origin(annotated))]


def _of_elements(annotation: object) -> object:
    """Returns the annotation of a container's elements; None without one."""
    for part in (annotation, *get_args(annotation)):
        origin, arguments = get_origin(part), get_args(part)
        if isinstance(origin, type) and arguments:
            return arguments[-1] if arguments[-1] is not ... else arguments[0]
    return None


def _leaf(
    text: str | _Tree,
    path: list[Step],
    like: object,
    annotation: object = None,
    *,
    callable_wanted: bool = False,
) -> Any:
    if not isinstance(text, str):
        raise ValueError(f"{key_text(path)} is a value, and there are others below it.")
    if like is not None and leaf_text(like) == text:
        return like
    try:
        value = parse_value(text)
    except ValueError:
        if isinstance(like, enum.Enum):
            for member in type(like):
                if repr(member) == text:
                    return member
        raise ValueError(
            f"{key_text(path)}: {text} cannot be read back. Pass a config that has it, `like=`."
        ) from None
    if not isinstance(value, str):
        return value
    if not callable_wanted and str not in _classes_in(annotation):
        callable_wanted = _is_callable_type(annotation)
    if callable_wanted or (callable(like) and hasattr(like, "__qualname__")):
        return _import(value, path)
    # A class and a string that names it have one text. Where neither what is there nor the type of
    # the field says which it is, it is the class, if the program has it.
    if isinstance(like, str) or str in _classes_in(annotation) or "str" in str(annotation):
        return value
    return by_name(value)


def _is_callable_type(annotation: object) -> bool:
    """True for a `Callable`, a protocol of one, or a union with one."""
    if isinstance(annotation, str):  # of `from __future__ import annotations`
        return "Callable" in annotation
    return any(
        "__call__" in vars(base)
        for kind in _classes_in(annotation)
        if isinstance(kind, type)
        for base in kind.__mro__
    )


def _import(name: str, path: list[Step]) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{key_text(path)}: there is no {name!r} to import ({error}). A class or function "
            "inside another one cannot be imported: pass a config that has it, `like=`."
        ) from None
