"""Updates kept from being too large."""

import jax
import jax.numpy as jnp

from optax_bridge.metadata.trees import Params, Updates
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    add_summary,
    global_norm,
    map_updates,
    without_state,
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
    """

    def update(updates: Updates, params: Params) -> Updates:
        del params
        norm = global_norm(updates)
        add_summary("gradient_norm", norm)
        if max_norm is None and drop_norm is None:
            return updates
        factor = jnp.ones([]) if max_norm is None else jnp.minimum(1.0, max_norm / (norm + eps))
        keep = True if drop_norm is None else norm < drop_norm
        add_summary("gradient_scale", jnp.where(keep, factor, 0.0))

        def clip(u: jax.Array) -> jax.Array:
            # What is dropped may be infinite, and 0 times that is no number.
            return jnp.where(keep, u * jnp.asarray(factor, u.dtype), jnp.zeros_like(u))

        return map_updates(clip, updates)

    return without_state(update)


def clip_by_block_rms(
    threshold: float | None, *, summary_suffix: str | None = None
) -> PartitionedGradientTransformation:
    """Each update over `max(1, rms / threshold)`, per repeat of a repeated layer.

    Args:
      threshold: the largest root mean square, None for any.
      summary_suffix: adds the summary `<path>/<summary_suffix>`, the root mean square before.
    """

    def update(updates: Updates, params: Params) -> Updates:
        del params
        if summary_suffix is not None:
            norms = expand_vdicts(vectorized_tree_map(rms, updates))
            for path, norm in flatten_items(norms):
                add_summary(f"{path}/{summary_suffix}", norm)
        if threshold is None:
            return updates
        largest = threshold

        def clip(u: jax.Array) -> jax.Array:
            return u / jnp.maximum(1.0, rms(u) / largest).astype(u.dtype)

        return vectorized_tree_map(clip, updates)

    return without_state(update)
