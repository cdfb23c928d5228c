"""A side in float64, where rounding shrinks and another formula does not.

The side itself runs there. But a formula may be chosen by the dtype, `if params.dtype ==
jnp.bfloat16: ...`, and in float64 another one would run. Of a side whose program is another one
there, or rounds to float32 by name, it is not known what float64 makes of it.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.same_program import are_close, is_same_but_wide
from equivalence_tests.sides.side import Side
from optax_bridge.metadata.trees import Leaf, Params, PyTree


def wide(tree: PyTree) -> PyTree:
    """A tree with its floating-point leaves in float64."""

    def leaf(value: Leaf) -> Leaf:
        is_float = jnp.issubdtype(jnp.result_type(value), jnp.floating)
        return np.asarray(value, np.float64) if is_float else value

    return jax.tree.map(leaf, tree)


def is_same_in_float64(side: Side, params: Params, inputs_of_step: Sequence[PyTree]) -> bool:
    """True if the side is the same program in float64 as in its own dtypes."""

    def program(*inputs: PyTree) -> tuple[PyTree, core.ClosedJaxpr]:
        params, *of_step = jax.tree.map(jnp.asarray, inputs)
        state = side.init(params)
        return state, jax.make_jaxpr(side.step)(state, *of_step)

    with float64(False):
        state, narrow = program(params, *inputs_of_step)
    with float64():
        try:
            other_state, other = program(*wide((params, *inputs_of_step)))
        except (TypeError, ValueError):  # a loop whose carry is float32 by name, say
            return False
        return are_close(state, other_state) and is_same_but_wide(narrow, other)
