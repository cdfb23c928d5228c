"""Stochastic gradient descent, as `torch.optim.SGD` computes it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, StateField, Unsupported
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
    is_zero,
    transformation,
)
from optax_bridge.torch.recipes import BESIDE, EXACT, up_to_rounding, with_sign_and_decay


@dataclasses.dataclass(eq=False)
class SGD(TorchOptimizer):
    """Gradient descent with heavy-ball or Nesterov momentum.

    Attributes:
      lr: step size.
      momentum: what is kept of the buffer at each step.
      dampening: the buffer takes `1 - dampening` of the gradient, from the second step on.
      weight_decay: multiple of the parameter that is added to the gradient.
      nesterov: looks one step ahead.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 1e-3
    momentum: float = 0
    dampening: float = 0
    weight_decay: float = 0
    nesterov: bool = False
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("momentum_buffer",)

    def __post_init__(self):
        super().__post_init__()
        if self.nesterov and (is_zero(self.momentum) or not is_zero(self.dampening)):
            raise ValueError(
                "SGD(nesterov=True): expected a momentum above 0 and no dampening, found "
                f"momentum={self.momentum}, dampening={self.dampening}"
            )

    def init_fields(self, param: Tensor) -> Fields:
        return {"momentum_buffer": None if is_zero(self.momentum) else jnp.zeros_like(param)}

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        grad = descent(k, hp, param, grad)
        buffer = state.momentum_buffer
        if buffer is not None:
            buffer = k.add(k.mul(buffer, hp.momentum), grad, alpha=1.0 - hp.dampening)
            if not is_zero(hp.dampening):  # the first gradient is taken whole
                buffer = jnp.where(t == 1.0, grad, buffer)
            grad = k.add(grad, buffer, alpha=hp.momentum) if hp.nesterov else buffer
        return k.add(param, grad, alpha=-hp.lr), {"momentum_buffer": buffer}


sgd = transformation(SGD)

_PLAIN = call("optax.sgd", learning_rate=s("lr"))
_SGD = call("optax.sgd", learning_rate=s("lr"), momentum=s("momentum"), nesterov=s("nesterov"))
_SAME = up_to_rounding(32, "PyTorch rounds `p - lr * d` once")

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.SGD"),
    port="optax_bridge.torch.sgd",
    extra_arguments=BESIDE,
    exactness=EXACT,
    within=dict.fromkeys(("lr", "momentum", "weight_decay"), NOT_NEGATIVE),
    state=(StateField("momentum_buffer", "TorchSGDState.momentum_buffer", ("TraceState.trace",)),),
    optax=(
        *with_sign_and_decay(_PLAIN, _SAME, {"momentum": 0}),
        *with_sign_and_decay(_SGD, _SAME),
    ),
    unsupported=(
        Unsupported(
            "dampening",
            0,
            "optax.trace has no dampening, and PyTorch leaves the first gradient undampened. "
            "Scale the rate by 1 - dampening instead, or use the exact recipe.",
        ),
    ),
    cases=(
        Case(),
        Case({"momentum": 0.9}),
        Case({"momentum": 0.5, "weight_decay": 0.01, "nesterov": True}),
        Case({"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
        Case({"weight_decay": 0.1, "maximize": True}),
    ),
    notes=(
        "Weight decay is *coupled*: it is added to the gradient before the momentum, so "
        "`optax.add_decayed_weights` comes first. PyTorch keeps no step for SGD, and no buffer "
        "before the first step, which takes the gradient undampened."
    ),
    sources=("torch.optim.SGD", "Sutskever et al. 2013"),
)
