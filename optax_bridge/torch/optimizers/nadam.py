"""NAdam, as `torch.optim.NAdam` computes it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.claim import different
from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    LegacyClass,
    OptaxRecipe,
    StateField,
    squares,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor
from optax_bridge.torch.definition import (
    Fields,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    transformation,
    with_decay,
)
from optax_bridge.torch.optimizers.adam import MOMENTS, WITHIN, moments
from optax_bridge.torch.recipes import BESIDE, SIGN, exact_but, with_sign_and_decay


@dataclasses.dataclass(eq=False)
class NAdam(TorchOptimizer):
    """Adam with Nesterov momentum, whose decay grows from step to step.

    Attributes:
      lr: step size.
      betas: decays of the first and of the second moment.
      eps: added to the root of the second moment.
      weight_decay: multiple of the parameter that is added to the gradient.
      momentum_decay: how fast the momentum of a step comes near `betas[0]`.
      decoupled_weight_decay: multiplies the parameter by `1 - lr * weight_decay` instead.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("mu_product", "exp_avg", "exp_avg_sq")

    def init_fields(self, param: Tensor) -> Fields:
        return {**super().init_fields(param), "mu_product": jnp.ones((), jnp.float32)}

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        beta1, beta2 = hp.betas
        param, grad = with_decay(k, hp, param, grad)
        momentum, following = (
            beta1 * (1.0 - 0.5 * 0.96 ** (at * hp.momentum_decay)) for at in (t, t + 1.0)
        )
        product = Kernels("float32").mul(state.mu_product, momentum)
        mean, square = moments(k, beta1, beta2, grad, state)
        denominator = k.add(k.sqrt(k.div(square, 1.0 - beta2**t)), hp.eps)
        current = -hp.lr * (1.0 - momentum) / (1.0 - product)
        param = k.addcdiv(param, grad, denominator, value=current)
        ahead = -hp.lr * following / (1.0 - product * following)
        param = k.addcdiv(param, mean, denominator, value=ahead)
        return param, {"mu_product": product, "exp_avg": mean, "exp_avg_sq": square}


nadam = transformation(NAdam)

_OTHER = different(
    "PyTorch's momentum grows from half of betas[0] by `momentum_decay`, that of optax.nadam is "
    "constant; no setting makes them equal"
)
_NADAMW = call("optax.nadamw", learning_rate=s("lr"), **MOMENTS, weight_decay=s("weight_decay"))

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.NAdam"),
    port="optax_bridge.torch.nadam",
    extra_arguments=BESIDE,
    exactness=exact_but(4),
    within={**WITHIN, "momentum_decay": NOT_NEGATIVE},
    state=(
        StateField("mu_product", "TorchNAdamState.mu_product"),
        StateField("exp_avg", "TorchNAdamState.exp_avg"),
        squares("exp_avg_sq", "TorchNAdamState.exp_avg_sq"),
    ),
    optax=(
        *with_sign_and_decay(
            call("optax.nadam", learning_rate=s("lr"), **MOMENTS),
            _OTHER,
            {"decoupled_weight_decay": False},
        ),
        OptaxRecipe(_NADAMW, _OTHER, {"maximize": False}),
        OptaxRecipe(call("optax.chain", SIGN, _NADAMW), _OTHER),
    ),
    cases=(
        Case(),
        Case({"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1, "momentum_decay": 0.1}),
        Case({"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ),
    notes=(
        "`mu_product`, the product of the momenta of all steps, is a state of its own for each "
        "parameter, in float32; Optax has no place for it."
    ),
    sources=("torch.optim.NAdam", "Dozat 2016"),
)
