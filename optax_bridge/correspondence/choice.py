"""Choosing the recipe for a legacy optimizer: the one place that decides it.

`migrate`, `recipe`, `from_legacy`, `convert`, restoring and the suite ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import legacy_optim
from optax_bridge.checks import check_definition
from optax_bridge.correspondence.claim import (
    EXACT,
    FULL_PRECISION,
    HALF_PRECISION,
    Claim,
    Verdict,
    identical,
)
from optax_bridge.correspondence.entry import Entry, UnsupportedSetting
from optax_bridge.correspondence.recipe import Call, Node, is_array
from optax_bridge.correspondence.table import Described, describe, with_inner

RecipeKind = Literal["auto", "exact", "optax"]
RECIPES: tuple[RecipeKind, ...] = get_args(RecipeKind)

# The dtypes that parameters may have where nothing is known of them.
ANY_DTYPE = frozenset({"float32", *HALF_PRECISION})


@dataclass(frozen=True)
class Choice:
    """The recipe for a legacy optimizer, and why it and no other.

    Attributes:
      call: the recipe, ready for `recipe.build` and `recipe.render`.
      claim: the recipe's claim; for wrapped and grouped optimizers the weakest one.
      kind: "optax" if the recipe or a part of it is public Optax, else "exact".
      dtypes: the dtypes of parameters in which it is identical or differs by rounding alone.
      reason: one sentence: why public Optax is not equivalent, or, if it was chosen
        nevertheless, where the claim does not hold; "" if it is equivalent everywhere.
      parts: the choices for inner optimizers, in their order; `call` contains their calls.
    """

    call: Call
    claim: Claim
    kind: Literal["exact", "optax"]
    dtypes: frozenset[str]
    reason: str = ""
    parts: tuple[Choice, ...] = ()


def choose_recipe(
    optimizer: Described | legacy_optim.OptimizerDef,
    recipe: RecipeKind = "auto",
    dtypes: Iterable[str] | None = None,
) -> Choice:
    """Chooses the recipe for a legacy optimizer.

        >>> choose_recipe(legacy_optim.Adam(0.1), dtypes={"float32"}).call.target
        'optax.adam'
        >>> choose_recipe(legacy_optim.Adam(0.1), dtypes={"bfloat16"}).call.target
        'optax_bridge.adam'

    Args:
      optimizer: a legacy definition, or the description of one, wrapped and grouped ones included.
      recipe: "exact": this project's transformation in legacy arithmetic. "auto": public Optax
        where that is identical or differs by rounding alone in all the dtypes, decided for each
        member of a group, else the exact one, also inside an optimizer that magnifies rounding.
        "optax": public Optax wherever it can express the settings; the choice's claim and dtypes
        say where that holds.
      dtypes: names of the floating-point dtypes that parameters may have; None where that cannot be
        known, which is any of float32, bfloat16 and float16.

    Raises:
      UnsupportedSetting: "optax", and public Optax has no equivalent of these settings.
      ValueError: an unknown kind of recipe.
    """
    if recipe not in RECIPES:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, found {recipe!r}")
    possible = ANY_DTYPE if dtypes is None else _names(dtypes)
    if not isinstance(optimizer, Described):
        check_definition(optimizer, "optimizer")
    described = optimizer if isinstance(optimizer, Described) else describe(optimizer)
    if not isinstance(described, Described):
        call = Call("optax_bridge.wrap_definition", (described,))
        return Choice(call, EXACT, "exact", EXACT.dtypes, "its class is one of the program's own")
    entry = described.entry
    parts: list[Choice] = []

    def inner(optimizer: Described | legacy_optim.OptimizerDef) -> Call:
        exact = recipe == "auto" and entry.magnifies_rounding
        parts.append(choose_recipe(optimizer, "exact" if exact else recipe, possible))
        return parts[-1].call

    settings = with_inner(described.settings, inner)
    if parts:
        return _choose_outer(entry, settings, parts, recipe, possible)
    return _choose_single(entry, settings, recipe, possible)


def _names(dtypes: Iterable[str]) -> frozenset[str]:
    """The names of floating-point dtypes."""
    names = frozenset([dtypes] if isinstance(dtypes, str) else dtypes)
    if unknown := names - FULL_PRECISION.union(HALF_PRECISION):
        raise ValueError(
            f"dtypes: expected names of floating-point dtypes, {', '.join(sorted(ANY_DTYPE))} or "
            f"float64, found {sorted(map(str, unknown))}"
        )
    return names


def _choose_single(
    entry: Entry, settings: Mapping[str, Node], recipe: RecipeKind, possible: frozenset[str]
) -> Choice:
    """The choice for an optimizer that holds no others."""
    same = identical(entry.exactness.why)
    exact = Choice(entry.exact_recipe(settings), same, "exact", same.dtypes)
    if recipe == "exact":
        return exact
    try:
        call, claim = entry.optax_recipe(settings)
    except UnsupportedSetting as error:
        if recipe == "optax":
            raise
        return replace(exact, reason=str(error))
    dtypes = claim.dtypes if _are_plain(settings) else claim.dtypes & FULL_PRECISION
    reason = _reason(entry, claim, possible - dtypes)
    if recipe == "auto" and reason:
        return replace(exact, reason=reason)
    return Choice(call, claim, "optax", dtypes, reason)


def _choose_outer(
    entry: Entry,
    settings: Mapping[str, Node],
    parts: Sequence[Choice],
    recipe: RecipeKind,
    possible: frozenset[str],
) -> Choice:
    """The choice for an optimizer that holds others, from those for them."""
    call = entry.exact_recipe(settings)
    around = replace(entry.around, key=f"{entry.name}/around")
    if recipe != "exact":
        lacking = _reason(entry, around, possible - around.dtypes)
        if recipe == "auto" and entry.magnifies_rounding:
            lacking = f"{entry.legacy.__name__} magnifies the rounding of public Optax within it"
        parts = [_within(inner, around, lacking) for inner in parts]
    reason = "; ".join(dict.fromkeys(inner.reason for inner in parts if inner.reason))
    if all(inner.kind == "exact" for inner in parts):
        return Choice(call, EXACT, "exact", EXACT.dtypes, reason, tuple(parts))
    weakest = max([around, *(inner.claim for inner in parts)], key=_weakness)
    dtypes = frozenset.intersection(*(inner.dtypes for inner in parts))
    return Choice(call, weakest, "optax", dtypes, reason, tuple(parts))


def _within(inner: Choice, around: Claim, lacking: str) -> Choice:
    """The choice for an optimizer within, limited to the dtypes of the recipe around it."""
    dtypes = inner.dtypes if inner.kind == "exact" else inner.dtypes & around.dtypes
    reason = "; ".join(filter(None, [lacking, inner.reason]))
    return replace(inner, dtypes=dtypes, reason=reason)


def _reason(entry: Entry, claim: Claim, lacking: frozenset[str]) -> str:
    """Why a claim is not enough for the dtypes in which it does not hold, or ""."""
    name = entry.legacy.__name__
    if claim.verdict is Verdict.DIFFERENT:
        return f"{name}: the nearest recipe of public Optax is another optimizer ({claim.why})"
    causes: dict[str, list[str]] = {}
    for dtype in sorted(lacking):
        evidence = claim.evidence.get(dtype)
        how = evidence.how if evidence and not evidence.holds else "a hyper-parameter is an array"
        causes.setdefault(how, []).append(dtype)
    shown = "; ".join(f"in {' and '.join(dtypes)}: {how}" for how, dtypes in causes.items())
    return f"{name}: public Optax is not the same {shown}" if shown else ""


def _are_plain(settings: Mapping[str, Node]) -> bool:
    """True if no hyper-parameter is an array, which would lift half precision to its own dtype."""
    return not any(map(is_array, settings.values()))


def _weakness(claim: Claim) -> tuple[int, float]:
    return list(Verdict).index(claim.verdict), claim.ulp or 0.0
