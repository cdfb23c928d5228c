"""Functions of which nothing is known, for proofs that hold for any."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from equivalence_tests.proof.reading.programs import UNKNOWN


def unknown_schedule(name: str) -> Callable[[Any], jax.Array]:
    """A schedule of which a proof knows nothing, so that it holds for every one.

        rate = unknown_schedule("rate")
        prove_equivalence(optax_bridge.adam(rate), optax.adam(rate), params)

    Args:
      name: of the schedule; schedules of one name are one.

    Returns:
      A function of the count. Where it is run, for a counterexample, it is 1 / (2 + count).
    """

    def schedule(count: Any) -> jax.Array:
        return 1 / (2 + jnp.asarray(count, jnp.result_type(float)))

    schedule.__name__ = f"{UNKNOWN}{name}"
    return jax.jit(schedule)
