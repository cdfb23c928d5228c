"""The two sides of a matrix case: legacy on the left, a TrainState on the right."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

import legacy_optim
from equivalence_tests.sides.side import Side, legacy, train_state
from equivalence_tests.suite.matrix import axes
from equivalence_tests.suite.matrix.cases import MatrixCase
from optax_bridge.correspondence import ENTRIES, Choice, choose_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.metadata.trees import Leaf, PyTree, Updates
from optax_bridge.optimizers.multi_optimizer import is_matrix, is_vector

# The second group's rate is twice the first one's.
_FACTORS = (1.0, 2.0)


def peak(case: MatrixCase) -> float:
    """The learning rate of a case, the largest one where it changes."""
    return ENTRIES[case.entry].cases[case.setting].learning_rate


def definition(case: MatrixCase, learning_rate: Leaf = None) -> legacy_optim.OptimizerDef:
    """The legacy definition of a case."""
    entry = ENTRIES[case.entry]
    about = entry.cases[case.setting]
    rate = about.learning_rate if case.rate == "constant" else learning_rate
    base = entry.definition(about, rate)
    if case.rate != "per-group":
        return base
    return legacy_optim.MultiOptimizer(
        (legacy_optim.ModelParamTraversal(is_matrix), base),
        (legacy_optim.ModelParamTraversal(is_vector), legacy_optim.Momentum()),
    )


def recipe(case: MatrixCase) -> Choice:
    """The recipe of the right side, and its claim.

    Raises:
      UnsupportedSetting: there is no such recipe.
    """
    kind = "exact" if case.recipe == "exact" else "standalone"
    return choose_recipe(definition(case, schedule(case)), kind)


def legacy_side(case: MatrixCase) -> Side:
    """The legacy optimizer."""
    base = definition(case)
    scheduled = schedule(case)

    def step(optimizer: PyTree, grads: Updates, rate: jax.Array | float) -> PyTree:
        if scheduled is not None:
            return optimizer.apply_gradient(grads, learning_rate=scheduled(optimizer.state.step))
        if case.rate == "per-call":
            return optimizer.apply_gradient(grads, learning_rate=rate)
        if case.rate == "per-group":
            groups = zip(base.hyper_params, _FACTORS, strict=True)
            rates = [hp.replace(learning_rate=factor * rate) for hp, factor in groups]
            return optimizer.apply_gradient(grads, hyper_params=rates)
        return optimizer.apply_gradient(grads)

    return replace(legacy(base), step=step)


def recipe_side(case: MatrixCase) -> Side:
    """A TrainState with the case's recipe."""
    built = build(recipe(case).call)
    side = train_state(case.recipe, definition(case), built)

    def step(state: PyTree, grads: Updates, rate: jax.Array | float) -> PyTree:
        if case.rate == "per-call":
            return state.apply_gradients(grads=grads, learning_rate=rate)
        if case.rate == "per-group":
            rates = [{"learning_rate": factor * rate} for factor in _FACTORS]
            return state.apply_gradients(grads=grads, hyper_params=rates)
        return state.apply_gradients(grads=grads)

    return replace(side, step=step)


def schedule(case: MatrixCase) -> Callable[[Leaf], jax.Array] | None:
    """The learning rate as a function of the step, where the case has it so, else None."""
    if case.rate != "schedule":
        return None
    table = axes.rates(peak(case))
    return lambda count: jax.lax.dynamic_index_in_dim(
        jnp.asarray(table), jnp.asarray(count), keepdims=False
    )
