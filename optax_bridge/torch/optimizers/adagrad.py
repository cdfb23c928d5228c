"""Adagrad, Adadelta and RMSprop, as `torch.optim` computes them."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.claim import different
from optax_bridge.correspondence.entry import Case, Unsupported
from optax_bridge.correspondence.recipe import Call, call
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE
from optax_bridge.torch.arithmetic import Kernels, Tensor
from optax_bridge.torch.definition import (
    Fields,
    Result,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    descent,
    is_zero,
    transformation,
)
from optax_bridge.torch.recipes import RATE, torch_entry, up_to_rounding, with_sign_and_decay


@dataclasses.dataclass(eq=False)
class Adagrad(TorchOptimizer):
    """Adagrad with `eps` outside the root.

    Attributes:
      lr: step size.
      lr_decay: step `t` has the rate `lr / (1 + (t - 1) * lr_decay)`.
      weight_decay: multiple of the parameter that is added to the gradient.
      initial_accumulator_value: of the sum of squares.
      eps: added to the root of the sum.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 1e-2
    lr_decay: float = 0
    weight_decay: float = 0
    initial_accumulator_value: float = 0
    eps: float = 1e-10
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("sum",)

    def init_fields(self, param: Tensor) -> Fields:
        return {"sum": jnp.full_like(param, self.initial_accumulator_value)}

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        grad = descent(k, hp, param, grad)
        total = k.addcmul(state.sum, grad, grad)
        rate = hp.lr / (1.0 + (hp.t - 1.0) * hp.lr_decay)
        return k.addcdiv(param, grad, k.add(k.sqrt(total), hp.eps), value=-rate), {"sum": total}


adagrad = transformation(Adagrad)

_ADAGRAD = torch_entry(
    Adagrad,
    "Duchi et al. 2011",
    within=dict.fromkeys(
        ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"), NOT_NEGATIVE
    ),
    optax=with_sign_and_decay(
        call(
            "optax.adagrad",
            learning_rate=s("lr"),
            initial_accumulator_value=s("initial_accumulator_value"),
            eps=s("eps"),
        ),
        different(
            "PyTorch has eps outside the root, Optax inside; and where the sum is 0 Optax does "
            "not move"
        ),
    ),
    unsupported=(
        Unsupported(
            "lr_decay",
            0,
            "optax.adagrad has none; learning_rate=lambda count: lr / (1 + count * lr_decay) is "
            "the same rate.",
        ),
    ),
    cases=(
        Case(),
        Case({"initial_accumulator_value": 0.1, "eps": 1e-3, "weight_decay": 0.1}),
        Case({"lr_decay": 0.1, "maximize": True}),
    ),
    notes=(
        "`optax.adagrad` begins with a sum of 0.1 and an eps of 1e-7 inside the root; PyTorch "
        "with 0 and 1e-10 outside it. No setting of Optax's makes the two equal."
    ),
)


@dataclasses.dataclass(eq=False)
class Adadelta(TorchOptimizer):
    """Adadelta.

    Attributes:
      lr: scales the step.
      rho: decay of both averages.
      eps: added to both averages within their roots.
      weight_decay: multiple of the parameter that is added to the gradient.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("square_avg", "acc_delta")

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        grad, rest = descent(k, hp, param, grad), 1.0 - hp.rho
        square = k.addcmul(k.mul(state.square_avg, hp.rho), grad, grad, value=rest)
        gradients, deltas = (k.sqrt(k.add(x, hp.eps)) for x in (square, state.acc_delta))
        delta = k.mul(k.div(deltas, gradients), grad)
        accumulated = k.addcmul(k.mul(state.acc_delta, hp.rho), delta, delta, value=rest)
        param = k.add(param, delta, alpha=-hp.lr)
        return param, {"square_avg": square, "acc_delta": accumulated}


adadelta = transformation(Adadelta)

_ADADELTA = torch_entry(
    Adadelta,
    "Zeiler 2012, arXiv:1212.5701",
    within={"rho": DECAY} | dict.fromkeys(("lr", "eps", "weight_decay"), NOT_NEGATIVE),
    in_optax={
        "square_avg": ("ScaleByAdaDeltaState.e_g",),
        "acc_delta": ("ScaleByAdaDeltaState.e_x",),
    },
    optax=with_sign_and_decay(
        call("optax.adadelta", learning_rate=s("lr"), rho=s("rho"), eps=s("eps")),
        up_to_rounding(64, "order of operations only"),
    ),
    cases=(
        Case(learning_rate=1.0),
        Case({"rho": 0.5, "eps": 1e-3, "weight_decay": 0.1}, learning_rate=0.5),
        Case({"maximize": True}, learning_rate=1.0),
    ),
    notes="The rate is 1 by default; `optax.adadelta` takes none by default, which is 1 as well.",
)


@dataclasses.dataclass(eq=False)
class RMSprop(TorchOptimizer):
    """RMSProp with `eps` outside the root, where `optax.rmsprop` has it inside by default.

    Attributes:
      lr: step size.
      alpha: decay of the averages.
      eps: added to the root of the second moment.
      weight_decay: multiple of the parameter that is added to the gradient.
      momentum: factor by which the buffer decays before the scaled gradient is added.
      centered: divides by the variance rather than by the second moment.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0
    momentum: float = 0
    centered: bool = False
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("square_avg", "momentum_buffer", "grad_avg")

    def init_fields(self, param: Tensor) -> Fields:
        zeros = jnp.zeros_like(param)
        return {
            "square_avg": zeros,
            "momentum_buffer": None if is_zero(self.momentum) else zeros,
            "grad_avg": zeros if self.centered else None,
        }

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        grad = descent(k, hp, param, grad)
        buffer, mean = state.momentum_buffer, state.grad_avg
        square = k.addcmul(k.mul(state.square_avg, hp.alpha), grad, grad, value=1.0 - hp.alpha)
        variance = square
        if mean is not None:
            mean = k.lerp(mean, grad, 1.0 - hp.alpha)
            variance = k.addcmul(square, mean, mean, value=-1.0)
        deviation = k.add(k.sqrt(variance), hp.eps)
        if buffer is None:
            param = k.addcdiv(param, grad, deviation, value=-hp.lr)
        else:
            buffer = k.addcdiv(k.mul(buffer, hp.momentum), grad, deviation)
            param = k.add(param, buffer, alpha=-hp.lr)
        return param, {"square_avg": square, "momentum_buffer": buffer, "grad_avg": mean}


rmsprop = transformation(RMSprop)

_SCALE = {"decay": s("alpha"), "eps": s("eps"), "eps_in_sqrt": False}
_PLAIN = call("optax.rmsprop", learning_rate=s("lr"), **_SCALE, centered=s("centered"))
_SAME = up_to_rounding(64, "order of operations only")


def _with_momentum(scale: str) -> Call:
    """The rate comes after the trace, as in PyTorch; in optax.rmsprop it comes before."""
    return call("optax.chain", call(scale, **_SCALE), call("optax.trace", s("momentum")), RATE)


_RMSPROP = torch_entry(
    RMSprop,
    "Tieleman and Hinton 2012",
    "Graves 2013, arXiv:1308.0850",
    within=dict.fromkeys(("lr", "alpha", "eps", "weight_decay", "momentum"), NOT_NEGATIVE),
    in_optax={
        "square_avg": ("ScaleByRmsState.nu", "ScaleByRStdDevState.nu"),
        "momentum_buffer": ("TraceState.trace",),
        "grad_avg": ("ScaleByRStdDevState.mu",),
    },
    optax=(
        *with_sign_and_decay(_PLAIN, _SAME, {"momentum": 0}),
        *with_sign_and_decay(_with_momentum("optax.scale_by_rms"), _SAME, {"centered": False}),
        *with_sign_and_decay(_with_momentum("optax.scale_by_stddev"), _SAME),
    ),
    cases=(
        Case(),
        Case({"alpha": 0.9, "eps": 1e-3, "centered": True}),
        Case({"momentum": 0.9, "weight_decay": 0.1}),
        Case({"momentum": 0.5, "eps": 1e-3, "centered": True, "maximize": True}),
    ),
    notes=(
        "`optax.rmsprop` has `eps` inside the root unless `eps_in_sqrt=False`, and decays by 0.9 "
        "where PyTorch's `alpha` is 0.99. With momentum it scales by the rate before the trace, "
        "PyTorch after it: the same for a constant rate, another for a schedule, and another "
        "buffer. With `centered`, a gradient beyond some 1e21 makes the square infinite, and that "
        "of the mean too: on a GPU their difference is NaN in `optax.rmsprop`; on CPUs XLA "
        "subtracts the product in one operation, as PyTorch does."
    ),
)

ENTRIES = (_ADAGRAD, _ADADELTA, _RMSPROP)
