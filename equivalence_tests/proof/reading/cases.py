"""The cases of a proof: both sides traced, once for each number that Python asks about."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

import legacy_optim
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.reading.numbers import check_numbers
from equivalence_tests.proof.reading.programs import AnyJaxpr
from equivalence_tests.proof.reading.sides import (
    Inputs,
    MakeSide,
    Program,
    Relate,
    trace_relation,
    trace_side,
)
from optax_bridge.correspondence import UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.metadata.trees import PyTree
from optax_bridge.states import fill, rows_of

_MOST_CASES = 16


@dataclass(frozen=True)
class Case:
    """Both programs with some hyper-parameters fixed and some values of the others excluded."""

    inputs: Inputs
    programs: tuple[Program, Program]
    fixed: Mapping[str, float]
    excluded: tuple[str, ...]
    relation: AnyJaxpr | None


def read_cases(
    pair: tuple[MakeSide, MakeSide],
    inputs: Inputs,
    fixed: Mapping[str, float],
    relate: Relate | None,
    names: tuple[str, str],
) -> list[Case]:
    """Returns all cases; each number that a side compares a symbol with is one of its own."""
    pending: list[dict[str, float]] = [dict(fixed)]
    cases: list[Case] = []
    while pending:
        numbers = pending.pop(0)
        if any(case.fixed == numbers for case in cases):
            continue
        if len(cases) == _MOST_CASES:
            raise ProofError(f"the sides distinguish more than {_MOST_CASES} cases in Python")
        symbols = {name: value for name, value in inputs.numbers.items() if name not in numbers}
        case_inputs = replace(inputs, numbers=symbols, fixed={**inputs.fixed, **numbers})
        left, right = (trace_side(m, case_inputs, n) for m, n in zip(pair, names, strict=True))
        for make, program in zip(pair, (left, right), strict=True):
            check_numbers(make, program, case_inputs)
        questions = dict.fromkeys((*left.asked, *right.asked))
        pending += [{**numbers, name: number} for name, number in questions]
        excluded = tuple(f"{name} != {number:g}" for name, number in questions)
        relation = _relation(pair, case_inputs, (left, right), relate)
        cases.append(Case(case_inputs, (left, right), numbers, excluded, relation))
    return cases


def _relation(
    pair: tuple[MakeSide, MakeSide],
    inputs: Inputs,
    programs: tuple[Program, Program],
    relate: Relate | None,
) -> AnyJaxpr | None:
    """Returns the relation that is given or known of the states, as a program; else None."""
    relation = relate or _correspondence_of(pair, inputs, programs)
    if relation is None:
        return None
    try:
        return trace_relation(relation, pair[0], inputs, programs[1])
    except ProofError:
        if relate is not None:
            raise
        return None  # of other settings, which hold something else


def _correspondence_of(
    pair: tuple[MakeSide, MakeSide], inputs: Inputs, programs: tuple[Program, Program]
) -> Relate | None:
    """Returns the state map from a definition to a transformation of its recipes; else None."""
    numbers = {**inputs.numbers, **inputs.fixed}
    definition = pair[0](numbers)
    if not isinstance(definition, legacy_optim.OptimizerDef):
        return None
    if programs[1].kind != "GradientTransformation":
        return None
    tx: Any = pair[1](numbers)
    try:
        template = jax.eval_shape(tx.init, inputs.params)
    except Exception:  # it needs what only the trace has
        return None
    for recipe in ("exact", "optax"):
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
