"""Names for the trees that go in and out of optimizers, as Optax has them."""

from typing import Any

PyTree = Any  # a tree of arrays, in any containers
Leaf = Any  # an array, or its placeholder: a shape, a sharding, an array that a file holds
Params = Any  # a tree of arrays, boxed or not
Updates = Any  # gradients or updates: a tree like the parameters
OptState = Any  # what `tx.init(params)` returns
