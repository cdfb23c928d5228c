"""Averaged stochastic gradient descent, as `torch.optim.ASGD` computes it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, StateField
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
from optax_bridge.torch.recipes import BESIDE, EXACT


@dataclasses.dataclass(eq=False)
class ASGD(TorchOptimizer):
    """Gradient descent that keeps an average of the parameters, in the state's field `ax`.

    Attributes:
      lr: step size, from the second step on; the first step's is that of the state.
      lambd: decay of the parameters, and of the rate.
      alpha: power of the rate's decay.
      t0: step from which on the average is one.
      weight_decay: multiple of the parameter that is added to the gradient.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 1e-2
    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("eta", "mu", "ax")

    def init_fields(self, param: Tensor) -> Fields:
        rate = self.lr(jnp.zeros((), jnp.int32)) if callable(self.lr) else self.lr
        eta, mu = jnp.asarray(rate, jnp.float32), jnp.ones((), jnp.float32)
        return {"eta": eta, "mu": mu, "ax": jnp.zeros_like(param)}

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        grad = descent(k, hp, param, grad)
        param = k.mul(param, 1.0 - hp.lambd * state.eta)
        param = k.add(param, grad, alpha=-state.eta)
        change = k.mul(k.add(param, state.ax, alpha=-1.0), state.mu)
        average = jnp.where(state.mu == 1.0, param, k.add(state.ax, change))
        eta = hp.lr / (1.0 + hp.lambd * hp.lr * t) ** hp.alpha
        return param, {"eta": eta, "mu": 1.0 / jnp.maximum(1.0, t - hp.t0), "ax": average}


asgd = transformation(ASGD)

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.ASGD"),
    port="optax_bridge.torch.asgd",
    extra_arguments=BESIDE,
    exactness=EXACT,
    within=dict.fromkeys(("lr", "weight_decay"), NOT_NEGATIVE),
    state=tuple(StateField(name, f"TorchASGDState.{name}") for name in ASGD.FIELDS),
    optax=(),
    cases=(
        Case(),
        Case({"lambd": 0.1, "alpha": 0.5, "t0": 3.0, "weight_decay": 0.1}),
        Case({"maximize": True}),
    ),
    notes=(
        "Optax has no such optimizer. The average is no parameter of the model: take it with "
        '`optax.tree.get(opt_state, "ax")`. `optax.ema` of the parameters is another average.'
    ),
    sources=("torch.optim.ASGD", "Polyak and Juditsky 1992"),
)
