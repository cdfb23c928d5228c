"""Reading the learning rate of a training state, whichever way it was set."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import optax
from jax.core import Tracer

from optax_bridge.arguments import enclosed
from optax_bridge.transformation import ExactTransformation


def learning_rate(tx: optax.GradientTransformation, opt_state: Any, step: Any) -> Any:
    """The learning rate of the next step.

    It is looked for where it can be set: in the state (`optax.inject_hyperparams`, line searches),
    in the hyper-parameters of this project's optimizers, and in the factors of a stock chain
    (`optax.scale_by_learning_rate`, `optax.scale`, `optax.scale_by_schedule`), times the factor of
    `optax.contrib.reduce_on_plateau`.

    Args:
      tx: the transformation.
      opt_state: its state.
      step: steps taken; schedules are evaluated there.

    Returns:
      A number or an array; for `multi_optimizer` a tuple with one for each group.

    Raises:
      ValueError: it is given per call, or the transformation has none.
    """
    if isinstance(tx, ExactTransformation):
        return _of_exact(tx, opt_state, step)
    found = optax.tree.get_all_with_path(opt_state, "learning_rate")
    kept = [value for _, value in found if not isinstance(value, tuple)]  # not a schedule's state
    if len(kept) == 1:
        return kept[0] * _plateau(opt_state)
    rates = [_of_exact(part, opt_state, step) for part in _exact_parts(tx)]
    factors = list(_factors(tx.update, step))
    if len(rates) == 1:
        return rates[0] * _product(factors) * _plateau(opt_state)
    descents = [f for f in factors if not isinstance(f, Tracer) and f < 0]  # one in a chain
    if len(kept) > 1 or len(rates) > 1 or len(descents) > 1 or not factors:
        raise ValueError(
            f"the transformation has {max(map(len, (kept, rates, descents)))} learning rates that "
            "can be read. Set one in the constructor, as a number or a schedule, or by "
            "optax.inject_hyperparams; of several groups, multi_optimizer gives each its own."
        )
    return -_product(factors) * _plateau(opt_state)


def _of_exact(tx: ExactTransformation, opt_state: Any, step: Any) -> Any:
    if "hyper_params" in tx.hyper_params and "learning_rate" not in tx.hyper_params:
        pairs = zip(tx.inner, opt_state.inner, strict=True)
        return tuple(learning_rate(inner, state, step) for inner, state in pairs)
    if "learning_rate" not in tx.hyper_params and len(tx.inner) == 1:
        return learning_rate(tx.inner[0], getattr(opt_state, "inner", opt_state), step)
    rate = tx.hyper_params.get("learning_rate")
    if rate is None:
        raise ValueError(
            "the learning rate is given per call, apply_gradients(learning_rate=...), and the "
            "state does not keep it. Give the constructor a number or a schedule to read it here."
        )
    return rate(step) if callable(rate) else rate


def _plateau(opt_state: Any) -> Any:
    """The factor of reduce_on_plateau, 1 without it."""
    found = optax.tree.get_all_with_path(opt_state, "scale", filtering=_in_plateau)
    return found[0][1] if found else 1.0


def _in_plateau(path: Any, value: Any) -> bool:
    del value
    return any("ReduceLROnPlateauState" in str(getattr(k, "tuple_name", "")) for k in path)


def _product(factors: list[Any]) -> Any:
    product = 1.0
    for factor in factors:
        product = product * factor
    return product


def _exact_parts(tx: optax.GradientTransformation) -> list[ExactTransformation]:
    found: list[ExactTransformation] = []
    for value in _walk(tx.update, {}):
        exact = getattr(value, "exact", None)
        if isinstance(exact, ExactTransformation) and exact not in found:
            found.append(exact)
    return found


def _factors(update: Any, step: Any) -> Iterator[Any]:
    """What the stock pieces of a chain multiply the updates with."""
    for function in _walk(update, {}):
        cells = _cells(function)
        if "step_size_fn" in cells:
            yield cells["step_size_fn"](step)
        elif "step_size" in cells and jnp.ndim(cells["step_size"]) == 0:
            yield cells["step_size"]


def _walk(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """The functions that an update is made of; an exact transformation is not looked into."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept, so that no other object gets its id
    if isinstance(value, list | tuple):
        for item in value:
            yield from _walk(item, seen)
    elif isinstance(value, dict):
        yield from _walk(list(value.values()), seen)
    elif callable(value):
        yield value
        if getattr(value, "exact", None) is None:
            ascent = _cells(value).get("adv_optimizer")  # of SAM: it leads away and back again
            yield from _walk([part for part in enclosed(value) if part is not ascent], seen)


def _cells(function: Any) -> dict[str, Any]:
    """What a function closes over, by name."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
