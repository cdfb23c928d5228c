"""A Keras optimizer as a side, on Keras' JAX backend. Keras is imported when one is used."""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from equivalence_tests.sides.errors import EquivalenceError
from equivalence_tests.sides.frameworks.foreign import (
    arguments_text,
    has_base,
    import_framework,
    make_instance,
)
from equivalence_tests.sides.side import Side
from optax_bridge.metadata.trees import Params, PyTree, Updates


def keras_side(optimizer: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Side:
    """A side that steps an optimizer of Keras 3 under its JAX backend.

        check_equivalence(keras_side(keras.optimizers.Adam, 1e-3), optax.adam(1e-3), params)

    Args:
      optimizer: a class of `keras.optimizers`, or a function that makes such an optimizer.
      *args: its arguments.
      **kwargs: its keyword arguments.

    Returns:
      The side. Its state is Keras' own, variable after variable.

    Raises:
      EquivalenceError: Keras is not installed or has another backend, or this makes no optimizer
        of its.
    """
    keras = import_keras("keras_side")
    name = getattr(optimizer, "__name__", type(optimizer).__name__)

    def make() -> Any:
        kind, expected = keras.optimizers.Optimizer, "keras.optimizers.Optimizer"
        return make_instance(
            lambda: optimizer(*args, **kwargs), kind, expected, f"keras_side: {name}"
        )

    make()  # wrong arguments are an error here, not in the middle of a run

    def init(params: Params) -> PyTree:
        leaves, treedef = jax.tree.flatten(params)
        usual = keras.config.floatx()
        if any(leaf.dtype == np.float64 for leaf in leaves):
            keras.config.set_floatx("float64")  # the rate too is a variable
        try:
            stepped = make()
            stepped.build([keras.Variable(leaf, dtype=str(leaf.dtype)) for leaf in leaves])
        finally:
            keras.config.set_floatx(usual)
        return stepped, leaves, [variable.value for variable in stepped.variables], treedef

    def step(state: PyTree, grads: Updates) -> PyTree:
        stepped, leaves, variables, treedef = state
        leaves, variables = stepped.stateless_apply(variables, jax.tree.leaves(grads), leaves)
        return stepped, leaves, variables, treedef

    def view(state: PyTree) -> dict[str, PyTree]:
        _, leaves, variables, treedef = state
        return {"params": treedef.unflatten(leaves), "state": list(variables)}

    source = f"keras.optimizers.{name}({arguments_text(args, kwargs)})"
    return Side(name, init, step, view, source=source, compiled=False)


def is_keras_optimizer(value: Any) -> bool:
    """True if this is a class of Keras optimizers; imports nothing."""
    return has_base(value, "keras.", "BaseOptimizer")


def import_keras(where: str) -> Any:
    """Keras, on JAX unless the user's settings or program have chosen.

    Raises:
      EquivalenceError: it is not installed, or has another backend; `where` begins the message.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = import_framework("keras", "Keras", where)
    if keras.config.backend() != "jax":
        raise EquivalenceError(
            f"{where}: expected Keras' JAX backend, found {keras.config.backend()}; set "
            "KERAS_BACKEND=jax before keras is imported"
        )
    return keras
