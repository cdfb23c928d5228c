"""Configs that make objects: a `Configurable`, or from the signature of any class or function."""

import copy
import dataclasses
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar, Union

from optax_bridge.spmd.config import walking
from optax_bridge.spmd.config.base import (
    ConfigBase,
    InstantiableConfig,
    config_class,
    missing_fields,
    raise_for_missing,
    rename,
)
from optax_bridge.spmd.config.values import (
    REQUIRED,
    InvalidConfigNameError,
    RequiredFieldValue,
    validate_config_field_name,
)

T = TypeVar("T")
C = TypeVar("C", bound=ConfigBase)


ConfigOr = Union[T, InstantiableConfig[T]]  # noqa: UP007 (it takes a parameter: ConfigOr[int])


def maybe_instantiate(value: InstantiableConfig[T] | T) -> T:
    """Returns the object that a config makes; any other value unchanged."""
    instance: Any = value.instantiate() if isinstance(value, InstantiableConfig) else value
    return instance


class Configurable:
    """An object made from a config, by `cfg.instantiate()`."""

    @config_class
    class Config(InstantiableConfig[T]):
        """The config of a Configurable."""

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


_Kind = inspect.Parameter
_METHODS = ("clone", "instantiate", "set")  # no config can do without these


@config_class
class FunctionConfigBase(InstantiableConfig[T]):
    """The base of configs for functions; instantiating one calls the function."""

    __callable_field__ = "fn"

    fn: Callable[..., T]

    def instantiate(self, **kwargs: object) -> T:
        """Calls the function with the fields, or with kwargs in their place."""
        return _call(self.fn, _parameters(self.fn), self, kwargs)


@config_class
class ClassConfigBase(InstantiableConfig[T]):
    """The base of configs for classes that are not Configurable."""

    __callable_field__ = "klass"

    klass: type[T]

    def instantiate(self, **kwargs: object) -> T:
        """Makes an instance with the fields, or with kwargs in their place."""
        return _call(self.klass, _init_parameters(self.klass), self, kwargs)


def config_for_function(fn: Callable[..., T]) -> FunctionConfigBase[T]:
    """A config with a field for every parameter of a function.

    Args:
      fn: any callable with a signature. Its class of config is made once, so that two configs of
        one function can be compared.

    Returns:
      A config with the parameters' defaults, REQUIRED for those without (and for `*args` and
      `**kwargs`), and a field `fn`.

    Raises:
      TypeError: it is not a function.
      ValueError: a parameter is called fn, self or _.
    """
    if not callable(fn):
        raise TypeError(f"config_for_function: expected a function, found {fn!r}")
    return _class_for(fn, FunctionConfigBase, _parameters, "config_for_function")(fn=fn)


def config_for_class(cls: type[T]) -> ClassConfigBase[T]:
    """A config with a field for every parameter of a class's `__init__`.

    Args:
      cls: any class, such as one of flax.linen or flax.nnx.

    Returns:
      As `config_for_function`, with a field `klass` instead of `fn`.

    Raises:
      TypeError: it is not a class.
      ValueError: a parameter is called klass, self or _.
    """
    if not isinstance(cls, type):
        raise TypeError(f"config_for_class: expected a class, found {cls!r}")
    return _class_for(cls, ClassConfigBase, _init_parameters, "config_for_class")(klass=cls)


def _parameters(fn: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(fn).parameters.values())


def _init_parameters(cls: type) -> list[inspect.Parameter]:
    if cls.__init__ is object.__init__:  # its signature has *args and **kwargs, which it refuses
        return []
    parameters = _parameters(_bound_init(cls))
    if dataclasses.is_dataclass(cls):  # a default_factory is shown by a marker
        fields = {
            field.name: field.default_factory()
            for field in dataclasses.fields(cls)
            if field.default_factory is not dataclasses.MISSING
        }
        parameters = [
            p.replace(default=fields[p.name])
            if p.name in fields and p.default is not _Kind.empty
            else p
            for p in parameters
        ]
    linen = sys.modules.get("flax.linen")
    if linen is not None and issubclass(cls, linen.Module):
        # Set by the module around it; its default is a marker that cannot be written as text.
        parameters = [p for p in parameters if p.name != "parent"]
    return parameters


def _bound_init(cls: Any) -> Callable[..., object]:
    """Returns `__init__` as a call of the class binds it, or of the class behind a proxy."""
    while not issubclass(type(cls), type) and hasattr(cls, "__wrapped__"):
        cls = cls.__wrapped__
    init = inspect.getattr_static(cls, "__init__")
    if not hasattr(type(init), "__get__"):
        return init
    try:
        return init.__get__(object(), cls)
    except TypeError:  # a method written in C, which asks for an instance of its class
        return types.MethodType(init, cls)


# Config classes by the function or class that they configure; weakly, where Python allows it.
_WEAK: weakref.WeakKeyDictionary[object, type] = weakref.WeakKeyDictionary()
# Methods and proxies are new objects at each access. Unhashable ones are compared by identity,
# and so is kept alive here.
_STRONG: dict[object, type] = {}
_NOT_HASHED: list[object] = []
_MAKING = threading.RLock()


def _class_for(
    target: object,
    base: type,
    parameters_of: Callable[..., list[inspect.Parameter]],
    maker: str,
) -> Any:
    """The class of the configs of something; it is made once."""
    weak = isinstance(target, types.FunctionType | type)
    cache: MutableMapping[object, type] = _WEAK if weak else _STRONG
    key = target
    with _MAKING:
        try:
            is_known = key in cache
        except TypeError:
            cache, key = _STRONG, id(target)
            is_known = key in cache
            _NOT_HASHED.extend([] if is_known else [target])
        if not is_known:
            cache[key] = _config_class(base, target, parameters_of(target), maker)
        return cache[key]


def _config_class(
    base: Any, target: object, parameters: list[inspect.Parameter], maker: str
) -> type:
    module = getattr(target, "__module__", None) or type(target).__module__
    qualname = getattr(target, "__qualname__", None) or type(target).__qualname__
    annotations: dict[str, object] = {}
    body = {"__module__": module, "__qualname__": qualname, "__annotations__": annotations}
    for parameter in parameters:
        if parameter.name in (base.__callable_field__, "self", "_", *_METHODS):
            raise ValueError(
                f"{maker} cannot make a config of {module}.{qualname}: its '{parameter.name}' "
                "parameter would be a field of a name that the config needs for itself."
            )
        try:
            validate_config_field_name(parameter.name)
        except InvalidConfigNameError as error:
            raise InvalidConfigNameError(
                f"{maker} cannot make a config of {module}.{qualname}: {error}"
            ) from error
        typed = parameter.annotation is not _Kind.empty
        annotations[parameter.name] = parameter.annotation if typed else Any
        has_default = parameter.default is not _Kind.empty
        body[parameter.name] = parameter.default if has_default else REQUIRED
    cls = config_class(types.new_class("Config", (base,), {}, lambda ns: ns.update(body)))
    rename(cls, f"{maker}({module}.{qualname})")
    return cls


def _call(
    target: Callable[..., T],
    parameters: list[inspect.Parameter],
    cfg: ConfigBase,
    arguments: dict[str, object],
) -> T:
    """Calls the target with the config's fields, given arguments first."""
    arguments = dict(arguments)
    for parameter in parameters:
        if parameter.kind is _Kind.POSITIONAL_ONLY:
            raise NotImplementedError(
                f"cannot instantiate {type(cfg).__name__}: param kind POSITIONAL_ONLY of "
                f"{parameter.name!r} has no name to pass it by. Wrap it in a function without '/'."
            )
    values: dict[str, Any] = {
        parameter.name: arguments.pop(parameter.name)
        if parameter.name in arguments
        else getattr(cfg, parameter.name)
        for parameter in parameters
    }
    missing = [name for name, value in values.items() if isinstance(value, RequiredFieldValue)]
    raise_for_missing(missing, target)
    positional: list[object] = []
    keywords: dict[str, object] = {}
    starred = any(parameter.kind is _Kind.VAR_POSITIONAL for parameter in parameters)
    for parameter in parameters:
        value = values[parameter.name]
        if parameter.kind is _Kind.VAR_POSITIONAL:
            positional.extend(value)
        elif parameter.kind is _Kind.VAR_KEYWORD:
            twice = sorted(set(value) & set(values))
            if twice:
                raise TypeError(
                    f"{walking.dotted_name(target)}: {twice[0]!r} is a field of its config and in "
                    f"its field {parameter.name!r} as well. Leave it out of {parameter.name!r}."
                )
            keywords.update(value)
        elif starred and parameter.kind is _Kind.POSITIONAL_OR_KEYWORD:
            positional.append(value)  # later arguments go by position too
        else:
            keywords[parameter.name] = value
    return target(*positional, **{**keywords, **arguments})
