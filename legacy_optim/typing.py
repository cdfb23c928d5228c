"""Names for the arguments and results of optimizers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

Array = jax.Array | np.ndarray
Scalar = ArrayLike  # a number, or an array of rank 0, of JAX or NumPy

PyTree = Any  # a tree of arrays, in any containers
TreeDef = Any  # `jax.tree_util.PyTreeDef`, which to type checkers is a variable
Device = Any  # `jax.Device`, likewise
Params = Any  # the parameters, a tree of arrays
Updates = Any  # gradients, a tree like the parameters
HyperParams = Any  # a definition's own dataclass of hyper-parameters, or one for each group
ParamState = Any  # what a definition keeps for one parameter, its own dataclass
Override = object  # a hyper-parameter for one step: a number, a function, a setting
LossFunction = Callable[[Params], Any]  # to a loss, or to a loss and auxiliary output
StateDict = dict[str, Any]  # nested dicts with arrays, the layout of checkpoints
