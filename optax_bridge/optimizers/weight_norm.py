"""Weight normalisation (Salimans and Kingma 2016), as `flax.optim.WeightNorm` does it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_bridge.exact.boxed import with_axis_metadata
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import ScalarOrSchedule, difference, resolve
from optax_bridge.exact.transformation import (
    ExactTransformation,
    Parts,
    check_transformation,
    take_step,
)
from optax_bridge.metadata.trees import Params, Updates


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
    inner: Any
    direction: Any
    scale: Any


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
    own = _WeightNorm(inner, {"wn_decay": wn_decay, "wn_eps": wn_eps})
    tx = ExactTransformation(own.init, own.update, own.step, own.hyper_params, [inner], own.parts)
    return with_axis_metadata(tx)


@dataclass(frozen=True, eq=False)
class _WeightNorm:
    inner: optax.GradientTransformation
    hyper_params: Mapping[str, Any]

    def init(self, params: Params) -> WeightNormState:
        count = jnp.zeros([], jnp.int32)
        hp = resolve(self.hyper_params, count, {})

        def split(param: jax.Array) -> tuple[Any, Any]:
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
        self, grads: Updates, state: WeightNormState, params: Params, **extra: Any
    ) -> tuple[Params, WeightNormState]:
        hp = resolve(self.hyper_params, state.count, extra)
        treedef = jax.tree.structure(params)

        def merge(direction: Any, scale: Any) -> Any:
            pairs = zip(treedef.flatten_up_to(direction), treedef.flatten_up_to(scale), strict=True)
            return treedef.unflatten([_merged(d, s, hp.wn_eps) for d, s in pairs])

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
        self, grads: Updates, state: WeightNormState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, WeightNormState]:
        if params is None:
            raise ValueError(
                "weight_norm's update needs the parameters: update(grads, state, params)"
            )
        new_params, new_state = self.step(grads, state, params, **extra)
        return difference(new_params, params, grads), new_state


def _is_split(param: jax.Array) -> bool:
    return param.ndim > 0 and param.size > param.shape[-1]


def _in_place_of(param: jax.Array, new: jax.Array) -> jax.Array:
    """The new value, in a program that takes the old one.

    Nothing else reads the parameters. A program without them has no buffer of theirs to write the
    new ones to: it would write them over the first part of the state that has the shape, that over
    the next, and copy what it still needs.
    """
    return jnp.where(False, jnp.asarray(param).astype(new.dtype), new)


def _squared_norm(param: jax.Array) -> jax.Array:
    return jnp.square(param).sum(tuple(range(param.ndim - 1)), keepdims=True)


def _merged(direction: jax.Array, scale: Any, eps: Any) -> jax.Array:
    if not _is_split(direction):
        return direction
    return direction * (scale * jax.lax.rsqrt(_squared_norm(direction) + eps))
