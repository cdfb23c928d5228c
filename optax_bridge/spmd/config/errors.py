# pyright: strict
"""The errors of configs, and names that may have been meant instead."""

from collections.abc import Iterable


class MissingConfigClassDecoratorError(TypeError):
    """A subclass of `ConfigBase` was instantiated that lacks `@config_class`."""


class InvalidConfigClassError(TypeError):
    """`@config_class` decorates something that is no subclass of `ConfigBase`."""


class InvalidConfigNameError(ValueError):
    """The name of a field is not in lower_case_with_underscores."""


class InvalidConfigValueError(TypeError):
    """A value is of no type that a config may hold."""


class NonConfigFieldError(ValueError):
    """A config class has an attribute that is no field."""


class UnknownFieldError(AttributeError):
    """A field was set that the config does not have."""


class RequiredFieldMissingError(ValueError):
    """A config was instantiated before all of its required fields were set."""


class UnreadableFieldError(AttributeError, KeyError):
    """A field was read that the config does not have.

    It is a KeyError too: a config class with a `__getattr__` of its own may call its base's and
    supply a value when that raises KeyError.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would quote the message


_LENGTH = 3  # of the substrings by which names are compared
_ENOUGH = 0.5  # a name is similar if more than this fraction of its substrings is in it


def similar_names(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates that share more than half of the 3-character substrings of `name`.

    Returns:
      The most similar first; alphabetically where two are equally similar.
    """
    parts = [name[i : i + _LENGTH] for i in range(len(name) - _LENGTH + 1)]
    if not parts:
        return []
    scores = {other: sum(part in other for part in parts) / len(parts) for other in candidates}
    return sorted(
        (other for other, score in scores.items() if score > _ENOUGH),
        key=lambda other: (-scores[other], other),
    )


def unknown_name(name: str, names: Iterable[str]) -> str:
    """The message for a name that is not among `names`: similar ones, or else all there are."""
    names = sorted(names)
    similar = similar_names(name, names)
    if similar:
        return f"{name} (did you mean: [{', '.join(similar)}])"
    return f"{name} (keys are {names})"
