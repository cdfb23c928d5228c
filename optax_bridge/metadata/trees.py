"""Names for the trees that go in and out of optimizers, as Optax has them."""

from typing import Any

Params = Any  # a tree of arrays, boxed or not
Updates = Any  # gradients or updates: a tree like the parameters
OptState = Any  # what `tx.init(params)` returns
