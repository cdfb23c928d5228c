"""RAdam, as `torch.optim.RAdam` computes it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.claim import different
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, StateField, squares
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor, root
from optax_bridge.torch.definition import (
    Fields,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    transformation,
    with_decay,
)
from optax_bridge.torch.optimizers.adam import MOMENTS, WITHIN, moments
from optax_bridge.torch.recipes import BESIDE, exact_but, up_to_rounding, with_sign_and_decay

_LEAST_LENGTH = 5.0  # of the average, from which on the step is rectified


@dataclasses.dataclass(eq=False)
class RAdam(TorchOptimizer):
    """Adam whose first steps are not adaptive, and whose later ones are rectified.

    Attributes:
      lr: step size.
      betas: decays of the first and of the second moment.
      eps: added to the root of the second moment, before its bias correction.
      weight_decay: multiple of the parameter that is added to the gradient.
      decoupled_weight_decay: multiplies the parameter by `1 - lr * weight_decay` instead.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    decoupled_weight_decay: bool = False
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("exp_avg", "exp_avg_sq")

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        beta1, beta2 = hp.betas
        param, grad = with_decay(k, hp, param, grad)
        mean, square = moments(k, beta1, beta2, grad, state)
        correction = 1.0 - beta2**t
        longest = 2.0 / (1.0 - beta2) - 1.0
        length = longest - 2.0 * t * beta2**t / correction
        rectified = root(
            (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        )
        plain = k.mul(k.div(mean, 1.0 - beta1**t), hp.lr)
        inverse = k.div(jnp.ones_like(square), k.add(k.sqrt(square), hp.eps))
        adaptive = k.mul(k.mul(plain, k.mul(inverse, root(correction))), rectified)
        update = jnp.where(length > _LEAST_LENGTH, adaptive, plain)
        return k.add(param, update, alpha=-1.0), {"exp_avg": mean, "exp_avg_sq": square}


radam = transformation(RAdam)

_RADAM = call("optax.radam", learning_rate=s("lr"), **MOMENTS)
_DECOUPLED = call(
    "optax.chain",
    call("optax.scale_by_radam", **MOMENTS),
    call("optax.add_decayed_weights", s("weight_decay")),
    call("optax.scale_by_learning_rate", s("lr")),
)
_SAME = up_to_rounding(64, "PyTorch computes the rectification in float64")
_EPS = different(
    "PyTorch adds eps before the bias correction of the second moment, Optax after it: eps is 13 "
    "times as large at the first rectified step"
)

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.RAdam"),
    port="optax_bridge.torch.radam",
    extra_arguments=BESIDE,
    exactness=exact_but(4),
    within=WITHIN,
    state=(
        StateField("exp_avg", "TorchRAdamState.exp_avg", ("ScaleByAdamState.mu",)),
        squares("exp_avg_sq", "TorchRAdamState.exp_avg_sq", ("ScaleByAdamState.nu",)),
    ),
    optax=(
        *with_sign_and_decay(_RADAM, _SAME, {"eps": 0, "decoupled_weight_decay": False}),
        *with_sign_and_decay(_DECOUPLED, _SAME, {"eps": 0}, decays=False),
        *with_sign_and_decay(_RADAM, _EPS, {"decoupled_weight_decay": False}),
        *with_sign_and_decay(_DECOUPLED, _EPS, decays=False),
    ),
    cases=(
        Case(),
        Case({"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
        Case({"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ),
    notes=(
        "Where gradients are far above `eps` the two differ by rounding alone. Optax rectifies "
        "from a length of 5 on (`threshold`), PyTorch above 5."
    ),
    sources=("torch.optim.RAdam", "Liu et al. 2019, arXiv:1908.03265"),
)
