"""Kinds of dtypes, and the numbers that they hold.

Of signed integers with 32 bits or more a proof assumes, and says so, that they do not overflow: a
count of steps does not get there. All others wrap round within a few hundred steps, or at 0, so
what they hold is the number only where it is sure to fit.
"""

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

Json = dict[str, Any]  # plain data, as JSON holds it
DType = np.dtype  # or that of typed random keys, which NumPy does not know
NO_OVERFLOW = "whole numbers do not overflow"
# What overflows at fewer steps than this is not assumed away: a product of two counts, say.
FEWEST_STEPS = 2**24

# A proof asks these some thousand times, of a dozen dtypes.
is_subdtype = functools.lru_cache(256)(jnp.issubdtype)
dtype_name = functools.lru_cache(256)(str)


class Aval(Protocol):
    """The shape and the dtype of an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        ...

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""
        ...


def is_float(dtype: DTypeLike) -> bool:
    """True if elements are rounded real numbers."""
    return is_subdtype(dtype, jnp.floating)


def is_integer(dtype: DTypeLike) -> bool:
    """True if elements are integers, which booleans are not."""
    return is_subdtype(dtype, jnp.integer)


def is_complex(dtype: DTypeLike) -> bool:
    """True if elements are complex numbers."""
    return is_subdtype(dtype, jnp.complexfloating)


def is_key(dtype: DTypeLike) -> bool:
    """True if elements are typed random keys, which are no numbers."""
    return is_subdtype(dtype, jax.dtypes.prng_key)


def is_discrete(dtype: DTypeLike) -> bool:
    """True if elements are neither real nor complex numbers: integers or booleans, for example."""
    return not is_subdtype(dtype, jnp.inexact)


def is_unsigned(dtype: DTypeLike) -> bool:
    """True if elements are integers of 0 or more."""
    return is_subdtype(dtype, jnp.unsignedinteger)


def is_wide(dtype: DTypeLike) -> bool:
    """True if it is a signed integer dtype with 32 bits or more."""
    return is_subdtype(dtype, jnp.signedinteger) and jnp.iinfo(dtype).bits >= 32


def represents_integers(source: DTypeLike, target: DTypeLike) -> bool:
    """True if every number of an integer or boolean dtype is one of the other."""
    if source == np.bool_ or source == target:
        return True
    source_info, target_info = jnp.iinfo(source), jnp.iinfo(target)
    return target_info.min <= source_info.min and source_info.max <= target_info.max


def is_in_range(number: int, dtype: DTypeLike) -> bool:
    """True if an integer dtype has a number."""
    info = jnp.iinfo(dtype)
    return info.min <= number <= info.max


def wrap_integer(number: int, dtype: DTypeLike) -> int:
    """Returns a whole number wrapped around to an integer dtype."""
    info = jnp.iinfo(dtype)
    return (number - int(info.min)) % 2**info.bits + int(info.min)


def represents_values(narrow: DTypeLike, wide: DTypeLike) -> bool:
    """True if every value of a floating-point or boolean dtype is one of the other."""
    if narrow == np.bool_:
        return is_subdtype(wide, jnp.number)
    if not (is_float(narrow) and is_float(wide)):
        return False
    narrow_info, wide_info = jnp.finfo(narrow), jnp.finfo(wide)
    return (
        wide_info.bits > narrow_info.bits
        and wide_info.nmant >= narrow_info.nmant
        and wide_info.maxexp >= narrow_info.maxexp
        and wide_info.minexp <= narrow_info.minexp
    )
