"""Configs from their flat and textual forms, so that a run can be started again."""

import dataclasses
import enum
import importlib
import typing
from collections.abc import Mapping
from typing import Any

import attr

from optax_bridge.spmd.config.base import ConfigBase
from optax_bridge.spmd.config.configurable import Configurable
from optax_bridge.spmd.config.errors import unknown_name
from optax_bridge.spmd.config.required import RequiredFieldValue
from optax_bridge.spmd.config.signatures import config_for_class, config_for_function
from optax_bridge.spmd.config.text import Step, Text, key_text, parse_key, parse_value
from optax_bridge.spmd.config.validation import (
    is_attrs_instance,
    is_dataclass_instance,
    is_named_tuple,
)
from optax_bridge.spmd.config.walking import by_name, field_names, leaf_text

# What is below a key: a leaf, or more by the next step, in the order of the text.
_Node = Any
_NOTHING = object()


def from_flat_dict(flat: Mapping[str, Any], *, like: ConfigBase | None = None) -> Any:
    """The config that has this flat form.

    Args:
      flat: of `to_flat_dict(omit_default_values=(None, REQUIRED))`. Fields with these defaults may
        be absent; other fields that are absent have been empty containers.
      like: a config of nearly this content, from the program that made the other one, say. Where
        the flat form does not tell, list or tuple, dict or dataclass, it is as in this one;
        otherwise as in the field's default, else a list (a tuple at a field for tuples) or a dict.

    Returns:
      A config of the class that the leaf `klass` or `fn` says.

    Raises:
      ValueError: naming the key that no config has, or whose value cannot be read back.
    """
    return _config(_tree(flat), [], like)


def from_debug_string(text: str, *, like: ConfigBase | None = None) -> Any:
    """The config that has this `debug_string`.

    Nothing in the text is evaluated. Classes and functions are imported by name, unless they are
    those of `like`. A string that is the name of a class is taken for the class where the field's
    type does not mention str.

    Args:
      text: of `debug_string`, with its default separators. Lines that start with `#` are skipped.
      like: as in `from_flat_dict`. A value that cannot be read, an object of a class of one's own,
        is taken from it if it is shown by the same text there.

    Raises:
      ValueError: naming the line, or the key whose value cannot be read back.
    """
    flat: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            _, end = parse_key(line)
        except ValueError:
            raise ValueError(f"line {number} has no key: {line!r}") from None
        if line[end : end + 2] != ": ":
            raise ValueError(f"line {number} has no ': ' behind the key {line[:end]!r}: {line!r}")
        if line[:end] in flat:
            raise ValueError(f"line {number}: {line[:end]} is there twice.")
        flat[line[:end]] = Text(line[end + 2 :])
    return from_flat_dict(flat, like=like)


def _tree(flat: Mapping[str, Any]) -> dict[Any, _Node]:
    root: dict[Any, _Node] = {}
    for key, value in flat.items():
        steps, end = parse_key(key)
        if end != len(key):
            raise ValueError(f"not a key of a config: {key!r}")
        node = root
        for step in steps[:-1]:
            node = node.setdefault(_hashable(step), {})
            if not isinstance(node, _Branch):
                raise ValueError(f"{key!r} is below another value.")
        node[_hashable(steps[-1])] = _Leaf(value)
    return root


_Branch = dict


class _Leaf(typing.NamedTuple):
    value: Any


class _Element(typing.NamedTuple):
    """A step into a container; names of fields are strings."""

    key: Any


def _hashable(step: Step) -> Any:
    return _Element(step[0]) if isinstance(step, list) else step


def _config(tree: dict[Any, _Node], path: list[Step], like: Any) -> ConfigBase:
    where = key_text(path) or "the config"
    maker = next((name for name in ("klass", "fn") if name in tree), None)
    if maker is None and not isinstance(like, ConfigBase):
        raise ValueError(
            f"{where} has neither a klass nor a fn that says what it makes; pass a config `like` "
            f"it."
        )
    if maker is None:
        cfg = like.clone()
    else:
        same = like if isinstance(like, ConfigBase) and maker in like else None
        leaf = tree[maker]
        target = _leaf(leaf, [*path, maker], getattr(same, maker, None), callable_wanted=True)
        if same is not None and getattr(same, maker) is target:
            cfg = same.clone()
        elif maker == "fn":
            cfg = config_for_function(target)
        elif isinstance(target, type) and issubclass(target, Configurable):
            cfg = target.default_config()
        else:
            cfg = config_for_class(target)
    values = {}
    for name, node in tree.items():
        if name == maker:
            continue
        if name not in cfg:
            raise ValueError(f"{where} has no field {unknown_name(str(name), field_names(cfg))}")
        values[name] = _node(node, [*path, name], getattr(cfg, name), _field(cfg, name).type)
    for name in field_names(cfg):
        if name not in tree:
            values[name] = _absent(cfg, name, [*path, name])
    return cfg.set(**values)


def _field(cfg: ConfigBase, name: str) -> Any:
    return attr.fields_dict(type(cfg))[name]


def _absent(cfg: ConfigBase, name: str, path: list[Step]) -> Any:
    """The value of a field that has no entry: its default was left out, or it is empty."""
    default, now = _field(cfg, name).default, getattr(cfg, name)
    if default is None or isinstance(default, RequiredFieldValue):
        empty = isinstance(now, list | tuple | dict) and not now
        return now if empty else default  # both have no entry
    for value in (now, default):
        if isinstance(value, list | dict):
            return type(value)()
        if isinstance(value, tuple) and not is_named_tuple(value):
            return ()
        if is_dataclass_instance(value) or is_named_tuple(value) or is_attrs_instance(value):
            break
    raise ValueError(f"{key_text(path)} is absent, and its default {default!r} was not left out.")


def _node(node: _Node, path: list[Step], like: Any, annotation: Any = None) -> Any:
    if isinstance(node, _Leaf):
        return _leaf(node, path, like, annotation)
    if all(isinstance(step, str) for step in node):
        return _config(node, path, like if isinstance(like, ConfigBase) else None)
    below = {}
    for step, child in node.items():
        if not isinstance(step, _Element):
            raise ValueError(f"{key_text(path)} has both fields and elements.")
        part, of_part = _part(like, step.key), _of_elements(annotation)
        below[step.key] = _node(child, [*path, [step.key]], part, of_part)
    return _container(below, path, like, annotation)


def _part(value: Any, key: Any) -> Any:
    """The element of a container, or None."""
    if is_dataclass_instance(value) or is_attrs_instance(value) or is_named_tuple(value):
        return getattr(value, key, None) if isinstance(key, str) else None
    try:
        return value[key]
    except (LookupError, TypeError):
        return None


def _container(below: dict[Any, Any], path: list[Step], like: Any, annotation: Any) -> Any:
    if is_dataclass_instance(like):
        return dataclasses.replace(like, **_checked(below, like, path))
    if is_attrs_instance(like):
        return attr.evolve(like, **_checked(below, like, path))
    if is_named_tuple(like):
        return like._replace(**_checked(below, like, path))
    if isinstance(like, dict):
        return type(like)(below)
    indices = list(range(len(below)))
    if list(below) == indices and isinstance(like, list | tuple):
        return type(like)(below.values())
    if list(below) == indices:
        return tuple(below.values()) if _wants_tuple(annotation) else list(below.values())
    for kind in _mentioned(annotation):
        if isinstance(kind, type) and set(below) <= _field_names(kind):
            return kind(**below)
    return below


def _field_names(kind: type) -> set[str]:
    """The fields of a class of dataclasses, attrs or named tuples; none of another class."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    if attr.has(kind):
        return {field.name for field in attr.fields(kind)}
    return set(getattr(kind, "_fields", ()))


def _checked(below: dict[Any, Any], like: Any, path: list[Step]) -> dict[str, Any]:
    for name in below:
        if not isinstance(name, str) or not hasattr(like, name):
            raise ValueError(
                f"{key_text([*path, [name]])}: {type(like).__name__} has no such field."
            )
    return below


def _wants_tuple(annotation: Any) -> bool:
    """Whether a field's type mentions tuples, and no lists."""
    mentioned = _mentioned(annotation)
    return tuple in mentioned and list not in mentioned


def _mentioned(annotation: Any) -> list[Any]:
    """The classes in an annotation, without those of elements."""
    parts = [annotation, *typing.get_args(annotation)]
    return [part for annotated in parts for part in (annotated, typing.get_origin(annotated))]


def _of_elements(annotation: Any) -> Any:
    """What an annotation of a container says of its elements; None if nothing."""
    for part in (annotation, *typing.get_args(annotation)):
        origin, arguments = typing.get_origin(part), typing.get_args(part)
        if isinstance(origin, type) and arguments:
            return arguments[-1] if arguments[-1] is not ... else arguments[0]
    return None


def _leaf(
    node: _Node,
    path: list[Step],
    like: Any,
    annotation: Any = None,
    *,
    callable_wanted: bool = False,
) -> Any:
    if not isinstance(node, _Leaf):
        raise ValueError(f"{key_text(path)} is a value, and there are others below it.")
    if not isinstance(node.value, Text):
        return node.value
    text = node.value.text
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
    if callable_wanted or isinstance(like, type) or _is_function(like):
        return _imported(value, path)
    # A class and a string that names it have one text. Where neither what is there nor the type of
    # the field says which it is, it is the class, if the program has it.
    if isinstance(like, str) or str in _mentioned(annotation) or "str" in str(annotation):
        return value
    return by_name(value)


def _is_function(value: Any) -> bool:
    return callable(value) and hasattr(value, "__qualname__")


def _imported(name: str, path: list[Step]) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{key_text(path)}: there is no {name!r} to import ({error}). A class or function "
            "inside another one has no name of its own: pass a config that has it, `like=`."
        ) from None
