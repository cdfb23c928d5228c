"""`InstantiableConfig`, a config that makes an object, and `Configurable`, such an object."""

import copy
from collections.abc import Callable
from typing import Any, Generic, TypeVar, Union

from optax_bridge.spmd.config import decorator
from optax_bridge.spmd.config.base import ConfigBase, missing_fields, raise_for_missing
from optax_bridge.spmd.config.decorator import config_class

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C", bound=ConfigBase)


class InstantiableConfig(ConfigBase, Generic[T_co]):
    """A config that makes an object. Configs inside it are not instantiated by themselves."""

    __slots__ = ()

    def instantiate(self, **kwargs: object) -> T_co:
        """Makes the object.

        Args:
          **kwargs: what is not in the config, such as the parent of a module.

        Raises:
          RequiredFieldMissingError: a required field is not set.
        """
        del kwargs
        raise NotImplementedError(f"{type(self).__name__} does not say what it instantiates.")


decorator.allowed_attributes.update(dir(InstantiableConfig))

ConfigOr = Union[T, InstantiableConfig[T]]  # noqa: UP007 (it takes a parameter: ConfigOr[int])


def maybe_instantiate(value: InstantiableConfig[T] | T) -> T:
    """Returns the object that a config makes; any other value unchanged."""
    instance: Any = value.instantiate() if isinstance(value, InstantiableConfig) else value
    return instance


class Configurable:
    """An object made from a config, by `cfg.instantiate()`."""

    @config_class
    class Config(InstantiableConfig[T]):
        """The config of a Configurable.

        Attributes:
          klass: the class of the object.
        """

        klass: type

        def instantiate(self, **kwargs: object) -> T:
            """Makes the object: `klass(self, **kwargs)`."""
            raise_for_missing(missing_fields(self), self.klass)
            return self.klass(self, **kwargs)

    @classmethod
    def default_config(cls) -> Any:
        """A config of this class, with the default of every field."""
        return cls.Config(klass=cls)

    def __init__(self, cfg: InstantiableConfig) -> None:
        self._config: Any = copy.deepcopy(cfg)

    @property
    def config(self) -> Any:
        """A copy of the config that the object was made from."""
        return copy.deepcopy(self._config)

    def __repr__(self) -> str:
        return repr(self._config)


class ConfigModifier(Configurable):
    """Changes a config; this one leaves it unchanged."""

    @config_class
    class Config(Configurable.Config["ConfigModifier"]):
        """The config of a ConfigModifier."""

    def __call__(self, cfg: C) -> C:
        """Returns the config, changed."""
        return cfg


def maybe_set_config(cfg: C, **values: object) -> C:
    """Sets those fields that the config has, and returns it."""
    for name, value in values.items():
        if hasattr(cfg, name):
            setattr(cfg, name, value)
    return cfg


def with_overrides(config_fn: Callable[[], C], **values: object) -> Callable[[], C]:
    """A function of no arguments that returns `config_fn()` with some fields set."""

    def make_config() -> C:
        return config_fn().set(**values)

    return make_config
