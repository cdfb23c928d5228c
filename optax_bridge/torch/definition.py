"""An optimizer of PyTorch as a definition, and as an Optax transformation."""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from optax_bridge.exact.leaf_rule import ScalarOrSchedule, is_zero
from optax_bridge.exact.ported import PortedOptimizer, transformation
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor

__all__ = ["ScalarOrSchedule", "TorchOptimizer", "is_zero", "transformation"]

Fields = Mapping[str, Tensor | None]
Values = SimpleNamespace  # hyper-parameters of a step, or a state's fields, as attributes


@dataclasses.dataclass(eq=False)
class TorchOptimizer(PortedOptimizer):
    """An optimizer of `torch.optim`, a dataclass of its hyper-parameters.

    A subclass names the fields of its state as PyTorch does, and defines `step`; `init_fields`
    where they do not begin with zeros.
    """

    ORIGIN: ClassVar = "torch.optim"
    STATE: ClassVar = "Torch"

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        """The new parameter and fields, after step `t`, counted from 1 in float64."""
        raise NotImplementedError

    def new_values(
        self, hyper_params: Any, count: Any, grad: Any, param: Any, fields: Mapping[str, Any]
    ) -> tuple[jax.Array, Mapping[str, jax.Array | None]]:
        dtypes = {name: _dtype(value) for name, value in fields.items()}
        with jax.enable_x64(True):
            kernels = Kernels(_dtype(param))
            hp = SimpleNamespace(**{n: _wide_number(v) for n, v in vars(hyper_params).items()})
            wide = {n: v if v is None else Kernels(dtypes[n]).wide(v) for n, v in fields.items()}
            new_param, new = self.step(
                kernels,
                jnp.asarray(count, jnp.float64) + 1.0,
                hp,
                kernels.wide(param),
                kernels.wide(grad),
                SimpleNamespace(**wide),
            )
            narrow = {n: v if v is None else Kernels(dtypes[n]).narrow(v) for n, v in new.items()}
            return kernels.narrow(new_param), narrow


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
