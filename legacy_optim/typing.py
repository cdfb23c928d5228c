"""Names for the arguments and results of optimizers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

Array = jax.Array | np.ndarray
Scalar = ArrayLike  # a number, or an array of rank 0, of JAX or NumPy

PyTree = Any  # a tree of arrays, in any containers
Params = PyTree  # the parameters, a tree of arrays
Updates = PyTree  # gradients, a tree like the parameters
Override = object  # a hyper-parameter for one step: a number, a function, a setting
LossFunction = Callable[[Params], Any]  # to a loss, or to a loss and auxiliary output
StateDict = dict[str, Any]  # nested dicts with arrays, the layout of checkpoints
