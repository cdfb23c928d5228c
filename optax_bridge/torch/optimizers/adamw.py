"""AdamW, as `torch.optim.AdamW` computes it."""

import dataclasses
from typing import ClassVar

from optax_bridge.correspondence.entry import Case, Entry, LegacyClass
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.torch.arithmetic import Kernels, Number, Tensor
from optax_bridge.torch.definition import (
    Fields,
    ScalarOrSchedule,
    TorchOptimizer,
    Values,
    decay_param,
    transformation,
)
from optax_bridge.torch.optimizers.adam import AMSGRAD, MOMENTS, STATE, WITHIN, Adam, adam_step
from optax_bridge.torch.recipes import (
    BESIDE,
    DECAY_OF_ONE,
    exact_but,
    up_to_rounding,
    with_sign_and_decay,
)


@dataclasses.dataclass(eq=False)
class AdamW(TorchOptimizer):
    """Adam with decoupled weight decay, which is scaled by the learning rate.

    Attributes:
      lr: step size.
      betas: decays of the first and of the second moment.
      eps: added to the root of the second moment.
      weight_decay: the parameter is first multiplied by `1 - lr * weight_decay`.
      amsgrad: divides by the largest second moment so far, before its bias correction.
      maximize: climbs instead.
    """

    lr: ScalarOrSchedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    FIELDS: ClassVar = Adam.FIELDS
    init_fields = Adam.init_fields

    def step(
        self, k: Kernels, t: Number, hp: Values, param: Tensor, grad: Tensor, state: Values
    ) -> tuple[Tensor, Fields]:
        grad = -grad if hp.maximize else grad
        return adam_step(k, t, hp, decay_param(k, hp, param), grad, state)


adamw = transformation(AdamW)

_ADAMW = call("optax.adamw", learning_rate=s("lr"), **MOMENTS, weight_decay=s("weight_decay"))
_AMSGRAD = call(
    "optax.chain",
    call("optax.scale_by_amsgrad", **MOMENTS),
    call("optax.add_decayed_weights", s("weight_decay")),
    call("optax.scale_by_learning_rate", s("lr")),
)

ENTRY = Entry(
    legacy=LegacyClass("optax_bridge.torch.AdamW"),
    port="optax_bridge.torch.adamw",
    extra_arguments=BESIDE,
    exactness=exact_but(4),
    within=WITHIN,
    state=tuple(field(name, f"TorchAdamWState.{name}", optax) for field, name, optax in STATE),
    optax=(
        *with_sign_and_decay(_AMSGRAD, AMSGRAD, {"amsgrad": True}, decays=False),
        *with_sign_and_decay(
            _ADAMW,
            up_to_rounding(
                32,
                "PyTorch decays the parameter first, and computes bias corrections in float64",
                DECAY_OF_ONE,
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
    sources=("torch.optim.AdamW", "Loshchilov and Hutter 2017, arXiv:1711.05101"),
)
