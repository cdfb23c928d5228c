"""Weight normalisation (Salimans and Kingma 2016, arXiv:1602.07868): `flax.optim.WeightNorm`."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from legacy_optim.base import OptimizerDef, OptimizerState
from legacy_optim.structure import flattened_like
from legacy_optim.typing import (
    Array,
    Override,
    Params,
    Scalar,
    Updates,
)

_OWN = ("wn_decay", "wn_eps")  # all other overrides are for the wrapped optimizer


@struct.dataclass
class _WeightNormHyperParams:
    inner: Any
    wn_decay: Scalar
    wn_eps: Scalar


@struct.dataclass
class _WeightNormParamState:
    direction_state: Any
    scale_state: Any
    direction: jax.Array
    scale: jax.Array


class WeightNorm(OptimizerDef):
    """Optimizes each kernel as `scale * direction / |direction|`, over all axes but the last.

    Parameters with a single vector (rank 1, or all other axes of length 1) are optimized as they
    are.

    Args:
      wrapped_optimizer: the definition that moves directions and scales.
      wn_decay: multiple of the direction that joins its gradient.
      wn_eps: added to the squared norm.
    """

    def __init__(
        self, wrapped_optimizer: OptimizerDef, wn_decay: Scalar = 0, wn_eps: Scalar = 1e-8
    ):
        super().__init__(_WeightNormHyperParams(wrapped_optimizer.hyper_params, wn_decay, wn_eps))
        self.wrapped_optimizer = wrapped_optimizer

    def update_hyper_params(self, **hyper_param_overrides: Override) -> _WeightNormHyperParams:
        """The hyper-parameters of one step; those without `wn_` are the wrapped optimizer's."""
        values = {
            name: hyper_param_overrides.pop(name, getattr(self.hyper_params, name)) for name in _OWN
        }
        inner = self.wrapped_optimizer.update_hyper_params(**hyper_param_overrides)
        return self.hyper_params.replace(inner=inner, **values)

    def _override(self, hyper_params: Any, overrides: Mapping[str, Override]) -> Any:
        values = {name: overrides[name] for name in _OWN if name in overrides}
        inner = {name: value for name, value in overrides.items() if name not in _OWN}
        inner = self.wrapped_optimizer._override(hyper_params.inner, inner)
        return hyper_params.replace(inner=inner, **values)

    def init_state(self, params: Params) -> OptimizerState:
        eps = self.hyper_params.wn_eps

        def split(param: Array) -> tuple[Array, Array | tuple[()]]:
            if not _is_split(param):
                return param, ()
            norm = jnp.sqrt(_squared_norm(param) + eps)
            return param / norm, norm

        leaves, treedef = jax.tree.flatten(params)
        parts = [split(leaf) for leaf in leaves]
        directions = treedef.unflatten([direction for direction, _ in parts])
        scales = treedef.unflatten([scale for _, scale in parts])
        state = self.wrapped_optimizer.init_state({"direction": directions, "scale": scales})
        return _join(treedef, state, directions, scales)

    def apply_gradient(
        self, hyper_params: Any, params: Params, state: OptimizerState, grads: Updates
    ) -> tuple[Params, OptimizerState]:
        treedef = jax.tree.structure(params)
        flattened_like(treedef, grads, "grads")
        rows = flattened_like(treedef, state.param_states, "optimizer.state.param_states")
        directions, scales, direction_states, scale_states = (
            treedef.unflatten([getattr(row, name) for row in rows])
            for name in ("direction", "scale", "direction_state", "scale_state")
        )

        def merge(directions: Params, scales: Params) -> Params:
            parts = (treedef.flatten_up_to(directions), treedef.flatten_up_to(scales))
            return treedef.unflatten(
                [_merge(d, s, hyper_params.wn_eps) for d, s in zip(*parts, strict=True)]
            )

        def decay(direction: jax.Array, grad: jax.Array) -> jax.Array:
            return grad + hyper_params.wn_decay * direction if _is_split(direction) else grad

        _, pull_back = jax.vjp(merge, directions, scales)
        direction_grads, scale_grads = pull_back(grads)
        direction_grads = jax.tree.map(decay, directions, direction_grads)
        new, new_state = self.wrapped_optimizer.apply_gradient(
            hyper_params.inner,
            {"direction": directions, "scale": scales},
            OptimizerState(state.step, {"direction": direction_states, "scale": scale_states}),
            {"direction": direction_grads, "scale": scale_grads},
        )
        new_params = merge(new["direction"], new["scale"])
        return new_params, _join(treedef, new_state, new["direction"], new["scale"])


def _join(
    treedef: Any, state: OptimizerState, directions: Params, scales: Params
) -> OptimizerState:
    """The wrapped optimizer's state and the parts, as one state for each parameter."""
    columns = (state.param_states["direction"], state.param_states["scale"], directions, scales)
    rows = zip(*map(treedef.flatten_up_to, columns), strict=True)
    return OptimizerState(
        state.step, treedef.unflatten([_WeightNormParamState(*row) for row in rows])
    )


def _is_split(param: Array) -> bool:
    shape = jnp.shape(param)  # of a Python number, too
    return len(shape) > 0 and math.prod(shape) > shape[-1]


def _squared_norm(param: Array) -> jax.Array:
    return jnp.square(param).sum(tuple(range(param.ndim - 1)), keepdims=True)


def _merge(direction: jax.Array, scale: jax.Array, eps: Scalar) -> jax.Array:
    if not _is_split(direction):
        return direction
    return direction * (scale * lax.rsqrt(_squared_norm(direction) + eps))
