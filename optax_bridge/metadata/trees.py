"""Names for the trees that go in and out of optimizers, as Optax has them."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from jax.typing import ArrayLike

PyTree = Any  # a tree of arrays, in any containers
Leaf = Any  # an array, or its placeholder: a shape, a sharding, an array that a file holds
Params = PyTree  # a tree of arrays, boxed or not
Updates = PyTree  # gradients or updates: a tree like the parameters
OptState = PyTree  # returned by `tx.init(params)`

PathKey = DictKey | SequenceKey | GetAttrKey | FlattenedIndexKey  # one key of a path into a tree
AxisName = str | tuple[str, ...] | None  # the name of an axis, several names, or None
HyperParams = Mapping[str, Any]  # hyper-parameters by name: numbers, arrays, schedules, settings
Rate: TypeAlias = "ArrayLike | tuple[Rate, ...]"  # a tuple has one for each group
Extra = object  # an argument that is handed on: to a transformation, a model or a field of a state
