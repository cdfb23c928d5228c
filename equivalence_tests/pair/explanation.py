"""A search over the settings of both sides for those that explain a difference.

Frameworks call the same thing by other names and have other defaults: where an epsilon stands,
whether momentum looks ahead, whether weight decay is part of the gradient. Settings of that kind
are tried one after another and together, until the difference is gone. The settings of a side are
the arguments of what makes it, or else the numbers that its functions hold.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from equivalence_tests.compare.comparison import Verdict
from equivalence_tests.pair.equivalence import check_equivalence
from equivalence_tests.pair.named import NamedSide, ObjectSide
from equivalence_tests.pair.report import Report
from equivalence_tests.pair.settings import literals, settings_of, with_settings
from equivalence_tests.sides.adapt import EquivalenceError, SideLike
from optax_bridge._hyper_params import ALIKE, WEIGHT_DECAYS
from optax_bridge.correspondence import choose_recipe
from optax_bridge.correspondence.expression import ExpressionError, parse
from optax_bridge.correspondence.recipe import render
from optax_bridge.metadata.trees import OptState, Params, Updates

TRIES = 48  # of either side's settings, some tenths of a second each
FEW = 16  # steps; what they do not tell apart is compared in full


Settings = NamedSide | ObjectSide


@dataclass(frozen=True)
class Explanation:
    """Settings with which two sides no longer differ."""

    side: str
    settings: Mapping[str, str]
    verdict: str

    def __str__(self) -> str:
        changes = "; ".join(f"{name} ({why})" for name, why in self.settings.items())
        return f"with {self.side} the verdict is {self.verdict}; the difference is {changes}"


@dataclass(frozen=True)
class _Change:
    """One setting to try: arguments, weight decay to chain before, or the place of epsilon."""

    why: str
    kwargs: Mapping[str, object]
    before: float | None = None  # weight decay that joins the gradient
    early_eps: bool = False  # added before the bias correction

    def __str__(self) -> str:
        if self.before is not None:
            return f"weight decay {self.before!r} added to the gradient, before the optimizer"
        if self.early_eps:
            return "eps added before the bias correction"
        return ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())


def explanation(
    left: Settings,
    right: Settings,
    compare: Callable[..., Report],
    few: int = FEW,
    tries: int = TRIES,
) -> Explanation | None:
    """Returns settings of one side with which the difference is gone; None if none is found."""
    for fixed, varied in ((left, right), (right, left)):

        def judge(changed: SideLike, is_short: bool, fixed: Settings = fixed) -> Verdict:
            options = {"steps": few, "decide": False} if is_short else {}
            return compare(fixed.build(), changed, **options).verdict

        if explained := search(_readable(fixed), varied, judge, tries):
            return explained
    return None


def of_objects(
    left: SideLike, right: SideLike, params: Params, options: Mapping[str, Any], steps: int
) -> Explanation | None:
    """Returns the explanation of the difference between the two sides of `check_equivalence`."""
    names = options.get("names", ("left", "right"))

    def compare(first: SideLike, second: SideLike, **few: Any) -> Report:
        return check_equivalence(first, second, params, **{**options, **few})

    sides = [ObjectSide(*one) for one in zip(names, (left, right), strict=True)]
    return explanation(sides[0], sides[1], compare, min(FEW, steps), TRIES // 2)


def _readable(side: Settings) -> Settings:
    """Returns the side, as an object where what makes it has no arguments to vary."""
    if side.takes or isinstance(side, ObjectSide):
        return side
    return ObjectSide(side.text or side.name, side.build())


# The outcome with a side in place of the varied one: of a few steps, or of all.
Judge = Callable[[SideLike, bool], Any]


def search(fixed: Settings, varied: Settings, judge: Judge, tries: int) -> Explanation | None:
    """Searches settings of one side, with values of the other, that a judge accepts."""
    varied = _readable(varied)
    changes = list(_changes(fixed, varied))
    for some in itertools.islice(_combinations(changes), tries):
        if verdict := _verdict_with(varied, some, judge):
            needed = list(some)
            for change in some:  # drops what is not needed
                fewer = [needed_change for needed_change in needed if needed_change is not change]
                if fewer and (without := _verdict_with(varied, fewer, judge)):
                    needed, verdict = fewer, without
            reasons = {str(change): change.why for change in needed}
            return Explanation(_call_text(varied, needed), reasons, verdict)
    return None


def _verdict_with(side: Settings, changes: Sequence[_Change], judge: Judge) -> str | None:
    try:
        changed = _changed_side(side, changes)
        if judge(changed, True).value == Verdict.DIFFERENT.value:
            return None
        verdict = judge(changed, False).value
    except (EquivalenceError, TypeError, ValueError):  # these settings do not go together
        return None
    return verdict if verdict in (Verdict.IDENTICAL.value, Verdict.ROUNDING.value) else None


def _changed_side(side: Settings, changes: Sequence[_Change]) -> SideLike:
    changed: Any = side.build(**_kwargs(changes))
    if any(change.early_eps for change in changes):
        changed = _with_early_eps(changed)
    for decay in _coupled_decays(changes):
        changed = optax.chain(optax.add_decayed_weights(decay), changed)
    return changed


def _with_early_eps(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """Adds eps before the bias correction of the second moment: afterwards it is larger."""
    settings: dict[str, Any] = settings_of(tx)

    def update(
        updates: Updates, state: OptState, params: Params = None
    ) -> tuple[Updates, OptState]:
        (_, count), *_ = optax.tree.get_all_with_path(state, "count")
        eps = settings["eps"] / jnp.sqrt(1 - settings["b2"] ** (count + 1))
        return with_settings(tx, settings, {"eps": eps}).update(updates, state, params)

    return optax.GradientTransformation(tx.init, update)


def _call_text(side: Settings, changes: Sequence[_Change]) -> str:
    text = side.call(_kwargs(changes))
    if any(change.early_eps for change in changes):
        text += ", with eps added before the bias correction,"
    decays = [f"optax.add_decayed_weights({decay!r})" for decay in _coupled_decays(changes)]
    if not decays or (isinstance(side, ObjectSide) and _kwargs(changes)):  # which is no expression
        return f"{text}, and {' and '.join(decays)} before it," if decays else text
    return f"optax.chain({', '.join([*decays, text])})"


def _coupled_decays(changes: Sequence[_Change]) -> list[float]:
    """Returns the weight decays that join the gradient."""
    return [change.before for change in changes if change.before is not None]


def _kwargs(changes: Sequence[_Change]) -> dict[str, object]:
    return {name: value for change in changes for name, value in change.kwargs.items()}


def _combinations(changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Yields single settings, then all that is carried over with few of the others, then pairs."""
    yield from ([change] for change in changes)
    carried = [change for change in changes if change.why.startswith("as ")]
    others = [change for change in changes if change not in carried]
    for number in (0, 1, 2):
        for some in itertools.combinations(others, number):
            if len(carried) + number > 1 and (carried or number < 2) and _fit([*carried, *some]):
                yield [*carried, *some]
    yield from (list(pair) for pair in itertools.combinations(others, 2) if _fit(pair))


def _fit(changes: Sequence[_Change]) -> bool:
    """True if no two of them set the same thing."""
    names = [name for change in changes for name in change.kwargs]
    return len(names) == len(set(names))


def _changes(fixed: Settings, varied: Settings) -> Iterator[_Change]:
    other_settings, settings = _flat(fixed.parameters), varied.parameters
    takes = varied.takes
    for names in ALIKE:
        other_name = next((name for name in names if name in other_settings), None)
        name = next((name for name in names if _root(name) in takes), None)
        other_value = None if other_name is None else other_settings[other_name]
        if name is None or not isinstance(other_value, int | float):
            continue
        old, value = _flat(settings).get(name), other_value
        if isinstance(old, float) and old < 0 <= value:
            value = -value  # a rate that has the sign of the step
        if (0 if old is None else old) != value:  # None and 0 both mean no momentum
            why = f"as {other_name}={other_value!r} of {fixed.name}"
            yield _Change(why, {_root(name): _with(settings, name, value)})
    decay = next((name for name in WEIGHT_DECAYS if settings.get(name)), None)
    if decay is not None and not any(name in other_settings for name in WEIGHT_DECAYS):
        yield _Change(f"as {fixed.name} has none", {decay: 0.0})
    yield from _from_numbers(fixed, settings)
    for name in takes:
        if isinstance(settings.get(name), bool):
            yield _Change("the opposite", {name: not settings[name]})
    eps = next((name for name in ("eps", "epsilon") if name in settings), None)
    if "eps_root" in takes and eps is not None:
        yield _Change("inside the root", {"eps_root": settings[eps], eps: 0.0})
        names = ("eps", "epsilon")
        other_eps = next((other_settings[n] for n in names if other_settings.get(n)), None)
        if other_eps is not None and settings.get("eps_root"):
            yield _Change("outside of the root", {"eps_root": 0.0, eps: other_eps})
    tx = varied.build()
    if isinstance(tx, optax.GradientTransformation) and {"eps", "b2"} <= settings_of(tx).keys():
        yield _Change("where TensorFlow and Keras have it", {}, early_eps=True)
    yield from _decays(other_settings, settings, varied)


_MOST_UNNAMED = 16


def _from_numbers(fixed: Settings, settings: Mapping[str, object]) -> Iterator[_Change]:
    """Yields numbers of the fixed side alone, under any name, for settings of the other."""
    values = [*settings_of(fixed.build()).values(), *literals(fixed.build())]
    numbers_there = dict.fromkeys(abs(value) for value in values if type(value) is float)
    numbers = {name: value for name, value in settings.items() if type(value) is float}
    numbers_here = {abs(value) for value in numbers.values()}
    new = [value for value in numbers_there if value not in numbers_here and 0 < value < math.inf]
    differing = [name for name, value in numbers.items() if abs(value) not in numbers_there]
    differing.sort(key=lambda name: (_root(name) not in WEIGHT_DECAYS, numbers[name] == 0.0))
    for name, value in itertools.islice(itertools.product(differing, new), _MOST_UNNAMED):
        signed = -value if numbers[name] < 0 else value
        yield _Change(f"{fixed.name} has the number {value!r}", {name: signed})


def _decays(
    other_settings: Mapping[str, object], settings: Mapping[str, object], varied: Settings
) -> Iterator[_Change]:
    """Yields weight decay that joins the gradient, where the other side has some."""
    decay = next((other_settings[name] for name in WEIGHT_DECAYS if other_settings.get(name)), None)
    is_number = isinstance(decay, int | float)
    if is_number and isinstance(varied.build(), optax.GradientTransformation):
        zero = {name: 0.0 for name in WEIGHT_DECAYS if settings.get(name)}
        yield _Change("coupled, as an L2 penalty is", zero, before=decay)


def _flat(parameters: Mapping[str, object]) -> dict[str, object]:
    """Returns arguments by name, the parts of tuples as `betas[0]`."""
    flat = {}
    for name, value in parameters.items():
        flat[name] = value
        if isinstance(value, tuple | list):
            flat |= {f"{name}[{index}]": item for index, item in enumerate(value)}
    return flat


def _root(name: str) -> str:
    return name.partition("[")[0]


def _with(settings: Mapping[str, Any], name: str, value: object) -> object:
    """Returns the argument with the value in it; of a tuple, with that part changed."""
    root, bracket, index = name.partition("[")
    if not bracket:
        return value
    parts = list(settings[root])
    parts[int(index.rstrip("]"))] = value
    return tuple(parts)


def known_recipe(sides: Sequence[NamedSide], params: Params) -> str:
    """Returns the Optax recipe of a legacy side or one of PyTorch; "" if neither is one."""
    dtypes = {jnp.result_type(leaf).name for leaf in jax.tree.leaves(params)}
    for side in sides:
        try:
            call = parse(side.text or side.call({}).removeprefix("legacy_optim."))
            choice = choose_recipe(call, "auto", dtypes)
        except ExpressionError:  # of Optax or the user's own, or an argument that is no literal
            continue
        text = f"{side} in Optax is {render(choice.call)}: {choice.claim.verdict.value}"
        return f"{text}. {choice.reason}".removesuffix(". ")
    return ""
