"""Relations of states that are known beforehand: the correspondence's state maps."""

import jax

import legacy_optim
from equivalence_tests.proof.reading.traced_sides import Inputs, MakeSide, Program, Relate
from optax_bridge.correspondence import UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.metadata.trees import PyTree
from optax_bridge.states import fill, rows_of


def correspondence_of(
    pair: tuple[MakeSide, MakeSide], inputs: Inputs, programs: tuple[Program, ...]
) -> Relate | None:
    """Returns the state map from a definition to a transformation of its recipes; else None."""
    numbers = {**inputs.numbers, **inputs.fixed}
    definition = pair[0](numbers)
    if not isinstance(definition, legacy_optim.OptimizerDef):
        return None
    if programs[1].kind != "GradientTransformation":
        return None
    tx = pair[1](numbers)
    try:
        template = jax.eval_shape(tx.init, inputs.params)
    except Exception:  # it needs what only the trace has
        return None
    for recipe in ("exact", "standalone"):
        try:
            transformation = build(choose_recipe(definition, recipe).call)
        except (UnsupportedSetting, ValueError, TypeError):
            continue
        shapes = jax.eval_shape(transformation.init, inputs.params)
        if jax.tree.structure(shapes) == jax.tree.structure(template):
            return lambda hp, state, shapes=shapes: _map_state(shapes, state)
    return None


def _map_state(template: PyTree, carry: PyTree) -> PyTree:
    params, state = carry
    return state.step, params, fill(template, rows_of(state, params), state.step)
