"""Fields set from the command line: `learner.optimizer.learning_rate=3e-4`."""

import copy
import dataclasses
import enum
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

import attr

from optax_bridge.spmd.config.base import ConfigBase
from optax_bridge.spmd.config.errors import InvalidConfigValueError, similar_names, unknown_name
from optax_bridge.spmd.config.required import RequiredFieldValue
from optax_bridge.spmd.config.text import Step, key_text, parse_key, parse_value
from optax_bridge.spmd.config.validation import (
    is_attrs_instance,
    is_dataclass_instance,
    is_named_tuple,
)
from optax_bridge.spmd.config.walking import by_name, field_names, leaf_text

C = TypeVar("C", bound=ConfigBase)


class OverrideError(ValueError):
    """A setting that names no field, or whose value does not fit the field."""


def apply_overrides(cfg: C, settings: Iterable[str], *, root: str | None = None) -> C:
    """A copy of a config with settings such as `model.layers[0].rate=0.1`.

    Values are literals of Python, read by a parser and never evaluated; what is no literal is a
    string, or the name of a class or function where such is wanted. They must fit what is there: a
    number stays a number. An int fits where a float is, and a list where a tuple is.

    Args:
      cfg: the config, which stays as it is.
      settings: keys of `debug_string` and values, with `=` between them.
      root: a name of the config that keys may start with: "trainer" for `trainer.model.name=x`.

    Raises:
      OverrideError: naming the key and what may have been meant; or a key is set twice.
    """
    cfg = cfg.clone()
    seen: dict[str, str] = {}
    for setting in settings:
        steps, text = _parsed(setting)
        if root is not None and steps[0] == root and root not in cfg and len(steps) > 1:
            steps = steps[1:]
        key = key_text(steps)
        for other in seen:
            if key == other or _is_below(key, other) or _is_below(other, key):
                raise OverrideError(f"{setting!r}: {other} was set by {seen[other]!r} already.")
        seen[key] = setting
        _set(cfg, steps, text, setting)
    return cfg


def _is_below(key: str, other: str) -> bool:
    return key.startswith((f"{other}.", f"{other}["))


def _parsed(setting: str) -> tuple[list[Step], str]:
    try:
        steps, end = parse_key(setting)
    except ValueError:
        steps, end = [], 0
    if not steps or setting[end : end + 1] != "=":
        raise OverrideError(f"{setting!r} is not of the form `field.of.a.field=value`.")
    return steps, setting[end + 1 :]


def _set(value: Any, steps: list[Step], text: str, setting: str) -> None:
    """Sets what is at these steps below a config, in place."""
    owners = [value]
    for i, step in enumerate(steps):
        owners.append(_part(owners[-1], step, steps[:i], setting))
    if steps[-1] in ("klass", "fn") and isinstance(owners[-2], ConfigBase):
        raise OverrideError(
            f"{setting!r}: what a config makes is for the program to say; text cannot change it."
        )
    new = _converted(text, owners[-1], _annotation(owners[-2], steps[-1]), setting)
    for step, owner in zip(reversed(steps), reversed(owners[:-1]), strict=True):
        try:
            new = _with(owner, step, new)
        except (InvalidConfigValueError, TypeError, ValueError) as error:
            raise OverrideError(f"{setting!r}: {error}") from None
        if new is owner and isinstance(owner, ConfigBase):
            return  # the configs above hold this very one


def _part(value: Any, step: Step, before: list[Step], setting: str) -> Any:
    where = key_text(before) or type(value).__name__
    if isinstance(step, str):
        if not isinstance(value, ConfigBase):
            raise OverrideError(f"{setting!r}: {where} has no {step!r}: it is {value!r}.")
        if step not in value:
            raise OverrideError(f"{setting!r}: {where} has no field {_meant(value, step, before)}.")
        return getattr(value, step)
    key = step[0]
    if is_dataclass_instance(value) or is_attrs_instance(value) or is_named_tuple(value):
        if isinstance(key, str) and hasattr(value, key):
            return getattr(value, key)
    elif isinstance(value, dict) or (isinstance(value, list | tuple) and type(key) is int):
        try:
            return value[key]
        except LookupError:
            if isinstance(value, dict):
                raise OverrideError(
                    f"{setting!r}: {where} has no {key!r} (keys are {list(value)})."
                ) from None
            raise OverrideError(f"{setting!r}: {where} has {len(value)} elements.") from None
    raise OverrideError(f"{setting!r}: {where} has no {key!r}: it is {value!r}.")


def _meant(cfg: ConfigBase, name: str, before: list[Step]) -> str:
    """The name, and similar ones here or, if there are none, anywhere below."""
    if similar_names(name, field_names(cfg)):
        return unknown_name(name, field_names(cfg))
    prefix = f"{key_text(before)}." if before else ""
    below = [key for key in cfg.to_flat_dict(omit_default_values=()) if key.endswith(f".{name}")]
    if below:
        return f"{name} (did you mean: [{', '.join(prefix + key for key in below[:3])}])"
    return unknown_name(name, field_names(cfg))


def _with(owner: Any, step: Step, new: Any) -> Any:
    """The owner with another part: a config itself, of other containers a copy."""
    if isinstance(step, str):
        setattr(owner, step, new)
        return owner
    key = step[0]
    if is_dataclass_instance(owner):
        return dataclasses.replace(owner, **{key: new})
    if is_attrs_instance(owner):
        return attr.evolve(owner, **{key: new})
    if is_named_tuple(owner):
        return owner._replace(**{key: new})
    if isinstance(owner, tuple):
        return tuple(new if i == key % len(owner) else part for i, part in enumerate(owner))
    copied = copy.copy(owner)
    copied[key] = new
    return copied


def _annotation(owner: Any, step: Step) -> Any:
    if isinstance(owner, ConfigBase) and isinstance(step, str):
        return attr.fields_dict(type(owner))[step].type
    return None


def _plain_types(annotation: Any) -> set[Any]:
    """The types that an annotation allows, where it is made of plain ones."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return set(typing.get_args(annotation)) - {type(None), RequiredFieldValue}
    return {annotation}


def _converted(text: str, now: Any, annotation: Any, setting: str) -> Any:
    """The value of the text, as it fits where `now` is."""
    wanted = _plain_types(annotation)
    unset = now is None or isinstance(now, RequiredFieldValue)
    quoted = text[:1] in ("'", '"')
    if (isinstance(now, str) or (unset and wanted == {str})) and not quoted:
        return None if text == "None" and unset else text
    try:
        value = parse_value(text)
    except ValueError:
        value = text
    if unset and isinstance(value, str):
        return value if str in wanted else by_name(value)
    as_float = type(value) is int and float in wanted and int not in wanted
    if unset:
        return float(value) if as_float else value
    if value is None and wanted <= {bool, int, float, str}:
        raise OverrideError(f"{setting!r}: expected a {type(now).__name__}, got None.")
    if value is None or isinstance(value, RequiredFieldValue):
        return value
    if isinstance(now, enum.Enum):
        for member in type(now):
            if text in (member.name, str(member.value), str(member), repr(member)):
                return member
        raise OverrideError(f"{setting!r}: expected one of {[m.name for m in type(now)]}.")
    if isinstance(now, ConfigBase):
        raise OverrideError(
            f"{setting!r}: expected a field below it, one of {field_names(now)}: it is a config."
        )
    if isinstance(now, type) or callable(now):
        return _class_or_function(value, now, setting)
    if type(now) is float and type(value) is int:
        return value if int in wanted else float(value)
    if isinstance(now, list | tuple) and isinstance(value, list | tuple):
        return type(now)(value) if not is_named_tuple(now) else value
    if type(value) is type(now):
        return value
    if type(now) is int and type(value) is float and float in wanted:
        return value
    if not isinstance(now, bool | int | float | str | list | tuple | dict):
        raise OverrideError(
            f"{setting!r}: expected no setting here: it is {now!r}, which text cannot say."
        )
    raise OverrideError(
        f"{setting!r}: expected a {type(now).__name__} such as {now!r}, got {value!r}."
    )


def _class_or_function(value: Any, now: Any, setting: str) -> Any:
    new = by_name(value) if isinstance(value, str) else value
    if isinstance(new, str) or not callable(new) or isinstance(new, type) != _is_class(now):
        kind = "class" if _is_class(now) else "function"
        raise OverrideError(
            f"{setting!r}: expected the name of a {kind} that the program has imported, such as "
            f"{leaf_text(now)}, got {value!r}."
        )
    return new


def _is_class(value: Any) -> bool:
    return isinstance(value, type)
