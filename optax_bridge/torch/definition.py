"""An optimizer of PyTorch as a definition, and as an Optax transformation."""

import collections
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, ParamSpec

import jax
import jax.numpy as jnp
from flax import struct

import legacy_optim
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule, ScalarOrSchedule, is_zero
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.torch.arithmetic import Kernels, Tensor

__all__ = ["ScalarOrSchedule", "TorchOptimizer", "is_zero", "transformation"]

Fields = Mapping[str, Tensor | None]
Result = tuple[Tensor, Fields]  # the new parameter, and the new fields of its state
Values = SimpleNamespace  # hyper-parameters of a step, or a state's fields, as attributes
P = ParamSpec("P")


@dataclasses.dataclass(eq=False)
class TorchOptimizer(legacy_optim.OptimizerDef):
    """An optimizer of `torch.optim`, a dataclass of its hyper-parameters.

    A subclass names the fields of its state as PyTorch does, and defines `step`; `init_fields`
    where they do not begin with zeros.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ()  # of the state, for each parameter

    def __post_init__(self):
        names = [field.name for field in dataclasses.fields(self)]
        values = {name: getattr(self, name) for name in names}
        self.hyper_params = _struct(type(self), "HyperParams", tuple(names))(**values)

    def init_fields(self, param: Tensor) -> Fields:
        """The state before the first step, for one parameter."""
        return {name: jnp.zeros_like(param) for name in self.FIELDS}

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        """The new parameter and fields, after step `hp.t`, counted from 1 in float64."""
        raise NotImplementedError

    def init_param_state(self, param: jax.Array) -> Any:
        fields = self.init_fields(jnp.asarray(param))
        return _struct(type(self), "ParamState", self.FIELDS)(**fields)

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> tuple[jax.Array, Any]:
        new_param, fields = self.new_values(hyper_params, step, grad, param, vars(state))
        return new_param, type(state)(**fields)

    def new_values(
        self, hyper_params: Any, count: Any, grad: Any, param: Any, fields: Mapping[str, Any]
    ) -> tuple[jax.Array, Mapping[str, jax.Array | None]]:
        """Takes a step: the new parameter and the new fields of its state, in their dtypes."""
        dtypes = {name: _dtype(value) for name, value in fields.items()}
        with jax.enable_x64(True):
            kernels = Kernels(_dtype(param))
            hp = Values(**{n: _wide_number(v) for n, v in vars(hyper_params).items()})
            old = {n: v if v is None else Kernels(dtypes[n]).wide(v) for n, v in fields.items()}
            hp.t = jnp.asarray(count, jnp.float64) + 1.0
            tensors = kernels.wide(param), kernels.wide(grad)
            new_param, new = self.step(kernels, hp, *tensors, Values(**old))
            narrow = {n: v if v is None else Kernels(dtypes[n]).narrow(v) for n, v in new.items()}
            return kernels.narrow(new_param), narrow


def transformation(definition: Callable[P, TorchOptimizer]) -> Callable[P, ExactTransformation]:
    """The function that makes an Optax transformation, with the arguments of a class."""
    name = definition.__name__

    @explained
    @functools.wraps(definition, updated=())
    def make(*args: P.args, **kwargs: P.kwargs) -> ExactTransformation:
        return _transformation(definition(*args, **kwargs))

    make.__name__ = make.__qualname__ = name.lower()
    settings = inspect.cleandoc(definition.__doc__ or "").replace("Attributes:", "Args:")
    make.__doc__ = f"`torch.optim.{name}` as an Optax transformation.\n\n{settings}"
    return make


def _transformation(definition: TorchOptimizer) -> ExactTransformation:
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
def _state_type(cls: type[TorchOptimizer]) -> Any:
    return collections.namedtuple(f"Torch{cls.__name__}State", ("count", *cls.FIELDS))


@functools.cache
def _struct(cls: type[TorchOptimizer], suffix: str, fields: tuple[str, ...]) -> Any:
    annotations = {"__annotations__": dict.fromkeys(fields, Any)}
    return struct.dataclass(type(f"{cls.__name__}{suffix}", (), annotations))


def descent(k: Kernels, hp: Values, param: Tensor, grad: Tensor) -> Tensor:
    """The gradient to descend: negated if `maximize`, with the coupled weight decay."""
    grad = -grad if hp.maximize else grad
    return grad if is_zero(hp.weight_decay) else k.add(grad, param, alpha=hp.weight_decay)


def decay_param(k: Kernels, hp: Values, param: Tensor) -> Tensor:
    """The parameter after decoupled weight decay."""
    return param if is_zero(hp.weight_decay) else k.mul(param, 1.0 - hp.lr * hp.weight_decay)


def with_decay(k: Kernels, hp: Values, param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The parameter and the gradient to descend, one of them with the weight decay."""
    if hp.decoupled_weight_decay:
        return decay_param(k, hp, param), -grad if hp.maximize else grad
    return param, descent(k, hp, param, grad)


def _dtype(value: Any) -> str:
    return "" if value is None else jnp.result_type(value).name


def _wide_number(value: Any) -> Any:
    """A hyper-parameter in float64; Python's numbers are so already, and no other is touched."""
    if isinstance(value, tuple):
        return tuple(map(_wide_number, value))
    if isinstance(value, bool | str) or value is None:
        return value
    return float(value) if isinstance(value, int | float) else jnp.asarray(value, jnp.float64)
