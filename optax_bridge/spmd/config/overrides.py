"""Fields set from the command line: `learner.optimizer.learning_rate=3e-4`."""

import copy
import enum
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

import attr

from optax_bridge.spmd.config.base import ConfigBase
from optax_bridge.spmd.config.text import Step, key_text, parse_key, parse_value
from optax_bridge.spmd.config.values import (
    InvalidConfigValueError,
    RequiredFieldValue,
    similar_names,
    unknown_name,
)
from optax_bridge.spmd.config.walking import (
    by_name,
    field_names,
    leaf_text,
    record_fields,
    replace_fields,
)

C = TypeVar("C", bound=ConfigBase)


class OverrideError(ValueError):
    """A setting that names no field, or whose value does not fit the field."""


def apply_overrides(cfg: C, settings: Iterable[str], *, root: str | None = None) -> C:
    """Returns a copy of a config with settings such as `model.layers[0].rate=0.1`.

    Values are literals of Python, read by a parser and never evaluated; any other text is a
    string, or the name of a class or function where such is wanted. They must fit the present
    value: a number stays a number. An int fits where a float is, and a list where a tuple is.

    Args:
      cfg: the config, which is not changed.
      settings: keys of `debug_string` and values, with `=` between them.
      root: a name of the config that keys may start with: "trainer" for `trainer.model.name=x`.

    Raises:
      OverrideError: naming the key and the likeliest spellings; or a key is set twice.
    """
    cfg = cfg.clone()
    seen: dict[str, str] = {}
    for setting in settings:
        steps, text = _parse(setting)
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


def _parse(setting: str) -> tuple[list[Step], str]:
    try:
        steps, end = parse_key(setting)
    except ValueError:
        steps, end = [], 0
    if not steps or setting[end : end + 1] != "=":
        raise OverrideError(f"{setting!r} is not of the form `field.of.a.field=value`.")
    return steps, setting[end + 1 :]


def _set(cfg: ConfigBase, steps: list[Step], text: str, setting: str) -> None:
    """Sets the value at these steps below a config, in place."""
    owners: list[Any] = [cfg]
    for i, step in enumerate(steps):
        owners.append(_part(owners[-1], step, steps[:i], setting))
    if steps[-1] in ("klass", "fn") and isinstance(owners[-2], ConfigBase):
        raise OverrideError(
            f"{setting!r}: what a config makes is for the program to say; text cannot change it."
        )
    new = _convert(text, owners[-1], _allowed_types(owners[-2], steps[-1]), setting)
    for step, owner in zip(reversed(steps), reversed(owners[:-1]), strict=True):
        try:
            new = _with(owner, step, new)
        except (InvalidConfigValueError, TypeError, ValueError) as error:
            raise OverrideError(f"{setting!r}: {error}") from None
        if new is owner and isinstance(owner, ConfigBase):
            return  # the configs above hold this very one


def _part(value: Any, step: Step, before: list[Step], setting: str) -> Any:
    where = key_text(before) or type(value).__name__
    if isinstance(step, str) and isinstance(value, ConfigBase):
        if step not in value:
            raise OverrideError(f"{setting!r}: {where} has no field {_meant(value, step, before)}.")
        return getattr(value, step)
    key: Any = step if isinstance(step, str) else step[0]
    parts: Any = record_fields(value) or value
    is_sequence = isinstance(parts, list | tuple) and type(key) is int
    if not isinstance(parts, dict) and not is_sequence:
        raise OverrideError(f"{setting!r}: {where} has no {key!r}: it is {value!r}.")
    if isinstance(step, str) and step in parts:
        raise OverrideError(
            f"{setting!r}: {where} is not a config; set its {step!r} by {where}[{step!r}]."
        )
    try:
        return parts[key]
    except LookupError:
        there = f"{len(parts)} elements" if is_sequence else f"no {key!r} (keys are {list(parts)})"
        raise OverrideError(f"{setting!r}: {where} has {there}.") from None


def _meant(cfg: ConfigBase, name: str, before: list[Step]) -> str:
    """The name, and similar ones here or else anywhere below."""
    if similar_names(name, field_names(cfg)):
        return unknown_name(name, field_names(cfg))
    prefix = f"{key_text(before)}." if before else ""
    below = [key for key in cfg.to_flat_dict(omit_default_values=()) if key.endswith(f".{name}")]
    if below:
        return f"{name} (did you mean: [{', '.join(prefix + key for key in below[:3])}])"
    return unknown_name(name, field_names(cfg))


def _with(owner: Any, step: Step, new: object) -> Any:
    """The owner with another part: a config itself, of other containers a copy."""
    if isinstance(step, str):
        setattr(owner, step, new)
        return owner
    key = step[0]
    if record_fields(owner) is not None:
        return replace_fields(owner, {key: new})
    if isinstance(owner, tuple):
        return tuple(new if i == key % len(owner) else part for i, part in enumerate(owner))
    copied = copy.copy(owner)
    copied[key] = new
    return copied


def _allowed_types(owner: object, step: Step) -> set[object]:
    """The types that the annotation of a field allows; parts of containers are not restricted."""
    if not isinstance(owner, ConfigBase) or not isinstance(step, str):
        return set()
    annotation = attr.fields_dict(type(owner))[step].type
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return set(typing.get_args(annotation)) - {RequiredFieldValue}
    return {annotation}


_NONE = type(None)
_PLAIN: set[object] = {bool, int, float, str, _NONE}


def _convert(text: str, now: object, allowed: set[object], setting: str) -> Any:
    """The value of the text, as it fits where `now` is."""
    unset = now is None or isinstance(now, RequiredFieldValue)
    quoted = text[:1] in ("'", '"')
    if (isinstance(now, str) or (unset and allowed - {_NONE} == {str})) and not quoted:
        return None if text == "None" and (unset or _NONE in allowed) else text
    try:
        value = parse_value(text)
    except ValueError:
        value = text
    if unset and isinstance(value, str) and str not in allowed:
        value = by_name(value)
    if type(value) is int and float in allowed and int not in allowed:
        value = float(value)
    is_plain = bool(allowed) and allowed <= _PLAIN
    if value is None and is_plain and not unset and _NONE not in allowed:
        raise OverrideError(f"{setting!r}: expected {_a(type(now))}, got None.")
    if value is None or isinstance(value, RequiredFieldValue):
        return value
    if unset:
        if is_plain and type(value) not in allowed:
            expected = " or ".join(sorted(_a(kind) for kind in allowed - {_NONE}))
            raise OverrideError(f"{setting!r}: expected {expected}, got {value!r}.")
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
    if callable(now):
        return _class_or_function(value, now, setting)
    if type(now) is float and type(value) is int:
        return value if int in allowed else float(value)
    if isinstance(now, list | tuple) and isinstance(value, list | tuple):
        return value if record_fields(now) is not None else type(now)(value)
    if type(value) is type(now) or (type(now) is int and type(value) is float and float in allowed):
        return value
    if not isinstance(now, bool | int | float | str | list | tuple | dict):
        raise OverrideError(
            f"{setting!r}: expected no setting here: it is {now!r}, which text cannot say."
        )
    raise OverrideError(f"{setting!r}: expected {_a(type(now))} such as {now!r}, got {value!r}.")


def _a(kind: object) -> str:
    name = getattr(kind, "__name__", str(kind))
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _class_or_function(value: object, now: object, setting: str) -> Any:
    new = by_name(value) if isinstance(value, str) else value
    kind = "class" if isinstance(now, type) else "function"
    if isinstance(new, str) or not callable(new) or isinstance(new, type) != isinstance(now, type):
        raise OverrideError(
            f"{setting!r}: expected the name of a {kind} that the program has imported, such as "
            f"{leaf_text(now)}, got {value!r}."
        )
    return new
