"""An optimizer of another library as a definition, and as an Optax transformation."""

import collections
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, ParamSpec

import jax
import jax.numpy as jnp
from flax import struct

import legacy_optim
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule
from optax_bridge.exact.transformation import ExactTransformation

P = ParamSpec("P")


@dataclasses.dataclass(eq=False)
class PortedOptimizer(legacy_optim.OptimizerDef):
    """An optimizer of another library, a dataclass of its hyper-parameters."""

    FIELDS: ClassVar[tuple[str, ...]] = ()  # of the state, for each parameter
    ORIGIN: ClassVar[str] = ""  # the module of the library's optimizers
    STATE: ClassVar[str] = ""  # begins the name of the transformation's state, and no other's

    def __post_init__(self):
        names = [field.name for field in dataclasses.fields(self)]
        self.hyper_params = _hyper_params_type(type(self))(**{n: getattr(self, n) for n in names})

    def init_fields(self, param: jax.Array) -> Mapping[str, jax.Array | None]:
        """The state before the first step, for one parameter."""
        return {name: jnp.zeros_like(param) for name in self.FIELDS}

    def new_values(
        self, hyper_params: Any, count: Any, grad: Any, param: Any, fields: Mapping[str, Any]
    ) -> tuple[jax.Array, Mapping[str, jax.Array | None]]:
        """Takes a step: the new parameter and the new fields of its state, in their dtypes."""
        raise NotImplementedError

    def init_param_state(self, param: jax.Array) -> Any:
        return _param_state_type(type(self))(**self.init_fields(jnp.asarray(param)))

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> tuple[jax.Array, Any]:
        new_param, fields = self.new_values(hyper_params, step, grad, param, vars(state))
        return new_param, type(state)(**fields)


def transformation(definition: Callable[P, PortedOptimizer]) -> Callable[P, ExactTransformation]:
    """The function that makes an Optax transformation, with the arguments of a class."""
    name, origin = definition.__name__, getattr(definition, "ORIGIN", "")

    @explained
    @functools.wraps(definition, updated=())
    def make(*args: P.args, **kwargs: P.kwargs) -> ExactTransformation:
        return _transformation(definition(*args, **kwargs))

    make.__name__ = make.__qualname__ = name.lower()
    settings = inspect.cleandoc(definition.__doc__ or "").replace("Attributes:", "Args:")
    make.__doc__ = f"`{origin}.{name}` as an Optax transformation.\n\n{settings}"
    return make


def _transformation(definition: PortedOptimizer) -> ExactTransformation:
    names = definition.FIELDS

    def init_leaf(param: jax.Array) -> tuple[Any, ...]:
        fields = definition.init_fields(param)
        return tuple(fields[name] for name in names)

    def step_leaf(
        hp: Any, count: jax.Array, grad: jax.Array, param: jax.Array, *fields: Any
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        old = dict(zip(names, fields, strict=True))
        new_param, new = definition.new_values(hp, count, grad, param, old)
        return new_param, tuple(new[name] for name in names)

    return LeafRule(
        _state_type(type(definition)),
        init_leaf,
        step_leaf,
        vars(definition.hyper_params),
        reads_params=True,
        apply=lambda hp, param, new_param: new_param,
    ).transformation()


@functools.cache
def _state_type(cls: type[PortedOptimizer]) -> Any:
    name = f"{cls.STATE}{cls.__name__[0].upper()}{cls.__name__[1:]}State"
    return collections.namedtuple(name, ("count", *cls.FIELDS))


@functools.cache
def _hyper_params_type(cls: type[PortedOptimizer]) -> Any:
    return _struct(f"{cls.__name__}HyperParams", [field.name for field in dataclasses.fields(cls)])


@functools.cache
def _param_state_type(cls: type[PortedOptimizer]) -> Any:
    return _struct(f"{cls.__name__}ParamState", cls.FIELDS)


def _struct(name: str, fields: Sequence[str]) -> Any:
    return struct.dataclass(type(name, (), {"__annotations__": dict.fromkeys(fields, Any)}))
