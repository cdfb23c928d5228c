"""Adagrad, as `torch.optim.Adagrad` computes it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.claim import different
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, Unsupported, squares
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor
from optax_bridge.torch.definition import (
    Fields,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    descent,
    transformation,
)
from optax_bridge.torch.recipes import BESIDE, exact_but, with_sign_and_decay


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

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        grad = descent(k, hp, param, grad)
        total = k.addcmul(state.sum, grad, grad)
        rate = hp.lr / (1.0 + (t - 1.0) * hp.lr_decay)
        return k.addcdiv(param, grad, k.add(k.sqrt(total), hp.eps), value=-rate), {"sum": total}


adagrad = transformation(Adagrad)

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.Adagrad"),
    port="optax_bridge.torch.adagrad",
    extra_arguments=BESIDE,
    exactness=exact_but(4),
    within=dict.fromkeys(
        ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"), NOT_NEGATIVE
    ),
    state=(squares("sum", "TorchAdagradState.sum"),),
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
    sources=("torch.optim.Adagrad", "Duchi et al. 2011"),
)
