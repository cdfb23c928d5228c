"""Linen's recurrent cells as flax 0.5.3 had them, around today's: the same parameters and numbers.

Then a cell had no `features`: it took them from the carry; and `initialize_carry(rng, batch_dims,
size)` was called on the class. Both are understood here, and today's form too. Legacy module:
`flax.linen.recurrent`.
"""

from collections.abc import Callable

import jax
from flax import linen as nn
from flax.linen import initializers, recurrent

from legacy_optim.typing import PyTree

Carry = PyTree  # an array, or a pair of arrays
Init = Callable[..., jax.Array]
_zeros = initializers.zeros


def _carry_of_two(
    rng: jax.Array, batch_dims: tuple[int, ...], size: int, init_fn: Init = _zeros
) -> tuple[jax.Array, jax.Array]:
    """The carry of an LSTM: two arrays of shape `(*batch_dims, size)`."""
    first, second = jax.random.split(rng)
    shape = (*batch_dims, size)
    return init_fn(first, shape), init_fn(second, shape)


def _carry_of_one(
    rng: jax.Array, batch_dims: tuple[int, ...], size: int, init_fn: Init = _zeros
) -> jax.Array:
    """The carry of a GRU: an array of shape `(*batch_dims, size)`."""
    return init_fn(rng, (*batch_dims, size))


class _InitializeCarry:
    """`initialize_carry` of a class, as then, and of a cell, in either form."""

    def __init__(self, then: Callable[..., Carry], today: Callable[..., Carry]):
        self._then, self._today = then, today

    def __get__(self, cell: nn.RNNCellBase | None, owner: type) -> Callable[..., Carry]:
        del owner
        if cell is None:
            return self._then

        def initialize_carry(rng: jax.Array, *shape: PyTree, **kwargs: PyTree) -> Carry:
            if len(shape) + len(kwargs) > 1:  # batch_dims and size
                return self._then(rng, *shape, **kwargs)
            return self._today(cell, rng, *shape, **kwargs)

        return initialize_carry


class LSTMCell(recurrent.LSTMCell):
    """`flax.linen.LSTMCell`, whose `features` may be left to the carry."""

    features: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]


class OptimizedLSTMCell(recurrent.OptimizedLSTMCell):
    """`flax.linen.OptimizedLSTMCell`, whose `features` may be left to the carry."""

    features: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]


class GRUCell(recurrent.GRUCell):
    """`flax.linen.GRUCell`, whose `features` may be left to the carry."""

    features: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]


# Set afterwards: Linen would wrap it as a method.
for _cell, _then in (
    (LSTMCell, _carry_of_two),
    (OptimizedLSTMCell, _carry_of_two),
    (GRUCell, _carry_of_one),
):
    _today = getattr(recurrent, _cell.__name__).initialize_carry
    _cell.initialize_carry = _InitializeCarry(_then, _today)  # type: ignore[assignment]
