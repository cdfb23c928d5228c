"""Adafactor and Muon, which treat matrices as such, as `torch.optim` computes them."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from optax_bridge.correspondence.claim import different, rounding
from optax_bridge.correspondence.entry import Case, OptaxRecipe, Unsupported
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE, OneOf, Range
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor, root
from optax_bridge.torch.definition import (
    Fields,
    Result,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    decay_param,
    transformation,
)
from optax_bridge.torch.recipes import torch_entry, with_sign_and_decay


@dataclasses.dataclass(eq=False)
class Adafactor(TorchOptimizer):
    """Adafactor, whose second moments are products of rows and columns of the last two axes.

    Attributes:
      lr: the largest relative step size: it is `min(lr, 1 / sqrt(t))`.
      beta2_decay: step `t` takes `t ** beta2_decay` of the new squares.
      eps: the least second moment's root, None for the dtype's; and the least scale of a parameter.
      d: an update's root mean square is at most that.
      weight_decay: the parameter is first multiplied by `1 - lr * weight_decay`.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = ("row_var", "col_var", "variance")

    def init_fields(self, param: Tensor) -> Fields:
        if param.ndim < 2:
            return {"row_var": None, "col_var": None, "variance": jnp.zeros_like(param)}
        rows, columns = (jnp.zeros_like(jnp.sum(param, axis, keepdims=True)) for axis in (-1, -2))
        return {"row_var": rows, "col_var": columns, "variance": None}

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        grad = -grad if hp.maximize else grad
        least, least_scale = hp.eps
        least = float(jnp.finfo(k.dtype).eps) if least is None else least
        weight = hp.t**hp.beta2_decay
        size = float(param.size) ** 0.5
        rate = _larger(least_scale, k.norm(param) / size) * jnp.minimum(hp.lr, 1.0 / root(hp.t))
        param = decay_param(k, hp, param)
        if state.variance is None:
            rows, columns = (
                k.lerp(old, _mean_square(k, grad, axis), weight)
                for old, axis in ((state.row_var, -1), (state.col_var, -2))
            )
            # Where both are fused into what follows, XLA of JAX 0.12 does not come to an end.
            rows, columns = jax.lax.optimization_barrier((rows, columns))
            fields = {"row_var": rows, "col_var": columns, "variance": None}
            mean = jnp.maximum(k.mean(rows, -2), k.number(least))
            variance = k.div(k.mul(rows, columns), mean)
        else:
            variance = k.lerp(state.variance, k.mul(grad, grad), weight)
            fields = {"row_var": None, "col_var": None, "variance": variance}
        variance = jnp.maximum(variance, k.number(least * least))
        update = k.mul(k.div(jnp.ones_like(grad), k.sqrt(variance)), grad)
        excess = _larger(1.0, k.norm(update) / (size * hp.d))
        return k.add(param, update, alpha=-rate / excess), fields


def _larger(number: Number, other: Number) -> Number:
    """The larger of two numbers as Python has it: the first one where the other is NaN."""
    return jnp.where(other > number, other, number)


def _mean_square(k: Kernels, grad: Tensor, axis: int) -> Tensor:
    norm = k.norm(grad, axis)
    return k.div(k.mul(norm, norm), float(grad.shape[axis]))


adafactor = transformation(Adafactor)

_ADAFACTOR = torch_entry(
    Adafactor,
    "Shazeer and Stern 2018, arXiv:1804.04235",
    exactness=rounding(
        8,
        "PyTorch's operations in PyTorch's order; its norms and means add in an order of their "
        "own, which is rounding",
    ),
    within={
        "lr": NOT_NEGATIVE,
        "beta2_decay": Range(most=0.0),
        "eps": NOT_NEGATIVE,
        "d": Range(least=1.0),
        "weight_decay": NOT_NEGATIVE,
    },
    optax=with_sign_and_decay(
        call(
            "optax.adafactor",
            learning_rate=s("lr"),
            min_dim_size_to_factor=1,
            clipping_threshold=s("d"),
        ),
        different(
            "PyTorch's rate is never above 1 / sqrt(step), its parameter scale is added before the "
            "decay, and it bounds second moments where Optax adds to them"
        ),
    ),
    cases=(
        Case(),
        Case({"beta2_decay": -0.5, "eps": (1e-3, 0.1), "d": 2.0, "weight_decay": 0.1}),
        Case({"maximize": True}),
    ),
    notes=(
        "PyTorch factors the last two axes of every parameter that has two, Optax the two largest "
        "ones if they are at least 128 long, and flax.optim did as Optax does."
    ),
)


_HALF = Kernels("bfloat16")


@dataclasses.dataclass(eq=False)
class Muon(TorchOptimizer):
    """Momentum whose matrices are made nearly orthogonal, by a Newton-Schulz iteration in bfloat16.

    Attributes:
      lr: step size.
      weight_decay: the parameter is first multiplied by `1 - lr * weight_decay`.
      momentum: decay of the gradient's average.
      nesterov: looks one step ahead.
      ns_coefficients: of the iteration's polynomial.
      eps: the least norm that a matrix is divided by.
      ns_steps: of the iteration.
      adjust_lr_fn: how the rate depends on the shape: "original" (None) or "match_rms_adamw".
    """

    lr: ScalarOrSchedule = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None

    FIELDS: ClassVar = ("momentum_buffer",)

    def init_fields(self, param: Tensor) -> Fields:
        if jnp.ndim(param) != 2:
            raise ValueError(
                f"Muon: expected parameters with two axes, found shape {jnp.shape(param)}. Give "
                "the others to another optimizer: optax_bridge.multi_optimizer, one group for each"
            )
        return {"momentum_buffer": jnp.zeros_like(param)}

    def step(self, k: Kernels, hp: Values, param: Tensor, grad: Tensor, state: Values) -> Result:
        buffer = k.lerp(state.momentum_buffer, grad, 1.0 - hp.momentum)
        update = k.lerp(grad, buffer, hp.momentum) if hp.nesterov else buffer
        update = _orthogonal(update, hp.ns_coefficients, int(self.ns_steps), hp.eps)
        rows, columns = param.shape
        ratio = math.sqrt(max(1.0, rows / columns))
        if self.adjust_lr_fn == "match_rms_adamw":
            ratio = 0.2 * math.sqrt(max(rows, columns))
        param = k.add(decay_param(k, hp, param), update, alpha=-(hp.lr * ratio))
        return param, {"momentum_buffer": buffer}


def _orthogonal(
    matrix: Tensor, coefficients: tuple[Number, Number, Number], steps: int, eps: Number
) -> Tensor:
    """The matrix with its singular values brought near 1, each product rounded to bfloat16."""
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = _HALF.nearest(matrix.T if is_tall else matrix)
    x = _HALF.div(x, jnp.maximum(_HALF.norm(x), _HALF.number(eps)))
    for _ in range(steps):
        gram = _HALF.nearest(_product(x, x.T))
        polynomial = _HALF.nearest(b * gram + c * _product(gram, gram))
        x = _HALF.nearest(a * x + _product(polynomial, x))
    return x.T if is_tall else x


def _product(x: Tensor, y: Tensor) -> Tensor:
    """A product of matrices in bfloat16, added up in float32."""
    narrow = (_HALF.narrow(each) for each in (x, y))
    return jnp.matmul(*narrow, preferred_element_type=jnp.float32).astype(jnp.float64)


muon = transformation(Muon)

_MUON = torch_entry(
    Muon,
    "Jordan et al. 2024",
    exactness=rounding(
        128,
        "PyTorch's operations in PyTorch's order; its products of matrices in bfloat16 add in an "
        "order of their own, which is rounding in bfloat16: as much as measured at lr=1e-3 up to "
        "256 x 64, and in proportion to the rate",
    ),
    within={
        **dict.fromkeys(("lr", "weight_decay", "momentum", "eps"), NOT_NEGATIVE),
        "adjust_lr_fn": OneOf(("original", "match_rms_adamw")),
    },
    optax=(
        OptaxRecipe(
            call(
                "optax.contrib.muon",
                learning_rate=s("lr"),
                ns_coeffs=s("ns_coefficients"),
                ns_steps=s("ns_steps"),
                beta=s("momentum"),
                eps=s("eps"),
                weight_decay=s("weight_decay"),
                nesterov=s("nesterov"),
            ),
            different(
                "PyTorch iterates in bfloat16, Optax in the parameters' dtype; Optax corrects the "
                "momentum's bias, and adds eps to the norm that PyTorch bounds by it"
            ),
        ),
    ),
    unsupported=(
        Unsupported(
            "adjust_lr_fn",
            None,
            "optax.contrib.muon scales by the shape as None does; consistent_rms=0.2 is "
            '"match_rms_adamw", but it is another optimizer all the same.',
        ),
    ),
    excluded={"vectors": "PyTorch's Muon refuses parameters that do not have two axes"},
    cases=(
        Case(),
        Case({"weight_decay": 0.0, "momentum": 0.5, "nesterov": False, "eps": 1e-3}),
        Case(
            {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3, "ns_coefficients": (3.0, -4.0, 2.0)}
        ),
    ),
    notes=(
        "Parameters must have two axes; give all others to another optimizer. `optax.contrib.muon` "
        "gives them to AdamW by itself. Whether a difference is rounding, `compare` and "
        "`check_equivalence` see in float64; Muon rounds to bfloat16 there too, and may be called "
        "different."
    ),
)

ENTRIES = (_ADAFACTOR, _MUON)
