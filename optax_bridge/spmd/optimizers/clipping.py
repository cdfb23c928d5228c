"""Updates kept from being too large."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_bridge.metadata.trees import OptState, Params, PyTree, Updates
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    add_summary,
    global_norm,
    map_updates,
)
from optax_bridge.spmd.optimizers.scaling import rms
from optax_bridge.spmd.trees import expand_vdicts, flatten_items, vectorized_tree_map


def clip_by_global_norm(
    max_norm: float | None = None, *, drop_norm: float | None = None, eps: float = 1e-8
) -> PartitionedGradientTransformation:
    """Updates times `min(1, max_norm / (norm + eps))`, and 0 where the norm reaches `drop_norm`.

    Adds the summary `gradient_norm`, and `gradient_scale` if either is set.

    Args:
      max_norm: the largest norm of all updates together, None for any.
      drop_norm: the norm from which on a step is dropped, None for none.
      eps: added to the norm.

    Returns:
      The transformation.
    """

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        del params
        norm = global_norm(updates)
        add_summary("gradient_norm", norm)
        if max_norm is None and drop_norm is None:
            return updates, state
        factor: Any = 1.0
        if max_norm is not None:
            factor = jnp.minimum(1.0, max_norm / (norm + eps))
        if drop_norm is not None:
            factor = jnp.where(norm < drop_norm, factor, 0.0)
        add_summary("gradient_scale", factor)
        keep = True if drop_norm is None else norm < drop_norm

        def clipped(u: jax.Array) -> jax.Array:
            # What is dropped may be infinite, and 0 times that is no number.
            return jnp.where(keep, u * jnp.asarray(factor, u.dtype), jnp.zeros_like(u))

        return map_updates(clipped, updates), state

    return PartitionedGradientTransformation(
        lambda params: optax.EmptyState(), update, lambda specs: optax.EmptyState()
    )


def clip_by_block_rms(
    threshold: float | None, *, summary_suffix: str | None = None
) -> PartitionedGradientTransformation:
    """Each update over `max(1, rms / threshold)`, per repeat of a repeated layer.

    Args:
      threshold: the largest root mean square, None for any.
      summary_suffix: adds the summary `<path>/<summary_suffix>`, the root mean square before.

    Returns:
      The transformation.
    """

    def clipped(u: jax.Array) -> jax.Array:
        return u / jnp.maximum(1.0, rms(u) / threshold).astype(u.dtype)

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        del params
        if summary_suffix is not None:
            norms = expand_vdicts(vectorized_tree_map(rms, updates))
            for path, norm in flatten_items(norms):
                add_summary(f"{path}/{summary_suffix}", norm)
        if threshold is None:
            return updates, state
        return vectorized_tree_map(clipped, updates), state

    return PartitionedGradientTransformation(
        lambda params: optax.EmptyState(), update, lambda specs: optax.EmptyState()
    )


def _compute_rms_norms(tree: PyTree) -> PyTree:
    """The root mean square of each array, per repeat of a repeated layer."""
    return vectorized_tree_map(rms, tree)


def _compute_covariance(x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean of the product of each two arrays, per repeat of a repeated layer."""
    return vectorized_tree_map(lambda a, b: jnp.mean(a * b), x, y)
