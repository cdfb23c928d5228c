"""Optimizers of Keras as definitions, in the arithmetic of its backend for JAX.

Each does what Keras does, in Keras' order: a weight decay shrinks the parameter before the step,
and hyper-parameters are rounded to the parameter's dtype where Keras rounds them.
"""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from optax_bridge.exact.leaf_rule import ScalarOrSchedule, is_zero
from optax_bridge.exact.ported import PortedOptimizer

Array = jax.Array
Fields = Mapping[str, Array | None]
Values = SimpleNamespace  # hyper-parameters of a step, or a state's fields, as attributes


@dataclasses.dataclass(eq=False)
class KerasOptimizer(PortedOptimizer):
    """An optimizer of `keras.optimizers`, a dataclass of its hyper-parameters.

    A subclass names the fields of its state as Keras does, and defines `step`.
    """

    ORIGIN: ClassVar = "keras.optimizers"
    STATE: ClassVar = "Keras"

    def step(
        self, hp: Values, t: Array, lr: Array, param: Array, grad: Array, state: Values
    ) -> tuple[Array, Fields]:
        """Takes a step without its weight decay.

        Args:
          hp: the hyper-parameters of this step, as attributes.
          t: the number of this step, from 1 on, in the parameter's dtype.
          lr: the learning rate, likewise.
          param: the parameter.
          grad: its gradient.
          state: its state's fields, as attributes.

        Returns:
          What is taken from the parameter, and the new fields, in the dtypes of the old ones: to
          a variable of Keras, values are assigned in its own dtype.
        """
        raise NotImplementedError

    def new_values(
        self, hyper_params: Any, count: Any, grad: Any, param: Any, fields: Mapping[str, Any]
    ) -> tuple[Array, Fields]:
        param = jnp.asarray(param)
        dtype = param.dtype
        # Keras keeps the rate in float32.
        rate = jnp.asarray(hyper_params.learning_rate, jnp.promote_types(dtype, jnp.float32))
        lr, t = rate.astype(dtype), jnp.asarray(count + 1, dtype)
        if hyper_params.weight_decay is not None:
            param = param - param * jnp.asarray(hyper_params.weight_decay, dtype) * lr
        grad, state = jnp.asarray(grad, dtype), SimpleNamespace(**fields)
        taken, new = self.step(hyper_params, t, lr, param, grad, state)
        return (param - taken).astype(dtype), new


def _toward(average: Array, value: Array, beta: Any) -> Array:
    return (average + (value - average) * (1 - beta)).astype(average.dtype)


def _decaying(average: Array, value: Array, rho: Any) -> Array:
    return (rho * average + (1 - rho) * value).astype(average.dtype)


def _power(beta: Any, t: Array) -> Array:
    return jnp.power(jnp.asarray(beta, t.dtype), t)


@dataclasses.dataclass(eq=False)
class SGD(KerasOptimizer):
    """SGD, whose momentum holds updates, the rate included.

    Attributes:
      learning_rate: step size.
      momentum: what is kept of the last update.
      nesterov: looks ahead.
      weight_decay: decoupled; None: none.
    """

    learning_rate: ScalarOrSchedule = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float | None = None

    FIELDS: ClassVar = ("momentums",)

    def init_fields(self, param: Array) -> Fields:
        return {"momentums": None if is_zero(self.momentum) else jnp.zeros_like(param)}

    def step(
        self, hp: Values, t: Array, lr: Array, param: Array, grad: Array, state: Values
    ) -> tuple[Array, Fields]:
        if state.momentums is None:
            return grad * lr, {"momentums": None}
        decay = jnp.asarray(hp.momentum, param.dtype)
        momentum = state.momentums * decay - grad * lr
        added = momentum * decay - grad * lr if hp.nesterov else momentum
        return -added, {"momentums": momentum}


@dataclasses.dataclass(eq=False)
class RMSprop(KerasOptimizer):
    """RMSProp with `epsilon` inside the root.

    Attributes:
      learning_rate: step size.
      rho: decay of the averages.
      momentum: what is kept of the last update.
      epsilon: added to the second moment.
      centered: divides by the variance rather than by the second moment.
      weight_decay: decoupled; None: none.
    """

    learning_rate: ScalarOrSchedule = 0.001
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    weight_decay: float | None = None

    FIELDS: ClassVar = ("velocities", "momentums", "average_gradients")

    def init_fields(self, param: Array) -> Fields:
        zeros = jnp.zeros_like(param)
        return {
            "velocities": zeros,
            "momentums": None if is_zero(self.momentum) else zeros,
            "average_gradients": zeros if self.centered else None,
        }

    def step(
        self, hp: Values, t: Array, lr: Array, param: Array, grad: Array, state: Values
    ) -> tuple[Array, Fields]:
        momentum, mean = state.momentums, state.average_gradients
        velocity = _decaying(state.velocities, jnp.square(grad), hp.rho)
        variance = velocity
        if mean is not None:
            mean = _decaying(mean, grad, hp.rho)
            variance = velocity - jnp.square(mean)
        taken = lr * grad / jnp.sqrt(variance + hp.epsilon)
        if momentum is not None:
            taken = momentum = (hp.momentum * momentum + taken).astype(momentum.dtype)
        return taken, {"velocities": velocity, "momentums": momentum, "average_gradients": mean}


@dataclasses.dataclass(eq=False)
class Adadelta(KerasOptimizer):
    """Adadelta.

    Attributes:
      learning_rate: step size.
      rho: decay of both averages.
      epsilon: added inside both roots.
      weight_decay: decoupled; None: none.
    """

    learning_rate: ScalarOrSchedule = 0.001
    rho: float = 0.95
    epsilon: float = 1e-7
    weight_decay: float | None = None

    FIELDS: ClassVar = ("accumulated_grad", "accumulated_delta_var")

    def step(
        self, hp: Values, t: Array, lr: Array, param: Array, grad: Array, state: Values
    ) -> tuple[Array, Fields]:
        squares = _decaying(state.accumulated_grad, jnp.square(grad), hp.rho)
        root = jnp.sqrt(state.accumulated_delta_var + hp.epsilon)
        change = root * grad / jnp.sqrt(squares + hp.epsilon)
        changes = _decaying(state.accumulated_delta_var, jnp.square(change), hp.rho)
        return lr * change, {"accumulated_grad": squares, "accumulated_delta_var": changes}


@dataclasses.dataclass(eq=False)
class Adam(KerasOptimizer):
    """Adam with `epsilon` added to the root of the uncorrected second moment.

    Attributes:
      learning_rate: step size.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: added to the root of the second moment, before the bias correction.
      amsgrad: divides by the largest second moment so far.
      weight_decay: decoupled; None: none.
    """

    learning_rate: ScalarOrSchedule = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False
    weight_decay: float | None = None

    FIELDS: ClassVar = ("momentums", "velocities", "velocity_hats")

    def init_fields(self, param: Array) -> Fields:
        zeros = jnp.zeros_like(param)
        largest = zeros if self.amsgrad else None
        return {"momentums": zeros, "velocities": zeros, "velocity_hats": largest}

    def step(
        self, hp: Values, t: Array, lr: Array, param: Array, grad: Array, state: Values
    ) -> tuple[Array, Fields]:
        alpha = lr * jnp.sqrt(1 - _power(hp.beta_2, t)) / (1 - _power(hp.beta_1, t))
        mean = _toward(state.momentums, grad, hp.beta_1)
        square = _toward(state.velocities, jnp.square(grad), hp.beta_2)
        largest = state.velocity_hats
        if largest is not None:
            largest = jnp.maximum(largest, square)
        root = jnp.sqrt(square if largest is None else largest)
        fields = {"momentums": mean, "velocities": square, "velocity_hats": largest}
        return mean * alpha / (root + hp.epsilon), fields


@dataclasses.dataclass(eq=False)
class AdamW(KerasOptimizer):
    """Adam with a weight decay by default.

    Attributes:
      learning_rate: step size.
      weight_decay: decoupled.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: added to the root of the second moment, before the bias correction.
      amsgrad: divides by the largest second moment so far.
    """

    learning_rate: ScalarOrSchedule = 0.001
    weight_decay: float = 0.004
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False

    FIELDS: ClassVar = Adam.FIELDS
    init_fields = Adam.init_fields
    step = Adam.step


@dataclasses.dataclass(eq=False)
class Adamax(KerasOptimizer):
    """Adamax with `epsilon` added to the largest gradient.

    Attributes:
      learning_rate: step size.
      beta_1: decay of the first moment.
      beta_2: decay of the largest gradient.
      epsilon: added to it.
      weight_decay: decoupled; None: none.
    """

    learning_rate: ScalarOrSchedule = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float | None = None

    FIELDS: ClassVar = ("momentums", "norm")

    def step(
        self, hp: Values, t: Array, lr: Array, param: Array, grad: Array, state: Values
    ) -> tuple[Array, Fields]:
        mean = _toward(state.momentums, grad, hp.beta_1)
        largest = jnp.maximum(hp.beta_2 * state.norm, jnp.abs(grad)).astype(state.norm.dtype)
        taken = lr * mean / ((1 - _power(hp.beta_1, t)) * (largest + hp.epsilon))
        return taken, {"momentums": mean, "norm": largest}


@dataclasses.dataclass(eq=False)
class Lion(KerasOptimizer):
    """Lion.

    Attributes:
      learning_rate: step size.
      beta_1: weight of the momentum in the sign.
      beta_2: decay of the momentum.
      weight_decay: decoupled; None: none.
    """

    learning_rate: ScalarOrSchedule = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float | None = None

    FIELDS: ClassVar = ("momentums",)

    def step(
        self, hp: Values, t: Array, lr: Array, param: Array, grad: Array, state: Values
    ) -> tuple[Array, Fields]:
        beta_1, beta_2 = (jnp.asarray(beta, param.dtype) for beta in (hp.beta_1, hp.beta_2))
        sign = jnp.sign(state.momentums * beta_1 + grad * (1.0 - beta_1))
        return lr * sign, {"momentums": state.momentums * beta_2 + grad * (1.0 - beta_2)}
