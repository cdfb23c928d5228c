# pyright: strict
"""One entry of the correspondence, as data."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from optax_bridge._hyper_params import RATES
from optax_bridge.correspondence.claim import EXACT, Claim, Verdict, identical
from optax_bridge.correspondence.recipe import (
    Call,
    Node,
    Setting,
    Source,
    build,
    render,
    resolve,
    substitute,
)
from optax_bridge.correspondence.values import FINITE, NOT_NEGATIVE, OneOf, Range
from optax_bridge.metadata.trees import Leaf


@dataclass(frozen=True)
class HyperParam:
    """One hyper-parameter under both its names."""

    legacy: str
    port: str
    default: Node
    read: Callable[[Any], Node]
    variadic: bool = False
    within: Range | OneOf = FINITE
    by_name: bool = False


@dataclass(frozen=True)
class StateField:
    """One field of the legacy state and its places in the new states."""

    legacy: str
    exact: str
    optax: tuple[str, ...] = ()
    optax_sign: int = 1
    within: Range = FINITE


def squares(legacy: str, exact: str, optax: tuple[str, ...] = ()) -> StateField:
    """A field that is a mean or a sum of squares, see `StateField`."""
    return StateField(legacy, exact, optax, within=NOT_NEGATIVE)


@dataclass(frozen=True)
class OptaxRecipe:
    """A recipe of public Optax, for some settings."""

    recipe: Call
    claim: Claim
    when: Mapping[str, Node] = field(default_factory=dict[str, Node])

    def fits(self, settings: Mapping[str, Node]) -> bool:
        """True if the settings are known to match `when`."""
        return all(_same(settings[name], value) for name, value in self.when.items())


@dataclass(frozen=True)
class Unsupported:
    """Settings that public Optax cannot express."""

    name: str
    only: Node
    message: str


# Stands for the learning rate within a nested definition of a case.
RATE = Setting("learning_rate")


@dataclass(frozen=True)
class Case:
    """One case of the suite.

    Attributes:
      settings: constructor arguments of the legacy optimizer. The learning rate is left out; a
        nested definition, itself a call, has `RATE` in its place.
      learning_rate: the rate, chosen so that parameters move but stay finite.
    """

    settings: Mapping[str, Node] = field(default_factory=dict[str, Node])
    learning_rate: float = 0.01


class UnsupportedSetting(ValueError):
    """A setting without an equivalent in the requested kind of recipe."""


class LegacyClass:
    """A class by its dotted name, of a library that need not be installed."""

    def __init__(self, dotted: str):
        self.dotted = dotted
        self.__name__ = dotted.rpartition(".")[2]

    def __call__(self, *args: Node, **kwargs: Node) -> Any:
        """Makes an optimizer of it."""
        return self.cls(*args, **kwargs)

    @functools.cached_property
    def cls(self) -> type[Any]:
        """The class itself."""
        return resolve(self.dotted)

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of its constructor, in its order."""
        return inspect.signature(self.cls).parameters


# Path in the parameters, parameter, and the fields of its state by name, None for none.
Row = tuple[tuple[str, ...], Leaf, Mapping[str, Leaf] | None]


class Parts(Protocol):
    """Recognises in a checkpoint a legacy optimizer that holds others."""

    example: str  # a constructor call, for messages

    def matches(self, kinds: Set[frozenset[str]], fields: frozenset[str]) -> bool:
        """True if a checkpoint may be of this optimizer."""
        ...

    def rows_within(self, rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
        """The rows for each of the optimizers within, or for those that differ."""
        ...

    def wrap(self, inner: Any) -> Any | None:
        """The optimizer that holds this one, None where a checkpoint does not say enough."""
        ...


@dataclass(frozen=True)
class Entry:
    """One legacy optimizer and its equivalents.

    Attributes:
      legacy: the legacy class.
      port: dotted name of this project's transformation, the exact recipe.
      state: the legacy parameter state, field by field.
      optax: variants of the recipe of public Optax, the most special first.
      unsupported: settings that no recipe of public Optax expresses.
      cases: the suite's cases; together they move every hyper-parameter off its default.
      notes: advice for moving, printed by the guide and by `recipe`.
      sources: its name in the original library, and papers.
      renamed: argument of the legacy constructor -> of the port, where they have different names.
      within: argument of the legacy constructor -> the numbers that it makes sense with; it may
        have those of related optimizers too.
      getters: argument of the legacy constructor -> its getter from a definition, where it is
        none of `definition.hyper_params`.
      dropped: legacy state fields that go nowhere, each with the reason.
      around: the best claim of a recipe of this project around optimizers of public Optax.
      parts: how it holds others, for one that does.
      inferred: the settings that shape a state, from the parameters and their states in a
        checkpoint; None: those are its switches, which can be tried.
      excluded: values of the suite's axes that cannot be, each with the reason.
      exactness: the claim of the exact recipe against the original library, and its reason.
      extra_arguments: of the original constructor, without a place here -> advice on each.
    """

    legacy: LegacyClass
    port: str
    state: tuple[StateField, ...]
    optax: tuple[OptaxRecipe, ...]
    cases: tuple[Case, ...]
    notes: str
    sources: tuple[str, ...]
    unsupported: tuple[Unsupported, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    within: Mapping[str, Range | OneOf] = field(default_factory=dict[str, Range | OneOf])
    getters: Mapping[str, Callable[[Any], Node]] = field(
        default_factory=dict[str, Callable[[Any], Node]]
    )
    dropped: Mapping[str, str] = field(default_factory=dict[str, str])
    around: Claim = field(default_factory=identical)
    parts: Parts | None = None
    inferred: Callable[[Sequence[Row]], Mapping[str, Node]] | None = None
    excluded: Mapping[str, str] = field(default_factory=dict[str, str])
    exactness: Claim = EXACT
    extra_arguments: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def rate(self) -> str:
        """The legacy name of its learning rate."""
        return next((hp.legacy for hp in self.hyper_params if hp.legacy in RATES), "")

    @functools.cached_property
    def hyper_params(self) -> tuple[HyperParam, ...]:
        """The hyper-parameters in the legacy constructor's order, by its signature."""
        return tuple(
            HyperParam(
                name,
                self.renamed.get(name, name),
                parameter.default,
                self.getters.get(name) or operator.attrgetter(f"hyper_params.{name}"),
                parameter.kind is parameter.VAR_POSITIONAL,
                self.within.get(name, FINITE),
                parameter.kind is parameter.KEYWORD_ONLY,
            )
            for name, parameter in self.legacy.parameters.items()
        )

    def definition(self, case: Case, learning_rate: float | None = None) -> Any:
        """The legacy definition of a case.

        Args:
          case: one of `cases`.
          learning_rate: its rate; None leaves the definition without one, for a rate per call.
        """
        return build(self.call(case, learning_rate))

    def call(self, case: Case, learning_rate: float | None) -> Call:
        """The call of the legacy constructor that makes the definition of a case."""
        settings: dict[str, Node] = substitute(dict(case.settings), {RATE.name: learning_rate})
        args: Any = ()
        for hp in self.hyper_params:
            if hp.variadic:
                args = settings.pop(hp.legacy)
            elif hp.legacy == self.rate:
                settings = {hp.legacy: learning_rate, **settings}
        return Call(self.legacy.dotted, args, settings)

    @property
    def fields(self) -> frozenset[str]:
        """The fields of its legacy parameter state."""
        return frozenset({field.legacy for field in self.state} | set(self.dropped))

    @property
    def magnifies_rounding(self) -> bool:
        """True if public Optax within it may end up further off than rounding alone."""
        return self.around.verdict is not Verdict.IDENTICAL

    @property
    def takes_groups(self) -> bool:
        """True if it is made of groups, by position, as a MultiOptimizer is."""
        return any(hp.variadic for hp in self.hyper_params)

    def matches(self, kinds: Set[frozenset[str]]) -> bool:
        """True if a checkpoint may be of this optimizer.

        Args:
          kinds: the different sets of fields that its parameters' states have; none: no fields.
        """
        if self.parts is not None:
            return self.parts.matches(kinds, self.fields)
        return (kinds or {frozenset()}) == {self.fields}

    @property
    def name(self) -> str:
        """Name of the entry: that of its transformation, e.g. `adam` or `torch.adam`."""
        return self.port.partition(".")[2]

    def settings(self, definition: Any) -> dict[str, Node]:
        """The settings of a definition: legacy name -> value."""
        return {hp.legacy: hp.read(definition) for hp in self.hyper_params}

    def defaults(self) -> dict[str, Node]:
        """Legacy name -> default."""
        return {hp.legacy: hp.default for hp in self.hyper_params}

    def exact_recipe(self, settings: Mapping[str, Node]) -> Call:
        """The recipe in legacy arithmetic; arguments at their defaults are left out.

        Args:
          settings: legacy name -> value, for every hyper-parameter.
        """
        args: Any = ()
        kwargs: dict[str, Node] = {}
        for hp in self.hyper_params:
            value = settings[hp.legacy]
            if hp.variadic:
                args = value
            elif not _same(value, hp.default):
                kwargs[hp.port] = value
        return Call(self.port, args, kwargs)

    def optax_recipe(self, settings: Mapping[str, Node]) -> tuple[Call, Claim]:
        """Returns the recipe of public Optax and its claim.

        Args:
          settings: legacy name -> value, for every hyper-parameter.

        Raises:
          UnsupportedSetting: public Optax has no equivalent of these settings.
        """
        if settings.get(self.rate, 0.0) is None:
            raise UnsupportedSetting(
                f"{self.legacy.__name__}: no learning rate in the constructor, so every call gives "
                "one; Optax's own aliases take none per call. Use a schedule, or the exact "
                f"recipe, {self.port}, which takes learning_rate= per call."
            )
        for unsupported in self.unsupported:
            if not _same(settings[unsupported.name], unsupported.only):
                shown = render(settings[unsupported.name])
                raise UnsupportedSetting(
                    f"{self.legacy.__name__}({unsupported.name}={shown}): {unsupported.message}"
                )
        for number, variant in enumerate(self.optax):
            if variant.fits(settings):
                claim = replace(variant.claim, key=f"{self.name}/{number}")
                return substitute(variant.recipe, settings), claim
        which = "optimizer with these settings" if self.optax else "optimizer"
        raise UnsupportedSetting(
            f"{self.legacy.__name__}: public Optax has no such {which}. Use the exact recipe, "
            f"{self.port}."
        )


def _same(value: Node, expected: Node) -> bool:
    """True if a setting certainly has that value; source text of a program never does."""
    if isinstance(value, Source | Call) or expected is inspect.Parameter.empty:
        return False
    if value is None or expected is None:
        return value is expected
    return getattr(value, "ndim", 0) == 0 and bool(value == expected)
