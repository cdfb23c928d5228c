"""What integer dtypes can hold.

Of signed ones with 32 bits or more a proof assumes, and says so, that they do not overflow: a count
of steps does not get there. All others wrap round within a few hundred steps, or at 0, so what they
hold is the number only where it is sure to fit.
"""

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

NO_OVERFLOW = "whole numbers do not overflow"


def is_wide(dtype: DTypeLike) -> bool:
    """Whether it is a signed integer dtype with 32 bits or more."""
    return jnp.issubdtype(dtype, jnp.signedinteger) and jnp.iinfo(dtype).bits >= 32


def holds(source: DTypeLike, target: DTypeLike) -> bool:
    """Whether every number of an integer or boolean dtype is one of the other."""
    if source == np.bool_ or source == target:
        return True
    own, other = jnp.iinfo(source), jnp.iinfo(target)
    return other.min <= own.min and own.max <= other.max


def is_in_range(number: int, dtype: DTypeLike) -> bool:
    """Whether an integer dtype has a number."""
    info = jnp.iinfo(dtype)
    return info.min <= number <= info.max
