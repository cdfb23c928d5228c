"""Clipping of gradients, as `torch.nn.utils` does it."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_bridge.metadata.trees import OptState, Params, Updates

_ADDED = 1e-6  # to the norm, by PyTorch


def clip_grad_norm(max_norm: float, norm_type: float = 2.0) -> optax.GradientTransformation:
    """Clips gradients as `torch.nn.utils.clip_grad_norm_` does; put it first in a chain.

    PyTorch multiplies every gradient by `max_norm / (norm + 1e-6)`, at most 1;
    `optax.clip_by_global_norm` leaves the 1e-6 out, so that clipped gradients are longer by
    `1e-6 / norm`. `clip_grad_value_` is `optax.clip`.

        >>> tx = clip_grad_norm(1.0)
        >>> grads, _ = tx.update({"w": jnp.array([3.0, 4.0])}, tx.init({}))
        >>> [round(number, 4) for number in grads["w"].tolist()]
        [0.6, 0.8]

    Args:
      max_norm: the largest norm of all gradients together.
      norm_type: the power of the norm; `math.inf` for the largest magnitude.

    Returns:
      The transformation, without a state.
    """

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        del params
        norms = [_norm(leaf, norm_type) for leaf in jax.tree.leaves(updates)]
        if not norms:
            return updates, state
        factor = jnp.minimum(max_norm / (_norm(jnp.stack(norms), norm_type) + _ADDED), 1.0)
        return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _norm(array: Any, order: float) -> jax.Array:
    flat = jnp.ravel(jnp.asarray(array, jnp.float32))
    return jnp.linalg.norm(flat, ord=order) if flat.size else jnp.zeros(())
