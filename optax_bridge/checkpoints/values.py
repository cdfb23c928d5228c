# pyright: strict, reportUnknownMemberType=false
"""The numbers in a leaf: whether they are finite and in range, and a number of steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from optax_bridge.checkpoints.lazy import blocks_of
from optax_bridge.checkpoints.trees import dtype_of, is_array
from optax_bridge.correspondence.values import FINITE, Range
from optax_bridge.metadata.trees import Leaf

# The next step must be an int32 as well.
STEPS = "the number of steps, an integer from 0 to 2**31 - 2"


def is_number_of_steps(step: np.ndarray[Any, Any]) -> bool:
    """True if every number of an array may be one of steps taken."""
    return step.dtype.kind in "iu" and bool((step >= 0).all() and (step < 2**31 - 1).all())


def one_copy(array: Leaf) -> np.ndarray[Any, Any] | None:
    """The first of an array's copies along its first axis; None unless all have the same bits."""
    copies = np.asarray(array)
    first = copies[0].tobytes()
    return copies[0] if all(copy.tobytes() == first for copy in copies[1:]) else None


def fault_in(leaf: Leaf, within: Range = FINITE) -> str:
    """Returns the fault of the numbers of a leaf, such as "NaN"; "" if there is none."""
    dtype = dtype_of(leaf)
    if not jnp.issubdtype(dtype, np.inexact) or isinstance(leaf, Tracer):
        return ""
    if is_array(leaf) and not hasattr(leaf, "__array__"):  # a shape
        return ""
    if isinstance(leaf, jax.Array) and (
        not leaf.is_fully_addressable or leaf.devices() - {*jax.local_devices(backend="cpu")}
    ):
        return _fault(leaf, within)
    fault = ""
    for data in blocks_of(leaf):
        block = data.view(dtype)
        if dtype == jnp.bfloat16:  # whose NaN makes NumPy warn, and which takes it long
            block = (block.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        fault = _fault(block, within) or fault
        if fault == "NaN":
            break
    return fault


def _fault(numbers: Leaf, within: Range) -> str:
    library: Any = jnp if isinstance(numbers, jax.Array) else np
    if not bool(library.isfinite(numbers).all()):
        return "NaN" if bool(library.isnan(numbers).any()) else "infinity"
    return "negative numbers" if within.least == 0 and bool((numbers < 0).any()) else ""
