"""Rprop, as `torch.optim.Rprop` computes it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.claim import different
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, StateField
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor
from optax_bridge.torch.definition import Fields, TorchOptimizer, Values, transformation
from optax_bridge.torch.recipes import BESIDE, EXACT, with_sign_and_decay


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

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        (shorter, longer), (least, most) = hp.etas, hp.step_sizes
        grad = -grad if hp.maximize else grad
        agreement = k.mul(grad, state.prev)
        # PyTorch writes the factors into a tensor, which rounds them.
        factor = jnp.where(agreement < 0, k.number(shorter), 1.0)
        factor = jnp.where(agreement > 0, k.number(longer), factor)
        size = jnp.clip(k.mul(state.step_size, factor), k.number(least), k.number(most))
        grad = jnp.where(agreement < 0, 0.0, grad)
        sign = jnp.where(grad > 0, 1.0, jnp.where(grad < 0, -1.0, 0.0))
        return k.addcmul(param, sign, size, value=-1.0), {"prev": grad, "step_size": size}


rprop = transformation(Rprop)

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.Rprop"),
    port="optax_bridge.torch.rprop",
    extra_arguments=BESIDE,
    exactness=EXACT,
    within=dict.fromkeys(("lr", "etas", "step_sizes"), NOT_NEGATIVE),
    state=(
        StateField("prev", "TorchRpropState.prev"),
        StateField("step_size", "TorchRpropState.step_size"),
    ),
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
    sources=("torch.optim.Rprop", "Riedmiller and Braun 1993"),
)
