"""Adam, as `torch.optim.Adam` computes it."""

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
from optax_bridge.correspondence.values import CORRECTED_DECAY, NOT_NEGATIVE
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor, root
from optax_bridge.torch.definition import (
    Fields,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    transformation,
    with_decay,
)
from optax_bridge.torch.recipes import (
    BESIDE,
    DECAY_OF_ONE,
    SIGN,
    exact_but,
    up_to_rounding,
    with_sign_and_decay,
)


@dataclasses.dataclass(eq=False)
class Adam(TorchOptimizer):
    """Adam with weight decay that is added to the gradient.

    Attributes:
      lr: step size.
      betas: decays of the first and of the second moment.
      eps: added to the root of the second moment.
      weight_decay: multiple of the parameter that is added to the gradient.
      amsgrad: divides by the largest second moment so far, before its bias correction.
      maximize: climbs instead.
      decoupled_weight_decay: multiplies the parameter by `1 - lr * weight_decay` instead.
    """

    lr: ScalarOrSchedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    amsgrad: bool = False
    maximize: bool = dataclasses.field(default=False, kw_only=True)
    decoupled_weight_decay: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def init_fields(self, param: Tensor) -> Fields:
        zeros = TorchOptimizer.init_fields(self, param)
        return {**zeros, "max_exp_avg_sq": zeros["max_exp_avg_sq"] if self.amsgrad else None}

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        param, grad = with_decay(k, hp, param, grad)
        return adam_step(k, t, hp, param, grad, state)


def adam_step(
    k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
) -> tuple[Tensor, Fields]:
    """The step of Adam and AdamW once decay and sign are in."""
    beta1, beta2 = hp.betas
    mean, square = moments(k, beta1, beta2, grad, state)
    largest = jnp.maximum(state.max_exp_avg_sq, square) if hp.amsgrad else None
    scale = root(1.0 - beta2**t)
    denominator = k.add(k.div(k.sqrt(square if largest is None else largest), scale), hp.eps)
    param = k.addcdiv(param, mean, denominator, value=-(hp.lr / (1.0 - beta1**t)))
    return param, {"exp_avg": mean, "exp_avg_sq": square, "max_exp_avg_sq": largest}


def moments(
    k: Kernels, beta1: Number, beta2: Number, grad: Tensor, state: Values
) -> tuple[Tensor, Tensor]:
    """The new moving averages of the gradient and of its square."""
    mean = k.lerp(state.exp_avg, grad, 1.0 - beta1)
    square = k.addcmul(k.mul(state.exp_avg_sq, beta2), grad, grad, value=1.0 - beta2)
    return mean, square


adam = transformation(Adam)

WITHIN = {"lr": NOT_NEGATIVE, "betas": CORRECTED_DECAY, "eps": NOT_NEGATIVE}
MOMENTS = {"b1": s("betas", 0), "b2": s("betas", 1), "eps": s("eps")}
STATE = (
    (StateField, "exp_avg", ("ScaleByAdamState.mu",)),
    (squares, "exp_avg_sq", ("ScaleByAdamState.nu",)),
    (squares, "max_exp_avg_sq", ()),
)
AMSGRAD = different(
    "PyTorch takes the largest second moment before its bias correction, optax.amsgrad after it"
)
_ADAM = call("optax.adam", learning_rate=s("lr"), **MOMENTS)
_ADAMW = call("optax.adamw", learning_rate=s("lr"), **MOMENTS, weight_decay=s("weight_decay"))
_SAME = up_to_rounding(
    32,
    "PyTorch computes the bias corrections in float64 and divides the root by one",
    DECAY_OF_ONE,
)
_AMSGRAD = call("optax.amsgrad", learning_rate=s("lr"), **MOMENTS)

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.Adam"),
    port="optax_bridge.torch.adam",
    extra_arguments=BESIDE,
    exactness=exact_but(4),
    within=WITHIN,
    state=tuple(field(name, f"TorchAdamState.{name}", optax) for field, name, optax in STATE),
    optax=(
        *with_sign_and_decay(_AMSGRAD, AMSGRAD, {"amsgrad": True}),
        *with_sign_and_decay(_ADAM, _SAME, {"decoupled_weight_decay": False}),
        OptaxRecipe(_ADAMW, _SAME, {"maximize": False}),
        OptaxRecipe(call("optax.chain", SIGN, _ADAMW), _SAME),
    ),
    cases=(
        Case(),
        Case({"weight_decay": 0.1}),
        Case({"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.01, "maximize": True}),
        Case({"weight_decay": 0.1, "decoupled_weight_decay": True}),
        Case({"amsgrad": True}),
    ),
    notes=(
        "`weight_decay` is *coupled*: it is added to the gradient, so `optax.add_decayed_weights` "
        "comes before `optax.adam`; `optax.adamw` is `torch.optim.AdamW`. With `amsgrad` the two "
        "libraries take the maximum at different places."
    ),
    sources=("torch.optim.Adam", "Kingma and Ba 2014, arXiv:1412.6980"),
)
