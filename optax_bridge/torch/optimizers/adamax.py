"""Adamax, as `torch.optim.Adamax` computes it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, StateField, squares
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor
from optax_bridge.torch.definition import (
    Fields,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    descent,
    transformation,
)
from optax_bridge.torch.optimizers.adam import MOMENTS, WITHIN
from optax_bridge.torch.recipes import (
    BESIDE,
    DECAY_OF_ONE,
    EPS_OF_ZERO,
    EXACT,
    up_to_rounding,
    with_sign_and_decay,
)


@dataclasses.dataclass(eq=False)
class Adamax(TorchOptimizer):
    """Adam with the largest decayed gradient in the place of the second moment.

    Attributes:
      lr: step size.
      betas: decays of the first moment and of the largest gradient.
      eps: added to the gradient's magnitude.
      weight_decay: multiple of the parameter that is added to the gradient.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("exp_avg", "exp_inf")

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        beta1, beta2 = hp.betas
        grad = descent(k, hp, param, grad)
        mean = k.lerp(state.exp_avg, grad, 1.0 - beta1)
        largest = jnp.maximum(k.mul(state.exp_inf, beta2), k.add(jnp.abs(grad), hp.eps))
        param = k.addcdiv(param, mean, largest, value=-(hp.lr / (1.0 - beta1**t)))
        return param, {"exp_avg": mean, "exp_inf": largest}


adamax = transformation(Adamax)

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.Adamax"),
    port="optax_bridge.torch.adamax",
    extra_arguments=BESIDE,
    exactness=EXACT,
    within=WITHIN,
    state=(
        StateField("exp_avg", "TorchAdamaxState.exp_avg", ("ScaleByAdamState.mu",)),
        squares("exp_inf", "TorchAdamaxState.exp_inf", ("ScaleByAdamState.nu",)),
    ),
    optax=with_sign_and_decay(
        call("optax.adamax", learning_rate=s("lr"), **MOMENTS),
        up_to_rounding(
            32, "PyTorch computes the bias correction in float64", DECAY_OF_ONE, EPS_OF_ZERO
        ),
    ),
    cases=(
        Case(),
        Case({"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
        Case({"maximize": True}),
    ),
    notes=(
        "Weight decay is *coupled*: it is added to the gradient. `optax.adamaxw` decouples it, as "
        "no setting of PyTorch's Adamax does."
    ),
    sources=("torch.optim.Adamax", "Kingma and Ba 2014, arXiv:1412.6980"),
)
