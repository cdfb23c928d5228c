"""Adam and its relatives, as `torch.optim` computes them."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from optax_bridge.correspondence.claim import different
from optax_bridge.correspondence.entry import Case
from optax_bridge.correspondence.recipe import Call, call
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.values import CORRECTED_DECAY, NOT_NEGATIVE
from optax_bridge.torch.arithmetic import Kernels, Tensor, root
from optax_bridge.torch.definition import (
    Fields,
    Result,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    decay_param,
    descent,
    transformation,
    with_decay,
)
from optax_bridge.torch.recipes import (
    DECAY,
    DECAY_OF_ONE,
    EPS_OF_ZERO,
    EXACT,
    RATE,
    torch_entry,
    up_to_rounding,
    with_sign_and_decay,
)


@dataclasses.dataclass(eq=False)
class _Settings(TorchOptimizer):
    """The settings of Adam and its kin."""

    lr: ScalarOrSchedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    maximize: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass(eq=False)
class Adam(_Settings):
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

    amsgrad: bool = False
    decoupled_weight_decay: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def init_fields(self, param: Tensor) -> Fields:
        zeros = TorchOptimizer.init_fields(self, param)
        return {**zeros, "max_exp_avg_sq": zeros["max_exp_avg_sq"] if self.amsgrad else None}

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        param, grad = with_decay(k, hp, param, grad)
        return _adam_step(k, hp, param, grad, state)


def _adam_step(k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
    """The step of Adam and AdamW once decay and sign are in."""
    beta1, beta2 = hp.betas
    mean, square = _moments(k, hp, grad, state)
    largest = jnp.maximum(state.max_exp_avg_sq, square) if hp.amsgrad else None
    scale = root(1.0 - beta2**hp.t)
    denominator = k.add(k.div(k.sqrt(square if largest is None else largest), scale), hp.eps)
    param = k.addcdiv(param, mean, denominator, value=-(hp.lr / (1.0 - beta1**hp.t)))
    return param, {"exp_avg": mean, "exp_avg_sq": square, "max_exp_avg_sq": largest}


def _moments(k: Kernels, hp: Values, grad: Tensor, state: Values) -> tuple[Tensor, Tensor]:
    """The new moving averages of the gradient and of its square."""
    beta1, beta2 = hp.betas
    mean = k.lerp(state.exp_avg, grad, 1.0 - beta1)
    square = k.addcmul(k.mul(state.exp_avg_sq, beta2), grad, grad, value=1.0 - beta2)
    return mean, square


adam = transformation(Adam)

_WITHIN = {"lr": NOT_NEGATIVE, "betas": CORRECTED_DECAY, "eps": NOT_NEGATIVE}
_MOMENTS = {"b1": s("betas", 0), "b2": s("betas", 1), "eps": s("eps")}
_IN_OPTAX = {"exp_avg": ("ScaleByAdamState.mu",), "exp_avg_sq": ("ScaleByAdamState.nu",)}
_LARGEST = different(
    "PyTorch takes the largest second moment before its bias correction, optax.amsgrad after it"
)
_ADAM = call("optax.adam", learning_rate=s("lr"), **_MOMENTS)
_ADAMW = call("optax.adamw", learning_rate=s("lr"), **_MOMENTS, weight_decay=s("weight_decay"))
_SAME = up_to_rounding(
    32,
    "PyTorch computes the bias corrections in float64 and divides the root by one",
    bfloat16=DECAY_OF_ONE,
)
_AMSGRAD = call("optax.amsgrad", learning_rate=s("lr"), **_MOMENTS)

_ADAM_ENTRY = torch_entry(
    Adam,
    "Kingma and Ba 2014, arXiv:1412.6980",
    within=_WITHIN,
    in_optax=_IN_OPTAX,
    optax=(
        *with_sign_and_decay(_AMSGRAD, _LARGEST, {"amsgrad": True}),
        *with_sign_and_decay(_ADAM, _SAME, {"decoupled_weight_decay": False}),
        *with_sign_and_decay(_ADAMW, _SAME, decays=False),
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
)


@dataclasses.dataclass(eq=False)
class AdamW(_Settings):
    """Adam with decoupled weight decay, which is scaled by the learning rate.

    Attributes:
      lr: step size.
      betas: decays of the first and of the second moment.
      eps: added to the root of the second moment.
      weight_decay: the parameter is first multiplied by `1 - lr * weight_decay`.
      amsgrad: divides by the largest second moment so far, before its bias correction.
      maximize: climbs instead.
    """

    weight_decay: float = 1e-2
    amsgrad: bool = False

    FIELDS: ClassVar = Adam.FIELDS
    init_fields = Adam.init_fields

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        grad = -grad if hp.maximize else grad
        return _adam_step(k, hp, decay_param(k, hp, param), grad, state)


adamw = transformation(AdamW)


def _decoupled_recipe(scale: str) -> Call:
    return call("optax.chain", call(scale, **_MOMENTS), DECAY, RATE)


_AMSGRADW = _decoupled_recipe("optax.scale_by_amsgrad")

_ADAMW_ENTRY = torch_entry(
    AdamW,
    "Loshchilov and Hutter 2017, arXiv:1711.05101",
    within=_WITHIN,
    in_optax=_IN_OPTAX,
    optax=(
        *with_sign_and_decay(_AMSGRADW, _LARGEST, {"amsgrad": True}, decays=False),
        *with_sign_and_decay(
            _ADAMW,
            up_to_rounding(
                32,
                "PyTorch decays the parameter first, and computes bias corrections in float64",
                bfloat16=DECAY_OF_ONE,
            ),
            decays=False,
        ),
    ),
    cases=(
        Case(),
        Case({"weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
        Case({"weight_decay": 0, "maximize": True}),
        Case({"amsgrad": True}),
    ),
    notes=(
        "PyTorch decays by 1e-2 unless told otherwise, `optax.adamw` by 1e-4. Parameters without "
        "decay, biases and norms as a rule, are groups of their own in PyTorch; in Optax "
        "`optax.adamw(mask=...)` or `optax_bridge.multi_optimizer`."
    ),
)


@dataclasses.dataclass(eq=False)
class Adamax(_Settings):
    """Adam with the largest decayed gradient in the place of the second moment.

    Attributes:
      lr: step size.
      betas: decays of the first moment and of the largest gradient.
      eps: added to the gradient's magnitude.
      weight_decay: multiple of the parameter that is added to the gradient.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 2e-3

    FIELDS: ClassVar = ("exp_avg", "exp_inf")

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        beta1, beta2 = hp.betas
        grad = descent(k, hp, param, grad)
        mean = k.lerp(state.exp_avg, grad, 1.0 - beta1)
        largest = jnp.maximum(k.mul(state.exp_inf, beta2), k.add(jnp.abs(grad), hp.eps))
        param = k.addcdiv(param, mean, largest, value=-(hp.lr / (1.0 - beta1**hp.t)))
        return param, {"exp_avg": mean, "exp_inf": largest}


adamax = transformation(Adamax)

_ADAMAX_ENTRY = torch_entry(
    Adamax,
    "Kingma and Ba 2014, arXiv:1412.6980",
    exactness=EXACT,
    within=_WITHIN,
    in_optax={"exp_avg": ("ScaleByAdamState.mu",), "exp_inf": ("ScaleByAdamState.nu",)},
    optax=with_sign_and_decay(
        call("optax.adamax", learning_rate=s("lr"), **_MOMENTS),
        up_to_rounding(
            32,
            "PyTorch computes the bias correction in float64",
            bfloat16=DECAY_OF_ONE,
            float16=EPS_OF_ZERO,
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
)


@dataclasses.dataclass(eq=False)
class NAdam(_Settings):
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
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False

    FIELDS: ClassVar = ("mu_product", "exp_avg", "exp_avg_sq")

    def init_fields(self, param: Tensor) -> Fields:
        return {**super().init_fields(param), "mu_product": jnp.ones((), jnp.float32)}

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        beta1, beta2 = hp.betas
        param, grad = with_decay(k, hp, param, grad)
        momentum, following = (
            beta1 * (1.0 - 0.5 * 0.96 ** (at * hp.momentum_decay)) for at in (hp.t, hp.t + 1.0)
        )
        product = Kernels("float32").mul(state.mu_product, momentum)
        mean, square = _moments(k, hp, grad, state)
        denominator = k.add(k.sqrt(k.div(square, 1.0 - beta2**hp.t)), hp.eps)
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
_NADAMW = call("optax.nadamw", learning_rate=s("lr"), **_MOMENTS, weight_decay=s("weight_decay"))

_NADAM_ENTRY = torch_entry(
    NAdam,
    "Dozat 2016",
    within={**_WITHIN, "momentum_decay": NOT_NEGATIVE},
    optax=(
        *with_sign_and_decay(
            call("optax.nadam", learning_rate=s("lr"), **_MOMENTS),
            _OTHER,
            {"decoupled_weight_decay": False},
        ),
        *with_sign_and_decay(_NADAMW, _OTHER, decays=False),
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
)


_LEAST_LENGTH = 5.0  # of the average, from which on the step is rectified


@dataclasses.dataclass(eq=False)
class RAdam(_Settings):
    """Adam whose first steps are not adaptive, and whose later ones are rectified.

    Attributes:
      lr: step size.
      betas: decays of the first and of the second moment.
      eps: added to the root of the second moment, before its bias correction.
      weight_decay: multiple of the parameter that is added to the gradient.
      decoupled_weight_decay: multiplies the parameter by `1 - lr * weight_decay` instead.
      maximize: climbs instead.
    """

    decoupled_weight_decay: bool = False

    FIELDS: ClassVar = ("exp_avg", "exp_avg_sq")

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        beta1, beta2 = hp.betas
        param, grad = with_decay(k, hp, param, grad)
        mean, square = _moments(k, hp, grad, state)
        correction = 1.0 - beta2**hp.t
        longest = 2.0 / (1.0 - beta2) - 1.0
        length = longest - 2.0 * hp.t * beta2**hp.t / correction
        rectified = root(
            (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        )
        plain = k.mul(k.div(mean, 1.0 - beta1**hp.t), hp.lr)
        inverse = k.div(jnp.ones_like(square), k.add(k.sqrt(square), hp.eps))
        adaptive = k.mul(k.mul(plain, k.mul(inverse, root(correction))), rectified)
        update = jnp.where(length > _LEAST_LENGTH, adaptive, plain)
        return k.add(param, update, alpha=-1.0), {"exp_avg": mean, "exp_avg_sq": square}


radam = transformation(RAdam)

_RADAM = call("optax.radam", learning_rate=s("lr"), **_MOMENTS)
_RADAMW = _decoupled_recipe("optax.scale_by_radam")
_RECTIFIED = up_to_rounding(64, "PyTorch computes the rectification in float64")
_EPS_BEFORE = different(
    "PyTorch adds eps before the bias correction of the second moment, Optax after it: eps is 13 "
    "times as large at the first rectified step",
    float16=EPS_OF_ZERO,
)

_RADAM_ENTRY = torch_entry(
    RAdam,
    "Liu et al. 2019, arXiv:1908.03265",
    within=_WITHIN,
    in_optax=_IN_OPTAX,
    optax=(
        *with_sign_and_decay(_RADAM, _RECTIFIED, {"eps": 0, "decoupled_weight_decay": False}),
        *with_sign_and_decay(_RADAMW, _RECTIFIED, {"eps": 0}, decays=False),
        *with_sign_and_decay(_RADAM, _EPS_BEFORE, {"decoupled_weight_decay": False}),
        *with_sign_and_decay(_RADAMW, _EPS_BEFORE, decays=False),
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
)

ENTRIES = (_ADAM_ENTRY, _ADAMW_ENTRY, _ADAMAX_ENTRY, _NADAM_ENTRY, _RADAM_ENTRY)
