"""Relations of states that are known beforehand: the correspondence's state maps."""

import jax

import legacy_optim
from equivalence_tests.proof.reading.traced_sides import Inputs, MakeSide, Program, Relate
from optax_bridge.correspondence import UnsupportedSetting
from optax_bridge.legacy import from_legacy, to_optax
from optax_bridge.metadata.trees import PyTree


def correspondence_of(
    pair: tuple[MakeSide, MakeSide], given: Inputs, programs: tuple[Program, ...]
) -> Relate | None:
    """The state map from a legacy definition to a transformation of its recipes; else None."""
    numbers = {**given.numbers, **given.fixed}
    definition = pair[0](numbers)
    if not isinstance(definition, legacy_optim.OptimizerDef):
        return None
    if programs[1].kind != "GradientTransformation":
        return None
    tx = pair[1](numbers)
    try:
        wanted = jax.tree.structure(jax.eval_shape(tx.init, given.params))
    except Exception:  # it needs what only the trace has
        return None
    for exact in (True, False):
        try:
            own = from_legacy(definition, exact)
        except (UnsupportedSetting, ValueError, TypeError):
            continue
        if jax.tree.structure(jax.eval_shape(own.init, given.params)) == wanted:
            return lambda hp, state, exact=exact: _mapped(definition, state, exact)
    return None


def _mapped(definition: legacy_optim.OptimizerDef, state: PyTree, exact: bool) -> PyTree:
    params, state = state
    _, opt_state = to_optax(legacy_optim.Optimizer(definition, state, params), exact)
    return state.step, params, opt_state
