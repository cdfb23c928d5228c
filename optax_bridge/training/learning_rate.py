"""Reading the learning rate of a training state, whichever way it was set."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from optax_bridge.exact.arguments import enclosed
from optax_bridge.exact.transformation import ExactTransformation


class Factor(NamedTuple):
    """What a stock piece of a chain multiplies the updates with.

    Attributes:
      size: a number, or a schedule.
      source: what it was made from; the same for groups that are given the same schedule.
      descends: whether it is negative; None where that is not known.
    """

    size: Any
    source: Hashable
    descends: bool | None

    def at(self, step: Any) -> Any:
        """The number at this step."""
        return self.size(step) if callable(self.size) else self.size


# What a group of parameters goes through.
Chain = list[Factor | ExactTransformation]


def learning_rate(tx: optax.GradientTransformation, opt_state: Any, step: Any) -> Any:
    """The learning rate of the next step.

    It is looked for where it can be set: in the state (`optax.inject_hyperparams`, line searches),
    in the hyper-parameters of this project's optimizers, and in the factors of a stock chain
    (`optax.scale_by_learning_rate`, `optax.scale`, `optax.scale_by_schedule`), times the factor of
    `optax.contrib.reduce_on_plateau`. A schedule is evaluated at the steps that it has counted:
    `optax.MultiSteps` and `optax.apply_if_finite` do not let every one through.

    Args:
      tx: the transformation.
      opt_state: its state.
      step: steps taken, for schedules that count none themselves.

    Returns:
      A number or an array; for `multi_optimizer` a tuple with one for each group.

    Raises:
      ValueError: it is given per call, or the transformation has none, or several.
    """
    if isinstance(tx, ExactTransformation):
        return _of_exact(tx, opt_state, step)
    found = optax.tree.get_all_with_path(opt_state, "learning_rate")
    counts = [value for _, value in found if isinstance(value, tuple)]  # of an injected schedule
    kept = [value for _, value in found if not isinstance(value, tuple)]
    if len(kept) == 1:
        injected = _injected_schedules(tx.update) if len(counts) == 1 else []
        # The state has the rate of the last step.
        rate = injected[0](counts[0]) if len(injected) == 1 else kept[0]
        return rate * _plateau(opt_state)
    chains = [] if kept else [chain for chain in _chains(tx.update) if chain]
    if len({_source(chain) for chain in chains}) == 1 and _of_one_rate(chains[0]):
        return _times(_of_chain(chains[0], opt_state, step), _plateau(opt_state))
    own = {id(cell): cell for cell in _own_rates(tx.update)}
    if not kept and not chains and len(own) == 1:
        return Factor(*own.values(), source=None, descends=None).at(step) * _plateau(opt_state)
    raise ValueError(
        "the learning rate cannot be told: expected one in the state or in the constructors, found "
        f"{len(kept)} in the state and {len(chains) or len(own)} chains with rates of their own. "
        "Set one in the constructor, as a number or a schedule, or by optax.inject_hyperparams; of "
        "several groups, multi_optimizer gives each its own."
    )


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
    return rate(getattr(opt_state, "count", step)) if callable(rate) else rate


def _of_chain(chain: Chain, opt_state: Any, step: Any) -> Any:
    """The rate of a chain that has one."""
    counting = jax.tree.leaves(opt_state, is_leaf=_counts)
    own = next((node for node in counting if _counts(node)), None)
    product: Any = -1.0
    for part in chain:
        if isinstance(part, ExactTransformation):
            product = _times(_of_exact(part, own, step), -product)
        else:
            product = _times(product, part.at(getattr(own, "count", step)))
    return product


def _times(rate: Any, factor: Any) -> Any:
    """Of a `multi_optimizer` each group's rate."""
    return (
        tuple(_times(each, factor) for each in rate) if isinstance(rate, tuple) else rate * factor
    )


def _counts(node: Any) -> bool:
    """Whether this is a state that a schedule is evaluated with."""
    kind = type(node)
    is_ours = kind.__module__.split(".")[0] == __name__.split(".")[0]
    return hasattr(node, "count") and (is_ours or kind is optax.ScaleByScheduleState)


def _of_one_rate(chain: Chain) -> bool:
    signs = [_descends(part) for part in chain]
    return signs.count(True) == 1 or (True not in signs and None in signs)


def _descends(part: Factor | ExactTransformation) -> bool | None:
    if isinstance(part, Factor):
        return part.descends
    rate = part.hyper_params.get("learning_rate")
    # A direction alone, `scale_by_adam`, is an optimizer with a rate of -1.
    return not (isinstance(rate, int | float) and rate < 0)


def _source(chain: Chain) -> Hashable:
    """The same for chains that were given the same rate."""
    sources = [
        id(part.hyper_params.get("learning_rate", part))
        if isinstance(part, ExactTransformation)
        else part.source
        for part in chain
    ]
    return tuple(sources)


def _plateau(opt_state: Any) -> Any:
    """The factor of reduce_on_plateau, 1 without it."""
    found = optax.tree.get_all_with_path(opt_state, "scale", filtering=_in_plateau)
    return found[0][1] if found else 1.0


def _in_plateau(path: Any, value: Any) -> bool:
    del value
    return any("ReduceLROnPlateauState" in str(getattr(k, "tuple_name", "")) for k in path)


def _chains(update: Any) -> list[Chain]:
    """What each group of parameters goes through; there is one group without a partition."""
    chain: Chain = []
    groups: list[Sequence[Any]] = []
    for value in _walk(update, {}, groups):
        cells = _cells(value)
        if exact := getattr(value, "exact", None):
            if exact not in chain:
                chain.append(exact)
        elif "step_size_fn" in cells:
            schedule = cells["step_size_fn"]
            made_from = _cells(schedule)  # by optax.scale_by_learning_rate, which negates it
            source = id(made_from.get("learning_rate", schedule))
            sign = made_from.get("m")
            chain.append(Factor(schedule, source, None if sign is None else sign < 0))
        elif "step_size" in cells and jnp.ndim(cells["step_size"]) == 0:
            size = cells["step_size"]
            known = not isinstance(size, Tracer)
            source = float(size) if known else id(size)
            chain.append(Factor(size, source, bool(size < 0) if known else None))
    for group in groups:
        within = [each for tx in group for each in _chains(tx) if each]
        if within:
            return [chain + each for each in within]
    return [chain]


def _injected_schedules(update: Any) -> list[Any]:
    """What `optax.inject_hyperparams` made of a schedule: functions of their own states."""
    given = [_cells(value).get("sched_hps", {}) for value in _walk(update, {}, [])]
    made = [schedules["learning_rate"] for schedules in given if "learning_rate" in schedules]
    return [schedule for schedule in made if hasattr(schedule, "schedule_fn")]


def _own_rates(update: Any) -> list[Any]:
    """Rates that the pieces use in ways of their own, as `optax.contrib.prodigy` does."""
    walked = (_cells(value).get("learning_rate") for value in _walk(update, {}, []))
    return [rate for rate in walked if rate is not None]


def _walk(value: Any, seen: dict[int, Any], groups: list[Sequence[Any]]) -> Iterator[Any]:
    """The functions that an update is made of; an exact transformation is not looked into.

    Several transformations by name, the groups of `optax.partition`, are put into `groups`.
    """
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept, so that no other object gets its id
    if isinstance(value, list | tuple):
        for item in value:
            yield from _walk(item, seen, groups)
    elif isinstance(value, dict):
        parts = list(value.values())
        if parts and all(isinstance(part, optax.GradientTransformation) for part in parts):
            groups.append(parts)
        else:
            yield from _walk(parts, seen, groups)
    elif callable(value):
        yield value
        if getattr(value, "exact", None) is None:
            ascent = _cells(value).get("adv_optimizer")  # of SAM: it leads away and back again
            inner = [part for part in enclosed(value) if part is not ascent]
            yield from _walk(inner, seen, groups)


def _cells(function: Any) -> dict[str, Any]:
    """What a function closes over, by name."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
