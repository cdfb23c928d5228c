"""Adadelta, as `torch.optim.Adadelta` computes it."""

import dataclasses
from typing import ClassVar

from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, squares
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor
from optax_bridge.torch.definition import (
    Fields,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    descent,
    transformation,
)
from optax_bridge.torch.recipes import BESIDE, exact_but, up_to_rounding, with_sign_and_decay


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

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        grad, rest = descent(k, hp, param, grad), 1.0 - hp.rho
        square = k.addcmul(k.mul(state.square_avg, hp.rho), grad, grad, value=rest)
        gradients, deltas = (k.sqrt(k.add(x, hp.eps)) for x in (square, state.acc_delta))
        delta = k.mul(k.div(deltas, gradients), grad)
        accumulated = k.addcmul(k.mul(state.acc_delta, hp.rho), delta, delta, value=rest)
        param = k.add(param, delta, alpha=-hp.lr)
        return param, {"square_avg": square, "acc_delta": accumulated}


adadelta = transformation(Adadelta)

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.Adadelta"),
    port="optax_bridge.torch.adadelta",
    extra_arguments=BESIDE,
    exactness=exact_but(4),
    within={"rho": DECAY} | dict.fromkeys(("lr", "eps", "weight_decay"), NOT_NEGATIVE),
    state=(
        squares("square_avg", "TorchAdadeltaState.square_avg", ("ScaleByAdaDeltaState.e_g",)),
        squares("acc_delta", "TorchAdadeltaState.acc_delta", ("ScaleByAdaDeltaState.e_x",)),
    ),
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
    sources=("torch.optim.Adadelta", "Zeiler 2012, arXiv:1212.5701"),
)
