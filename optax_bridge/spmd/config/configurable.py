"""`InstantiableConfig`, a config that makes an object, and `Configurable`, such an object."""

import copy
from typing import Any, Generic, TypeVar, Union

from optax_bridge.spmd.config import decorator
from optax_bridge.spmd.config.base import (
    ConfigBase,
    missing_fields,
    not_instantiable,
    raise_for_missing,
)
from optax_bridge.spmd.config.decorator import config_class

T = TypeVar("T")


class InstantiableConfig(ConfigBase, Generic[T]):
    """A config that makes an object. Configs inside it are not instantiated by themselves."""

    __slots__ = ()

    def instantiate(self, **kwargs: Any) -> T:
        """Makes the object.

        Args:
          **kwargs: what is not in the config, the parent of a module, say.

        Raises:
          RequiredFieldMissingError: a required field is not set.
        """
        del kwargs
        not_instantiable(self)


decorator.allowed_attributes.update(dir(InstantiableConfig))

ConfigOr = Union[T, InstantiableConfig[T]]  # noqa: UP007 (it takes a parameter: ConfigOr[int])


def maybe_instantiate(value: Any) -> Any:
    """What the config makes, if the value is one that makes something; else the value."""
    return value.instantiate() if isinstance(value, InstantiableConfig) else value


class Configurable:
    """An object made from a config, by `cfg.instantiate()`."""

    @config_class
    class Config(InstantiableConfig[T]):
        """The config of a Configurable.

        Attributes:
          klass: the class of the object.
        """

        klass: type

        def instantiate(self, **kwargs: Any) -> T:
            """Makes the object: `klass(self, **kwargs)`."""
            raise_for_missing(missing_fields(self), self.klass)
            return self.klass(self, **kwargs)

    @classmethod
    def default_config(cls) -> Any:
        """A config of this class, with the default of every field."""
        return cls.Config(klass=cls)

    def __init__(self, cfg: Any) -> None:
        self._config = copy.deepcopy(cfg)

    @property
    def config(self) -> Any:
        """A copy of the config that the object was made from."""
        return copy.deepcopy(self._config)

    def __repr__(self) -> str:
        return repr(self._config)


C = TypeVar("C", bound=ConfigBase)


class ConfigModifier(Configurable):
    """Changes a config; this one leaves it as it is."""

    @config_class
    class Config(Configurable.Config["ConfigModifier"]):
        """The config of a ConfigModifier."""

    def __call__(self, cfg: C) -> C:
        """Returns the config, changed."""
        return cfg


def maybe_set_config(cfg: C, **values: Any) -> C:
    """Sets those fields that the config has, and returns it."""
    for name, value in values.items():
        if hasattr(cfg, name):
            setattr(cfg, name, value)
    return cfg


def with_overrides(config_fn: Any, **values: Any) -> Any:
    """A function of no arguments that returns `config_fn()` with some fields set."""

    def overridden() -> Any:
        return config_fn().set(**values)

    return overridden
