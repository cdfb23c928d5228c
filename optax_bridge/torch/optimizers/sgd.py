"""Gradient descent, its average and Rprop, as `torch.optim` computes them."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.claim import different
from optax_bridge.correspondence.entry import Case, Unsupported
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE
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
from optax_bridge.torch.recipes import EXACT, torch_entry, up_to_rounding, with_sign_and_decay


@dataclasses.dataclass(eq=False)
class SGD(TorchOptimizer):
    """Gradient descent with heavy-ball or Nesterov momentum.

    Attributes:
      lr: step size.
      momentum: factor by which the buffer decays at each step.
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

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        grad = descent(k, hp, param, grad)
        buffer = state.momentum_buffer
        if buffer is not None:
            buffer = k.add(k.mul(buffer, hp.momentum), grad, alpha=1.0 - hp.dampening)
            if not is_zero(hp.dampening):  # the first gradient is taken whole
                buffer = jnp.where(hp.t == 1.0, grad, buffer)
            grad = k.add(grad, buffer, alpha=hp.momentum) if hp.nesterov else buffer
        return k.add(param, grad, alpha=-hp.lr), {"momentum_buffer": buffer}


sgd = transformation(SGD)

_PLAIN = call("optax.sgd", learning_rate=s("lr"))
_SGD = call("optax.sgd", learning_rate=s("lr"), momentum=s("momentum"), nesterov=s("nesterov"))
_SAME = up_to_rounding(32, "PyTorch rounds `p - lr * d` once")

_SGD_ENTRY = torch_entry(
    SGD,
    "Sutskever et al. 2013",
    exactness=EXACT,
    within=dict.fromkeys(("lr", "momentum", "weight_decay"), NOT_NEGATIVE),
    in_optax={"momentum_buffer": ("TraceState.trace",)},
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
)


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

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        grad = descent(k, hp, param, grad)
        param = k.mul(param, 1.0 - hp.lambd * state.eta)
        param = k.add(param, grad, alpha=-state.eta)
        change = k.mul(k.add(param, state.ax, alpha=-1.0), state.mu)
        average = jnp.where(state.mu == 1.0, param, k.add(state.ax, change))
        eta = hp.lr / (1.0 + hp.lambd * hp.lr * hp.t) ** hp.alpha
        return param, {"eta": eta, "mu": 1.0 / jnp.maximum(1.0, hp.t - hp.t0), "ax": average}


asgd = transformation(ASGD)

_ASGD_ENTRY = torch_entry(
    ASGD,
    "Polyak and Juditsky 1992",
    exactness=EXACT,
    within=dict.fromkeys(("lr", "weight_decay"), NOT_NEGATIVE),
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
)


@dataclasses.dataclass(eq=False)
class Rprop(TorchOptimizer):
    """Resilient propagation: the sign of the gradient, times a size of its own for each element.

    Attributes:
      lr: the first step size.
      etas: factors of the size after a change of sign, and after none.
      step_sizes: the least and the largest size.
      maximize: climbs instead.
    """

    lr: float = 1e-2
    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50)
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("prev", "step_size")

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.etas[0] < 1 < self.etas[1]:
            raise ValueError(f"Rprop: expected etas below 1 and above it, found {self.etas}")

    def init_fields(self, param: Tensor) -> Fields:
        return {"prev": jnp.zeros_like(param), "step_size": jnp.full_like(param, self.lr)}

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        (shorter, longer), (least, most) = hp.etas, hp.step_sizes
        grad = -grad if hp.maximize else grad
        agreement = k.sign_of_product(grad, state.prev)
        # PyTorch writes the factors into a tensor, which rounds them.
        factor = jnp.where(agreement < 0, k.number(shorter), 1.0)
        factor = jnp.where(agreement > 0, k.number(longer), factor)
        size = jnp.clip(k.mul(state.step_size, factor), k.number(least), k.number(most))
        grad = jnp.where(agreement < 0, 0.0, grad)
        sign = jnp.where(grad > 0, 1.0, jnp.where(grad < 0, -1.0, 0.0))
        return k.addcmul(param, sign, size, value=-1.0), {"prev": grad, "step_size": size}


rprop = transformation(Rprop)

_RPROP_ENTRY = torch_entry(
    Rprop,
    "Riedmiller and Braun 1993",
    exactness=EXACT,
    within=dict.fromkeys(("lr", "etas", "step_sizes"), NOT_NEGATIVE),
    optax=with_sign_and_decay(
        call(
            "optax.rprop",
            learning_rate=s("lr"),
            eta_minus=s("etas", 0),
            eta_plus=s("etas", 1),
            min_step_size=s("step_sizes", 0),
            max_step_size=s("step_sizes", 1),
        ),
        different("optax.rprop takes each step one call late: the first call changes no parameter"),
        decays=False,
    ),
    cases=(
        Case(),
        Case({"etas": (0.3, 1.5), "step_sizes": (1e-4, 0.1)}),
        Case({"maximize": True}),
    ),
    notes=(
        "`lr` is the first step size alone: a schedule does nothing. Optax keeps the last step in "
        "the place of the last gradient, and applies it one call late."
    ),
)

ENTRIES = (_SGD_ENTRY, _ASGD_ENTRY, _RPROP_ENTRY)
