"""Which known setting explains a difference: a search over one side's own keyword arguments.

Frameworks call the same thing by other names and have other defaults: where an epsilon stands,
whether momentum looks ahead, whether weight decay is part of the gradient. Settings of that kind
are tried one after another and together, until the difference is gone.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optax

from equivalence_tests.named_sides import NamedSide
from equivalence_tests.sides.adapt import EquivalenceError

TRIES = 48  # of a pair, some tenths of a second each

_DECAYS = ("weight_decay", "weight_decay_rate", "wd")
# What one thing is called; the first that a side has is meant.
_ALIKE = (
    ("learning_rate", "lr", "step_size"),
    ("b1", "beta1", "beta_1", "betas[0]"),
    ("b2", "beta2", "beta_2", "betas[1]"),
    ("decay", "alpha", "rho", "beta2", "gamma"),
    ("momentum", "beta", "mass"),
    ("eps", "epsilon"),
    _DECAYS,
    ("nesterov",),
    ("centered",),
    ("amsgrad",),
    ("initial_scale", "initial_accumulator_value"),
)


@dataclass(frozen=True)
class Explanation:
    """Settings with which two sides no longer differ.

    Attributes:
      side: the side with them, as it would be called.
      settings: what was changed: name or call -> value, and why that was tried.
      verdict: of the two sides then.
    """

    side: str
    settings: Mapping[str, str]
    verdict: str

    def __str__(self) -> str:
        changes = "; ".join(f"{name} ({why})" for name, why in self.settings.items())
        return f"with {self.side} it is {self.verdict}: what explains the difference is {changes}"


@dataclass(frozen=True)
class _Change:
    """One setting to try: keyword arguments, or a transformation to chain before or after."""

    why: str
    kwargs: Mapping[str, Any]
    before: float | None = None  # weight decay that joins the gradient

    def __str__(self) -> str:
        if self.before is not None:
            return f"weight decay {self.before!r} added to the gradient, before the optimizer"
        return ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())


def explanation(
    fixed: NamedSide, varied: NamedSide, judge: Callable[[Any], str | None]
) -> Explanation | None:
    """Looks for settings of one side with which the difference from another is gone.

    Args:
      fixed: the side that stays; its own settings are carried over to the other.
      varied: the side whose arguments are tried.
      judge: compares a side with the fixed one: the verdict, None if they still differ.

    Returns:
      The fewest settings that were found; None if none did it, or nothing can be varied.
    """
    if varied.function is None:
        return None
    changes = list(_changes(fixed, varied))
    for some in itertools.islice(_combinations(changes), TRIES):
        if verdict := _judged(varied, some, judge):
            needed = list(some)
            for one in some:  # what was carried along needlessly
                fewer = [other for other in needed if other is not one]
                if fewer and (without := _judged(varied, fewer, judge)):
                    needed, verdict = fewer, without
            reasons = {str(one): one.why for one in needed}
            return Explanation(_written(varied, needed), reasons, verdict)
    return None


def _judged(
    side: NamedSide, changes: Sequence[_Change], judge: Callable[[Any], str | None]
) -> str | None:
    try:
        return judge(_made(side, changes))
    except (EquivalenceError, TypeError, ValueError):  # these settings do not go together
        return None


def _made(side: NamedSide, changes: Sequence[_Change]) -> Any:
    made = side.made(**_kwargs(changes))
    for change in changes:
        if change.before is not None:
            made = optax.chain(optax.add_decayed_weights(change.before), made)
    return made


def _written(side: NamedSide, changes: Sequence[_Change]) -> str:
    given = dict(side.kwargs or {})
    if side.args:  # by their names, as a change may be to one of them
        given = dict(zip(side.parameters, side.args, strict=False)) | given
    changed = replace(side, args=(), kwargs=given | _kwargs(changes))
    written = f"{side.name.replace(':', '.')}({changed.written})"
    for change in changes:
        if change.before is not None:
            written = f"optax.chain(optax.add_decayed_weights({change.before!r}), {written})"
    return written


def _kwargs(changes: Sequence[_Change]) -> dict[str, Any]:
    return {name: value for change in changes for name, value in change.kwargs.items()}


def _combinations(changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Single settings, then all that is carried over with few of the others, then pairs."""
    yield from ([one] for one in changes)
    carried = [one for one in changes if one.why.startswith("as ")]
    others = [one for one in changes if one not in carried]
    for number in (0, 1, 2):
        for some in itertools.combinations(others, number):
            if len(carried) + number > 1 and (carried or number < 2) and _fit([*carried, *some]):
                yield [*carried, *some]
    if carried:
        yield from (list(pair) for pair in itertools.combinations(others, 2) if _fit(pair))


def _fit(changes: Sequence[_Change]) -> bool:
    """Whether no two of them set the same thing."""
    names = [name for change in changes for name in change.kwargs]
    return len(names) == len(set(names))


def _changes(fixed: NamedSide, varied: NamedSide) -> Iterator[_Change]:
    theirs, own = _flat(fixed.parameters), varied.parameters
    takes = _takes(varied)
    for names in _ALIKE:
        there = next((name for name in names if name in theirs), None)
        here = next((name for name in names if _root(name) in takes), None)
        if there is None or here is None or not isinstance(theirs[there], int | float):
            continue
        if _flat(own).get(here) != theirs[there]:
            why = f"as {there}={theirs[there]!r} of {fixed.name}"
            yield _Change(why, {_root(here): _with(own, here, theirs[there])})
    decay = next((name for name in _DECAYS if own.get(name)), None)
    if decay is not None and not any(name in theirs for name in _DECAYS):
        yield _Change(f"as {fixed.name} has none", {decay: 0.0})
    for name in takes:
        if isinstance(own.get(name), bool):
            yield _Change("the other way round", {name: not own[name]})
    eps = next((name for name in ("eps", "epsilon") if name in own), None)
    if "eps_root" in takes and eps is not None:
        yield _Change("inside the root", {"eps_root": own[eps], eps: 0.0})
    yield from _decays(theirs, own, varied)


def _decays(
    theirs: Mapping[str, Any], own: Mapping[str, Any], varied: NamedSide
) -> Iterator[_Change]:
    """Weight decay that joins the gradient, where the other side has some."""
    decay = next((theirs[name] for name in _DECAYS if theirs.get(name)), None)
    if isinstance(decay, int | float) and is_transformation(varied):
        zero = {name: 0.0 for name in _DECAYS if own.get(name)}
        yield _Change("coupled, as an L2 penalty is", zero, before=decay)


def is_transformation(side: NamedSide) -> bool:
    """Whether a side makes an Optax transformation, which others can be chained with."""
    return isinstance(side.made(), optax.GradientTransformation)


def _takes(side: NamedSide) -> list[str]:
    """The names of a side's arguments, given or not."""
    assert side.function is not None
    return list(inspect.signature(side.function).parameters)


def _flat(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, the parts of tuples as `betas[0]`."""
    result = {}
    for name, value in parameters.items():
        result[name] = value
        if isinstance(value, tuple | list):
            result |= {f"{name}[{index}]": part for index, part in enumerate(value)}
    return result


def _root(name: str) -> str:
    return name.partition("[")[0]


def _with(own: Mapping[str, Any], name: str, value: Any) -> Any:
    """The argument with the value in it; of a tuple, with that part changed."""
    root, bracket, index = name.partition("[")
    if not bracket:
        return value
    parts = list(own[root])
    parts[int(index.rstrip("]"))] = value
    return tuple(parts)
