"""Reads the learning rate of a training state from its optimizer or its hyper-parameters."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath

from optax_bridge._hyper_params import RATES
from optax_bridge.exact.boxed import boxes_handled
from optax_bridge.exact.transformation import (
    ExactTransformation,
    ExactUpdate,
    noted_update,
    update_with_arguments,
)
from optax_bridge.metadata.axis_metadata import has_boxes
from optax_bridge.metadata.trees import HyperParams, Leaf, OptState, Params, Rate, Updates

# Wrappers that call the transformation within at every step.
_TRANSPARENT = ("InjectStatefulHyperparamsState", "MaskedState", "PartitionState")


def learning_rate(
    tx: optax.GradientTransformation, opt_state: OptState, step: int | jax.Array, params: Params
) -> Rate:
    """The learning rate of the next step."""
    if isinstance(tx, ExactTransformation):
        return _of_ours(tx, opt_state, params, step)
    in_state = optax.tree.get_all_with_path(opt_state, "learning_rate")
    rates = [(path, value) for path, value in in_state if not isinstance(value, tuple)]
    if len(rates) == 1:
        # A schedule has its count there, and the rate is that of the last step.
        if len(in_state) > 1:
            return _rate_of_schedule(tx, opt_state, params, rates[0][0]) * _plateau(opt_state)
        return rates[0][1] * _plateau(opt_state)
    ours = [] if rates else _in_last_place(tx, opt_state, params)
    exact = [_rate_in(record.hyper_params, record) for record, _, _ in ours]
    if exact and all(rate is exact[0] or _are_equal(rate, exact[0]) for rate in exact):
        return _of_ours(ExactTransformation(tx.init, ours[0][0]), *ours[0][1:], step)
    raise _not_known(f"{len(rates)} in the state and {len(ours)} of optax_bridge's optimizers")


def _rate_in(hyper_params: HyperParams, default: object = None) -> Any:
    """The learning rate among hyper-parameters, by the name of either library."""
    return next((hyper_params[name] for name in RATES if name in hyper_params), default)


def _of_ours(
    tx: ExactTransformation, opt_state: OptState, params: Params, step: int | jax.Array
) -> Rate:
    if not any(name in tx.hyper_params for name in RATES) and tx.parts is not None:
        rates = [
            learning_rate(part, part_state, step, p)
            for part, part_state, p in tx.parts(opt_state, params)
        ]
        return tuple(rates) if "hyper_params" in tx.hyper_params else rates[0]
    rate = _rate_in(tx.hyper_params)
    if rate is None:
        raise ValueError(
            "the learning rate is given per call, apply_gradients(learning_rate=...), and the "
            "state does not keep it. Give the constructor a number or a schedule to read it here."
        )
    return cast(Rate, rate(getattr(opt_state, "count", step)) if callable(rate) else rate)


def _in_last_place(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params
) -> list[tuple[ExactUpdate, OptState, Params]]:
    """This project's transformations within another that passes their updates on unchanged."""
    tx = boxes_handled(tx) if has_boxes(params) else tx
    ours: list[tuple[ExactUpdate, OptState, Params]] = []

    def update(grads: Updates) -> None:
        updates, _, calls = noted_update(tx, grads, opt_state, params)
        last = set(map(id, jax.tree.leaves(updates)))
        for call in calls:
            if last.issuperset(map(id, jax.tree.leaves(call.updates))):
                ours.append((call.record, call.state, call.params))

    try:
        jax.eval_shape(update, params)
    except Exception as error:  # a part wants arguments that only a step has, for example
        why = str(error).partition("\n")[0]
        raise _not_known(f"a transformation that cannot be tried: {why}") from error
    return ours


def _rate_of_schedule(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params, path: KeyPath
) -> Rate:
    """The rate that a schedule of `optax.inject_hyperparams` gives the next step."""
    around = {key.tuple_name for key in path if hasattr(key, "tuple_name")}
    if around - {*_TRANSPARENT}:
        raise _not_known(f"a schedule within {', '.join(sorted(around - {*_TRANSPARENT}))}")
    return _rate_after_a_step(boxes_handled(tx) if has_boxes(params) else tx, opt_state, params)


@functools.partial(jax.jit, static_argnums=0)  # all that the rate does not need is dropped
def _rate_after_a_step(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params
) -> Rate:
    grads = jax.tree.map(jnp.zeros_like, params)
    # The rate depends on the steps counted, not on the loss, which reduce_on_plateau wants to have.
    _, state = update_with_arguments(tx)(grads, opt_state, params, value=0.0)
    rates = optax.tree.get_all_with_path(state, "learning_rate")
    return next(value for _, value in rates if not isinstance(value, tuple))


def _plateau(opt_state: OptState) -> Leaf:
    """The factor of reduce_on_plateau, 1 without it."""
    factors = optax.tree.get_all_with_path(opt_state, "scale", filtering=_in_plateau)
    return factors[0][1] if factors else 1.0


def _in_plateau(path: KeyPath, value: Leaf) -> bool:
    del value
    return any("ReduceLROnPlateauState" in str(getattr(k, "tuple_name", "")) for k in path)


def _are_equal(a: Rate, b: Rate) -> bool:
    return isinstance(a, int | float) and isinstance(b, int | float) and a == b


def _not_known(actual: str) -> ValueError:
    return ValueError(
        "the learning rate is not known: expected one rate, in the state or in an optimizer of "
        f"optax_bridge, found {actual}. Optax's aliases do not store theirs: use "
        "optax.inject_hyperparams(optax.adam)(learning_rate=...), or optax_bridge.adam(...); with "
        "several groups, optax_bridge.multi_optimizer, which has a rate for each."
    )
