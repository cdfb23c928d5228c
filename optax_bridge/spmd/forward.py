"""A model's forward pass with checks that name the model, before JAX or an unpacking complains."""

import traceback
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.layer import BaseModel
from optax_bridge.spmd.module import OutputCollection, functional


def forward_pass(
    model: BaseModel,
    prng_key: jax.Array,
    params: Params,
    batch: PyTree,
    *,
    is_training: bool,
    method: str = "forward",
) -> tuple[jax.Array, PyTree, OutputCollection]:
    """Runs a model.

    Args:
      model: the model.
      prng_key: for its random numbers.
      params: its parameters.
      batch: the batch.
      is_training: whether it is trained.
      method: its method.

    Returns:
      Loss, aux and what it added to its context.

    Raises:
      ValueError: it asks for what the batch does not have, or returns something else than a scalar
        loss and aux.
    """
    where = f"{model.path()}.{method}"
    try:
        outputs, collection = functional(
            model, prng_key, params, {"input_batch": batch}, method=method, is_training=is_training
        )
    except KeyError as error:
        key = error.args[0] if error.args else None
        if not isinstance(batch, Mapping) or key in batch:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"{where}: there is no {key!r} ({Path(place.filename).name}, line {place.lineno}: "
            f"{place.line}). The batch has {', '.join(map(repr, batch))}."
        ) from error
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise ValueError(
            f"{where}: expected (loss, aux), a scalar and a dict, found {_describe(outputs)}. "
            "Return `loss, {}` if there is nothing but the loss."
        )
    loss, aux = outputs
    dtype = getattr(loss, "dtype", None)
    if jnp.shape(loss) != () or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"{where}: expected a scalar loss of a float dtype, found {_describe(loss)}. Take the "
            "mean over the batch, jnp.mean(losses) say."
        )
    return loss, aux, collection


def _describe(value: PyTree) -> str:
    """Returns dtype and shape of an array, the type of anything else."""
    if isinstance(value, jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return f"{type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")
