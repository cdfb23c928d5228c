# pyright: strict
"""What one entry of the correspondence says, as data."""

from __future__ import annotations

import enum
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import legacy_optim
from optax_bridge.correspondence.parts import Parts, Row
from optax_bridge.correspondence.recipe import Call, Setting, Source, build, filled
from optax_bridge.correspondence.seen import recorded
from optax_bridge.correspondence.values import FINITE, Range


class Verdict(enum.Enum):
    """How two trajectories compare."""

    IDENTICAL = "identical"
    ROUNDING = "rounding only"
    DIFFERENT = "different"


@dataclass(frozen=True)
class StepBound:
    """How far rounding alone can take one step from the legacy one, by analysis.

    `equivalence_tests.proof.rounding_bound` finds it, the suite holds every case to it.

    Attributes:
      ulp: of the parameters, in units in the last place of 1, from equal states.
      ranges: field of the legacy state -> its least and largest value, beside parameters and
        gradients as they are given here or from -1 to 1.
    """

    ulp: float
    ranges: Mapping[str, tuple[float, float]] = field(hash=False)

    @property
    def all_ranges(self) -> dict[str, tuple[float, float]]:
        """Those of parameters and gradients as well."""
        return {"params": (-1.0, 1.0), "grads": (-1.0, 1.0), **self.ranges}

    def __str__(self) -> str:
        text = ", ".join(f"{name} in [{a:g}, {b:g}]" for name, (a, b) in self.all_ranges.items())
        return f"{self.ulp:g} ULP a step, for {text}"


# Dtypes in which every claim holds: what rounds, rounds finely.
FULL_PRECISION = frozenset({"float32", "float64"})
HALF_PRECISION = ("bfloat16", "float16")

# The largest distance in 100 steps, in ULP of the dtype, that still counts as rounding in half
# precision: one ULP is 0.8 % of a tensor's scale in bfloat16.
HALF_BOUND = 1.0


@dataclass(frozen=True)
class Known:
    """Whether a claim holds in one dtype, and how that is known.

    Attributes:
      holds: whether parameters of this dtype may be given to the recipe.
      how: "proved", "measured 0.44 ULP", or why the two part.
    """

    holds: bool
    how: str


def proved() -> Known:
    """Holds in this dtype, for all inputs: `optax-bridge prove` shows it."""
    return Known(True, "proved")


def measured(ulp: float) -> Known:
    """What runs of 100 steps came to; holds where that is rounding alone."""
    return Known(ulp <= HALF_BOUND, f"measured {ulp:g} ULP")


def apart(why: str) -> Known:
    """Holds not: the two part in this dtype."""
    return Known(False, why)


NOT_MEASURED = apart("not measured")


def _in_both(known: Known) -> dict[str, Known]:
    return dict.fromkeys(HALF_PRECISION, known)


@dataclass(frozen=True)
class Claim:
    """What is claimed of a recipe, and what the suite therefore holds it to.

    Attributes:
      verdict: identical, rounding only, or different.
      ulp: for rounding only, the largest distance from the legacy trajectory, parameters and state,
        that a run of 100 steps may reach, in units in the last place at the tensor's largest
        magnitude so far, in float32. A longer run may drift in proportion.
      step: for rounding only, what one step can make of it, by analysis; None where no useful bound
        is known. Over many steps roundings of both signs meet: `ulp` lies between one such step and
        all of them.
      why: where the rounding or the difference comes from.
      key: under which the suite records what it measures of it; see `seen`.
      known: for bfloat16 and float16 each, whether the claim holds there too, with hyper-parameters
        that are plain numbers. In float32 it always does, and in float64 unless this says other.
    """

    verdict: Verdict
    ulp: float | None = None
    why: str = ""
    step: StepBound | None = None
    key: str = field(default="", compare=False)
    known: Mapping[str, Known] = field(
        default_factory=lambda: _in_both(NOT_MEASURED), compare=False
    )

    def __post_init__(self):
        if (self.verdict is Verdict.ROUNDING) != (self.ulp is not None):
            raise ValueError("a bound in ULP belongs to 'rounding only', and it must have one")

    @property
    def dtypes(self) -> frozenset[str]:
        """The dtypes of parameters in which it is identical or rounding only."""
        if self.verdict is Verdict.DIFFERENT:
            return frozenset()
        apart = {dtype for dtype, known in self.known.items() if not known.holds}
        return FULL_PRECISION.union(self.known) - apart

    @property
    def seen(self) -> float | None:
        """The largest distance that the suite has measured of it, in ULP; None if it has not."""
        return recorded().get(self.key)

    @property
    def reason(self) -> str:
        """`why`, and for rounding what was measured."""
        measured = "" if self.seen is None else f"{self.seen:g} ULP measured"
        return "; ".join(filter(None, (self.why, measured)))

    @property
    def proved(self) -> str:
        """What `optax-bridge prove` proves of it, for all inputs and any number of steps."""
        return {
            Verdict.IDENTICAL: "identical",
            Verdict.ROUNDING: "equal over the reals",
            Verdict.DIFFERENT: "different",
        }[self.verdict]


def identical(why: str = "") -> Claim:
    """Claims that every bit is the same, in every dtype."""
    return Claim(Verdict.IDENTICAL, why=why, known=_in_both(proved()))


def rounding(
    ulp: float,
    why: str,
    step: StepBound | None = None,
    *,
    bfloat16: Known = NOT_MEASURED,
    float16: Known = NOT_MEASURED,
    **others: Known,
) -> Claim:
    """Claims that only rounding differs, by `ulp` at most, and in one step by that of `step`."""
    known = {"bfloat16": bfloat16, "float16": float16, **others}
    return Claim(Verdict.ROUNDING, ulp=ulp, why=why, step=step, known=known)


def different(why: str) -> Claim:
    """Claims that it is another optimizer."""
    return Claim(Verdict.DIFFERENT, why=why)


@dataclass(frozen=True)
class HyperParam:
    """One hyper-parameter under both its names.

    Attributes:
      legacy: argument of the legacy constructor.
      port: argument of this project's transformation.
      default: of the legacy constructor, the port's is the same; `inspect.Parameter.empty` if there
        is none.
      getter: reads the value from a definition; `definition.hyper_params.<legacy>` unless given.
      variadic: whether the value is the tuple of all positional arguments.
      within: the numbers that it makes sense with.
    """

    legacy: str
    port: str
    default: Any = inspect.Parameter.empty
    getter: Callable[[Any], Any] | None = None
    variadic: bool = False
    within: Range = FINITE

    def read(self, definition: legacy_optim.OptimizerDef) -> Any:
        """The value in a definition."""
        read = self.getter or operator.attrgetter(f"hyper_params.{self.legacy}")
        return read(definition)


@dataclass(frozen=True)
class StateField:
    """One field of the legacy state and where its value stands in the new states.

    Attributes:
      legacy: field of the legacy parameter state.
      exact: `Type.field` in the state of this project's transformation.
      stock: `Type.field` in the state of the stock recipes, one for each type that they have; empty
        if none has such a field, which drops it.
      stock_sign: -1 where Optax keeps the value negated.
    """

    legacy: str
    exact: str
    stock: tuple[str, ...] = ()
    stock_sign: int = 1


@dataclass(frozen=True)
class Stock:
    """A recipe of public Optax, for some settings.

    Attributes:
      recipe: with `Setting` placeholders.
      claim: what it earns.
      when: settings that must have exactly these values; the first variant that fits is taken.
    """

    recipe: Call
    claim: Claim
    when: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def fits(self, settings: Mapping[str, Any]) -> bool:
        """Whether the settings are known to be those of `when`."""
        return all(_same(settings[name], value) for name, value in self.when.items())


@dataclass(frozen=True)
class Unsupported:
    """Settings that public Optax cannot express.

    Attributes:
      name: the setting.
      only: the single value that Optax can express; any other meets the message.
      message: what to tell the user.
    """

    name: str
    only: Any
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

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    learning_rate: float = 0.01


class UnsupportedSetting(ValueError):
    """A setting with no equal in the kind of recipe asked for."""


class LegacyClass:
    """A class of `legacy_optim` by its name; with it JAX is imported, so only when it is asked for.

    A recipe can be printed without.
    """

    def __init__(self, name: str):
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> legacy_optim.OptimizerDef:
        """Makes a definition."""
        return self.cls(*args, **kwargs)

    @functools.cached_property
    def cls(self) -> type[legacy_optim.OptimizerDef]:
        """The class itself."""
        return getattr(legacy_optim, self.__name__)


@dataclass(frozen=True)
class Entry:
    """One legacy optimizer and its equals.

    Attributes:
      legacy: the legacy class.
      port: dotted name of this project's transformation, the exact recipe.
      hyper_params: in the legacy constructor's order.
      state: the legacy parameter state, field by field.
      stock: variants of the stock recipe, the most special first.
      unsupported: settings that no stock recipe expresses.
      cases: what the suite runs; together they move every hyper-parameter off its default.
      notes: for the guide: what to know when moving.
      sources: paper and legacy module.
      dropped: legacy state fields that go nowhere, each with the reason.
      around: what a recipe of this project around stock parts earns at best.
      parts: how it holds others, for one that does.
      inferred: the settings that shape a state, from the parameters and their states in a
        checkpoint; None: those are its switches, which can be tried.
      excluded: values of the suite's axes that cannot be, each with the reason.
    """

    legacy: LegacyClass
    port: str
    hyper_params: tuple[HyperParam, ...]
    state: tuple[StateField, ...]
    stock: tuple[Stock, ...]
    cases: tuple[Case, ...]
    notes: str
    sources: tuple[str, ...]
    unsupported: tuple[Unsupported, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict[str, str])
    around: Claim = field(default_factory=identical)
    parts: Parts | None = None
    inferred: Callable[[Sequence[Row]], Mapping[str, Any]] | None = None
    excluded: Mapping[str, str] = field(default_factory=dict[str, str])

    def definition(
        self, case: Case, learning_rate: float | None = None
    ) -> legacy_optim.OptimizerDef:
        """The legacy definition of a case.

        Args:
          case: one of `cases`.
          learning_rate: its rate; None leaves the definition without one, for a rate per call.
        """
        return build(self.call(case, learning_rate))

    def call(self, case: Case, learning_rate: float | None) -> Call:
        """The call of the legacy constructor that makes the definition of a case."""
        settings: dict[str, Any] = filled(dict(case.settings), {RATE.name: learning_rate})
        args: tuple[Any, ...] = ()
        for hp in self.hyper_params:
            if hp.variadic:
                args = settings.pop(hp.legacy)
            elif hp.legacy == "learning_rate":
                settings = {hp.legacy: learning_rate, **settings}
        return Call(f"legacy_optim.{self.legacy.__name__}", args, settings)

    @property
    def fields(self) -> frozenset[str]:
        """The fields of its legacy parameter state."""
        return frozenset({field.legacy for field in self.state} | set(self.dropped))

    @property
    def was_in_flax(self) -> bool:
        """Whether the genuine `flax.optim` had it, so that there are recordings of it."""
        return any(source.startswith("flax.optim.") for source in self.sources)

    def recognised(self, kinds: Set[frozenset[str]]) -> bool:
        """Whether a checkpoint may be of this optimizer.

        Args:
          kinds: the different sets of fields that its parameters' states have; none: no fields.
        """
        if self.parts is not None:
            return self.parts.recognised(kinds, self.fields)
        return (kinds or {frozenset()}) == {self.fields}

    @property
    def name(self) -> str:
        """Name of the entry: that of its transformation, e.g. `adam`."""
        return self.port.rpartition(".")[2]

    def settings(self, definition: legacy_optim.OptimizerDef) -> dict[str, Any]:
        """The settings of a definition: legacy name -> value."""
        return {hp.legacy: hp.read(definition) for hp in self.hyper_params}

    def defaults(self) -> dict[str, Any]:
        """Legacy name -> default."""
        return {hp.legacy: hp.default for hp in self.hyper_params}

    def exact_recipe(self, settings: Mapping[str, Any]) -> Call:
        """The recipe in legacy arithmetic; arguments at their defaults are left out.

        Args:
          settings: legacy name -> value, for every hyper-parameter.
        """
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        for hp in self.hyper_params:
            value = settings[hp.legacy]
            if hp.variadic:
                args = value
            elif not _same(value, hp.default):
                kwargs[hp.port] = value
        return Call(self.port, args, kwargs)

    def stock_recipe(self, settings: Mapping[str, Any]) -> tuple[Call, Claim]:
        """The recipe of public Optax, and what it earns.

        Args:
          settings: legacy name -> value, for every hyper-parameter.

        Raises:
          UnsupportedSetting: public Optax has no equal for these settings.
        """
        if settings.get("learning_rate", 0.0) is None:
            raise UnsupportedSetting(
                f"{self.legacy.__name__}: no learning rate in the constructor, so every call gives "
                "one; Optax's own aliases take none per call. Use a schedule, or the exact "
                f"recipe, {self.port}, which takes learning_rate= per call."
            )
        for unsupported in self.unsupported:
            if not _same(settings[unsupported.name], unsupported.only):
                shown = settings[unsupported.name]
                raise UnsupportedSetting(
                    f"{self.legacy.__name__}({unsupported.name}={shown!r}): {unsupported.message}"
                )
        for number, variant in enumerate(self.stock):
            if variant.fits(settings):
                claim = replace(variant.claim, key=f"{self.name}/{number}")
                return filled(variant.recipe, settings), claim
        raise UnsupportedSetting(
            f"{self.legacy.__name__}: public Optax has no such optimizer. Use the exact recipe, "
            f"{self.port}."
        )


def setting(name: str) -> Setting:
    """A placeholder for a legacy setting in a recipe."""
    return Setting(name)


def _same(value: Any, expected: Any) -> bool:
    """Whether a setting is known to be that value; an expression of a program's source never is."""
    if isinstance(value, Source | Call) or expected is inspect.Parameter.empty:
        return False
    if value is None or expected is None:
        return value is expected
    return getattr(value, "ndim", 0) == 0 and bool(value == expected)
