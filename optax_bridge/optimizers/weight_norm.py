"""Weight normalisation (Salimans and Kingma 2016), as `flax.optim.WeightNorm` does it."""

import math
import operator
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import legacy_optim
from optax_bridge.checks import check_transformation
from optax_bridge.correspondence.claim import by_measurement, rounding
from optax_bridge.correspondence.entry import (
    RATE,
    Case,
    Entry,
    LegacyClass,
    Row,
    StateField,
)
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE
from optax_bridge.exact.boxed import with_axis_metadata
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import ScalarOrSchedule, difference, resolve
from optax_bridge.exact.transformation import ExactTransformation, Parts, take_step
from optax_bridge.metadata.trees import Extra, HyperParams, Leaf, OptState, Params, PyTree, Updates


class WeightNormState(NamedTuple):
    """State of `weight_norm`.

    Attributes:
      count: steps taken, int32 scalar.
      inner: state of the wrapped transformation, over `{"direction": ..., "scale": ...}`.
      direction: tree like the parameters: raw directions; parameters of rank 1 or less, or with a
        single vector, are kept whole.
      scale: tree like the parameters: the norm of each output, over all axes but the last, kept as
        axes of length 1; the empty tuple where the parameter is kept whole.
    """

    count: jax.Array
    inner: OptState
    direction: Params
    scale: PyTree


@explained
def weight_norm(
    inner: optax.GradientTransformation,
    wn_decay: ScalarOrSchedule = 0,
    wn_eps: ScalarOrSchedule = 1e-8,
) -> ExactTransformation:
    """Optimizes every kernel as `scale * direction / |direction|`, over its last (output) axis.

        >>> params = {"kernel": jnp.ones((4, 2)), "bias": jnp.ones(2)}
        >>> state = weight_norm(optax_bridge.momentum(0.1)).init(params)
        >>> state.scale["kernel"]
        Array([[2., 2.]], dtype=float32)

    Args:
      inner: the transformation that moves directions and scales.
      wn_decay: multiple of the direction that is added to its gradient.
      wn_eps: added to the squared norm, inside the root.

    Returns:
      The transformation; bit for bit `flax.optim.WeightNorm` by the exact path. Hyper-parameters of
      `inner` can be given per call as well.
    """
    check_transformation(inner, "inner")
    split = _WeightNorm(inner, {"wn_decay": wn_decay, "wn_eps": wn_eps})
    tx = ExactTransformation(
        split.init, split.update, split.step, split.hyper_params, [inner], split.parts
    )
    return with_axis_metadata(tx)


@dataclass(frozen=True, eq=False)
class _WeightNorm:
    inner: optax.GradientTransformation
    hyper_params: HyperParams

    def init(self, params: Params) -> WeightNormState:
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params)):
            return jax.eval_shape(self.init, params)  # no values, so no norms
        count = jnp.zeros([], jnp.int32)
        hp = resolve(self.hyper_params, count, {})

        def split(param: jax.Array) -> tuple[Leaf, PyTree]:
            if not _is_split(param):
                # A copy: a loop that donates parameters and state cannot donate an array twice.
                return jnp.copy(param), ()
            norm = jnp.sqrt(_squared_norm(param) + hp.wn_eps)
            return param / norm, norm

        leaves, treedef = jax.tree.flatten(params)
        pairs = [split(leaf) for leaf in leaves]
        direction = treedef.unflatten([direction for direction, _ in pairs])
        scale = treedef.unflatten([scale for _, scale in pairs])
        inner_state = self.inner.init({"direction": direction, "scale": scale})
        return WeightNormState(count, inner_state, direction, scale)

    def parts(self, state: WeightNormState, params: Params) -> Parts:
        del params
        return [(self.inner, state.inner, {"direction": state.direction, "scale": state.scale})]

    def step(
        self, grads: Updates, state: WeightNormState, params: Params, **extra: Extra
    ) -> tuple[Params, WeightNormState]:
        hp = resolve(self.hyper_params, state.count, extra)
        treedef = jax.tree.structure(params)

        def merge(direction: Params, scale: PyTree) -> Params:
            pairs = zip(treedef.flatten_up_to(direction), treedef.flatten_up_to(scale), strict=True)
            return treedef.unflatten([_merge(d, s, hp.wn_eps) for d, s in pairs])

        _, pull_back = jax.vjp(merge, state.direction, state.scale)
        direction_grads, scale_grads = pull_back(grads)
        direction_grads = jax.tree.map(
            lambda d, g: g + hp.wn_decay * d if _is_split(d) else g,
            state.direction,
            direction_grads,
        )
        new, new_inner = take_step(
            self.inner,
            {"direction": direction_grads, "scale": scale_grads},
            state.inner,
            {"direction": state.direction, "scale": state.scale},
            **{name: value for name, value in extra.items() if name not in self.hyper_params},
        )
        new_state = WeightNormState(state.count + 1, new_inner, new["direction"], new["scale"])
        merged = merge(new["direction"], new["scale"])
        return jax.tree.map(_in_place_of, params, merged), new_state

    def update(
        self, grads: Updates, state: WeightNormState, params: Params | None = None, **extra: Extra
    ) -> tuple[Updates, WeightNormState]:
        if params is None:
            raise ValueError("weight_norm: update(grads, state, params) needs the parameters")
        new_params, new_state = self.step(grads, state, params, **extra)
        return difference(new_params, params, grads), new_state


def _is_split(param: jax.Array) -> bool:
    shape = jnp.shape(param)  # of a Python number, too
    return len(shape) > 0 and math.prod(shape) > shape[-1]


def _in_place_of(param: jax.Array, new: jax.Array) -> jax.Array:
    """The new value, in a program that takes the old one."""
    return jnp.where(False, jnp.asarray(param).astype(new.dtype), new)


def _squared_norm(param: jax.Array) -> jax.Array:
    return jnp.square(param).sum(tuple(range(param.ndim - 1)), keepdims=True)


def _merge(direction: jax.Array, scale: Leaf, eps: Leaf) -> jax.Array:
    if not _is_split(direction):
        return direction
    return direction * (scale * jax.lax.rsqrt(_squared_norm(direction) + eps))


class _Parts:
    """The optimizer within has a state for directions and one for scales."""

    example = "WeightNorm(Adam(learning_rate=1e-3))"

    def matches(self, kinds: Set[frozenset[str]], fields: frozenset[str]) -> bool:
        return kinds == {fields}

    def rows_within(self, rows: Sequence[Row]) -> list[list[Row]]:
        return [
            [
                (path, row.get("direction", param), row.get("direction_state"))
                for path, param, row in rows
                if row is not None
            ]
        ]

    def wrap(self, inner: Any) -> legacy_optim.WeightNorm:
        return legacy_optim.WeightNorm(inner)


_INNER_RATE = "its rate belongs to the optimizer inside it"

# WeightNorm wraps another optimizer; Optax has no equivalent.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.WeightNorm"),
    port="optax_bridge.weight_norm",
    renamed={"wrapped_optimizer": "inner"},
    within={"wn_eps": NOT_NEGATIVE},
    getters={"wrapped_optimizer": operator.attrgetter("wrapped_optimizer")},
    state=(
        StateField("direction", exact="WeightNormState.direction"),
        StateField("scale", exact="WeightNormState.scale"),
    ),
    optax=(),
    cases=(
        Case({"wrapped_optimizer": call("legacy_optim.Momentum", learning_rate=RATE)}),
        Case(
            {
                "wrapped_optimizer": call(
                    "legacy_optim.Adam", learning_rate=RATE, weight_decay=0.01
                ),
                "wn_decay": 0.1,
            }
        ),
        Case(
            {
                "wrapped_optimizer": call("legacy_optim.GradientDescent", learning_rate=RATE),
                "wn_eps": 1e-3,
            }
        ),
    ),
    notes=(
        "Optax has no weight normalisation of parameters. The state holds directions and scales, "
        "and the new parameters come from them, not from the old ones: any other change of the "
        "parameters is undone by the next step, as it always was."
    ),
    sources=("flax.optim.weight_norm", "Salimans and Kingma 2016, arXiv:1602.07868"),
    around=rounding(
        64,
        "XLA compiles the step together with the normalisation, and rounds otherwise",
        bfloat16=by_measurement(0),
        float16=by_measurement(3.5),
    ),
    dropped={
        "direction_state": "belongs to the wrapped optimizer, whose entry maps it",
        "scale_state": "belongs to the wrapped optimizer, whose entry maps it",
    },
    parts=_Parts(),
    excluded={
        "per-group": _INNER_RATE,
        "per-call": _INNER_RATE,
        "schedule": "the legacy side takes it per call",
    },
)
