"""Entries of PyTorch's optimizers, and the recipes and claims that they share."""

import functools
from collections.abc import Mapping
from typing import Any

from optax_bridge.correspondence.claim import Claim, differs, identical, rounding
from optax_bridge.correspondence.entry import Entry, LegacyClass, OptaxRecipe, StateField
from optax_bridge.correspondence.recipe import Call, call
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.values import FINITE, NOT_NEGATIVE
from optax_bridge.torch.definition import TorchOptimizer

# Arguments of PyTorch's constructors that have no place here, and what to know of each.
_BESIDE = {
    "params": "the parameters are given to `init`, not to the optimizer",
    "foreach": "PyTorch then works through lists of tensors: the same bits on CPUs in float32, but "
    "for rounding in NAdam, RAdam, Adafactor (1 ULP in 100 steps measured) and ASGD (45 ULP); in "
    "half precision rounding",
    "fused": "PyTorch then runs one kernel, which rounds less often: 0.2 ULP in 100 steps "
    "measured on CPUs",
    "capturable": "PyTorch then computes bias corrections in float32: rounding",
    "differentiable": "the same numbers: PyTorch then keeps a step for autograd; in JAX "
    "differentiate through `tx.update`",
}
# Fields of states that are means, sums or maxima of squares or magnitudes.
_SQUARES = frozenset([
    "sum", "square_avg", "acc_delta", "exp_avg_sq", "max_exp_avg_sq", "exp_inf",
    "row_var", "col_var", "variance",
])  # fmt: skip

_ORDER = (
    "PyTorch's operations in PyTorch's order, each rounded as its vectorized kernels for CPUs "
    "round it"
)
EXACT = identical(_ORDER)
_EXACT_BUT_ROOTS = rounding(
    4,
    f"{_ORDER}, but for its square root, which is 1 ULP off for 0.7 % of all numbers where Intel's "
    "library computes it",
)


def torch_entry(
    cls: type[TorchOptimizer],
    *papers: str,
    in_optax: Mapping[str, tuple[str, ...]] | None = None,
    exactness: Claim = _EXACT_BUT_ROOTS,
    **fields: Any,
) -> Entry:
    """The entry of a class; `in_optax` has the fields of its state that Optax has too."""
    state = tuple(
        StateField(
            name,
            f"Torch{cls.__name__}State.{name}",
            (in_optax or {}).get(name, ()),
            within=NOT_NEGATIVE if name in _SQUARES else FINITE,
        )
        for name in cls.FIELDS
    )
    return Entry(
        LegacyClass(f"optax_bridge.torch.{cls.__name__}"),
        f"optax_bridge.torch.{cls.__name__.lower()}",
        state,
        sources=(f"torch.optim.{cls.__name__}", *papers),
        exactness=exactness,
        extra_arguments=_BESIDE,
        **fields,
    )


_SIGN = call("optax.scale", -1.0)
DECAY = call("optax.add_decayed_weights", s("weight_decay"))
RATE = call("optax.scale_by_learning_rate", s("lr"))

_HALF = differs(
    "PyTorch rounds every operation on moments to the parameters' dtype, Optax others; the exact "
    "recipe rounds as PyTorch does"
)


DECAY_OF_ONE = differs(
    "a decay of 0.999 is 1 in bfloat16, in which Optax multiplies by it: the divisor never "
    "shrinks; PyTorch and the exact recipe multiply by 0.999, and round the product",
    over_reals=False,
)
EPS_OF_ZERO = differs(f"an epsilon of 1e-8 is 0 in float16; {_HALF.how}", over_reals=False)


# The claim that only rounding differs in float32; in half precision the two part.
up_to_rounding = functools.partial(rounding, bfloat16=_HALF, float16=_HALF)


def with_sign_and_decay(
    recipe: Call, claim: Claim, when: Mapping[str, Any] | None = None, *, decays: bool = True
) -> tuple[OptaxRecipe, ...]:
    """The variants of a recipe with and without `maximize` and, if coupled, `weight_decay`."""
    when = dict(when or {})
    minimize, maximize = {**when, "maximize": False}, {**when, "maximize": True}
    if not decays:
        return (
            OptaxRecipe(recipe, claim, minimize),
            OptaxRecipe(call("optax.chain", _SIGN, recipe), claim, maximize),
        )
    return (
        OptaxRecipe(recipe, claim, {**minimize, "weight_decay": 0}),
        OptaxRecipe(call("optax.chain", DECAY, recipe), claim, minimize),
        OptaxRecipe(call("optax.chain", _SIGN, recipe), claim, {**maximize, "weight_decay": 0}),
        OptaxRecipe(call("optax.chain", _SIGN, DECAY, recipe), claim, maximize),
    )
