"""`prove_equivalence`: are two optimizers the same for all inputs?"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import jax

import legacy_optim
from equivalence_tests.proof.counterexample.candidates import other_settings
from equivalence_tests.proof.counterexample.example import Counterexample
from equivalence_tests.proof.counterexample.search import Search
from equivalence_tests.proof.errors import NoRule, ProofError, Unclear
from equivalence_tests.proof.induction import induction
from equivalence_tests.proof.induction.equality import Level
from equivalence_tests.proof.induction.guessed_relations import Fits
from equivalence_tests.proof.induction.induction import Hints, Induction
from equivalence_tests.proof.induction.world import World
from equivalence_tests.proof.reading.numbers import check_numbers
from equivalence_tests.proof.reading.sides import (
    Inputs,
    MakeSide,
    Program,
    Relate,
    as_functions,
    check_inputs,
    trace_relation,
    trace_side,
)
from equivalence_tests.proof.reading.symbols import NotASymbol
from equivalence_tests.proof.result import CaseProof, Proof
from equivalence_tests.sides.adapt import SideLike
from optax_bridge.correspondence import UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.states import fill, rows_of

_MOST_CASES = 16


def prove_equivalence(
    left: SideLike | MakeSide,
    right: SideLike | MakeSide,
    params: Params,
    *,
    hyper_params: Mapping[str, float] | None = None,
    relation: Callable[[PyTree], PyTree] | None = None,
    names: tuple[str, str] = ("left", "right"),
) -> Proof:
    """Proves that two optimizers are the same for all inputs, or shows one on which they differ.

    Both are traced to the programs that run. That they start alike, and that a step from states
    that are alike leads to such states and to the same parameters, is shown for all parameters,
    gradients and states at once: so it holds for any number of steps and any loss.

        proof = prove_equivalence(legacy_optim.Adam(1e-3), optax.adam(1e-3), params)
        assert proof.verdict == "equal over the reals", proof

        proof = prove_equivalence(
            lambda hp: legacy_optim.Adam(hp["rate"], weight_decay=hp["decay"]),
            lambda hp: optax.adamw(hp["rate"], weight_decay=hp["decay"]),
            params,
            hyper_params={"rate": 1e-3, "decay": 0.1},
        )

    Args:
      left: one side, anything that `check_equivalence` takes; its functions must be traceable.
      right: the other.
      params: parameters, or their shapes and dtypes; any pytree of floating-point arrays.
      hyper_params: name -> a number. `left` and `right` are then functions from a mapping of these
        names to a side, and the proof is for all numbers; those given serve for counterexamples.
        Where a side asks in Python whether one is zero, both cases are proved.
      relation: from the left side's state to the right one's, where these are equal optimizers
        with unequal states; by default it is looked for. The state of a transformation is (count,
        params, state), of a legacy definition (params, state), of a pair of functions the same, of
        a `TrainState` the `TrainState`.
      names: what messages call the sides.

    Returns:
      The proof: print it, or ask its `verdict`, one of `identical`, `equal over the reals`,
      `different` and `not decided`.

    Raises:
      ProofError: something does not fit or cannot be traced; the message names side and place.
    """
    pair = as_functions((left, right), hyper_params, names)
    relate = None if relation is None else (lambda hp, state: relation(state))
    return _prove(pair, check_inputs(params, hyper_params), relate, names)


def _prove(
    pair: tuple[MakeSide, MakeSide], inputs: Inputs, relate: Relate | None, names: tuple[str, str]
) -> Proof:
    """The proof of all cases, with those symbols as numbers that have to stay numbers."""
    started = time.perf_counter()
    notes: dict[str, str] = {}
    fixed: dict[str, float] = {}
    while True:
        try:
            cases, kinds = _all_cases(pair, inputs, fixed, relate, names)
            break
        except NotASymbol as error:
            fixed[error.name] = inputs.numbers[error.name]
            notes[error.name] = f"{error.name} = {inputs.numbers[error.name]!r}, since {error}"
    return Proof(
        names,
        kinds,
        symbols=tuple(name for name in inputs.numbers if name not in notes),
        cases=tuple(cases),
        seconds=time.perf_counter() - started,
        notes=tuple(notes.values()),
        sides=pair,
    )


def _all_cases(
    pair: tuple[MakeSide, MakeSide],
    inputs: Inputs,
    numbers_kept: Mapping[str, float],
    relate: Relate | None,
    names: tuple[str, str],
) -> tuple[list[CaseProof], tuple[str, str]]:
    pending: list[dict[str, float]] = [dict(numbers_kept)]
    done: list[dict[str, float]] = []
    proofs, kinds = [], ("", "")
    while pending:
        fixed = pending.pop(0)
        if fixed in done:
            continue
        if len(done) == _MOST_CASES:
            raise ProofError(f"the sides distinguish more than {_MOST_CASES} cases in Python")
        done.append(fixed)
        symbolic = {name: number for name, number in inputs.numbers.items() if name not in fixed}
        case_inputs = check_inputs(inputs.params, symbolic, {**inputs.fixed, **fixed})
        left, right = (trace_side(m, case_inputs, n) for m, n in zip(pair, names, strict=True))
        for make, program in zip(pair, (left, right), strict=True):
            check_numbers(make, program, case_inputs)
        questions = dict.fromkeys((*left.asked, *right.asked))
        pending += [{**fixed, name: number} for name, number in questions]
        kinds = (left.kind, right.kind)
        excluded = tuple(f"{name} != {number:g}" for name, number in questions)
        proofs.append(_case(pair, (left, right), case_inputs, fixed, excluded, relate))
    return proofs, kinds


def _case(
    pair: tuple[MakeSide, MakeSide],
    programs: tuple[Program, Program],
    inputs: Inputs,
    fixed: Mapping[str, float],
    excluded: tuple[str, ...],
    relate: Relate | None,
) -> CaseProof:
    relation = None
    if relate is not None:
        relation = trace_relation(relate, pair[0], inputs, programs[1])
    elif (mapping := _correspondence_of(pair, inputs, programs)) is not None:
        with contextlib.suppress(ProofError):  # of other settings, which hold something else
            relation = trace_relation(mapping, pair[0], inputs, programs[1])

    hints = Hints() if relation is None else induction.given_relation(relation, programs)

    def done(
        best: Induction, counterexample: Counterexample | None = None, stopped: str = ""
    ) -> CaseProof:
        return CaseProof(fixed, excluded, best, counterexample, stopped)

    best = induction.prove(World(inputs), programs, Level.IDENTICAL, hints)
    if best.level is Level.IDENTICAL:
        return done(best)
    stopped, search = "", Search(pair, inputs)
    try:
        if (example := search.find_quickly()) is not None:
            return done(best, counterexample=example)
    except NoRule as error:
        search, stopped = None, str(error)
    best = induction.prove(World(inputs), programs, Level.REALS, hints)
    if best.level is not Level.UNKNOWN:
        return done(best)
    for other in _with_guesses(inputs, programs) if relation is None else ():
        if other.level is not Level.UNKNOWN:
            return done(other)
    example = None
    if search is not None:
        try:
            example = search.find_patiently()
            stopped = f"no counterexample among {search.tried} inputs"
            if example is None and inputs.numbers:
                example, tried = _find_with_other_settings(pair, inputs, programs)
                settings = (f"{name} = {number:g}" for name, number in inputs.numbers.items())
                stopped += f", with {', '.join(settings)}, nor a few with {tried} other settings"
        except NoRule as error:
            stopped = str(error)
    return done(best, counterexample=example, stopped=stopped)


def _find_with_other_settings(
    pair: tuple[MakeSide, MakeSide], inputs: Inputs, programs: tuple[Program, Program]
) -> tuple[Counterexample | None, int]:
    """Returns a counterexample with other hyper-parameters, and how many of these were tried."""
    tried = 0
    for numbers in other_settings(inputs.numbers, programs):
        tried += 1
        with contextlib.suppress(ProofError, NoRule):  # a side may refuse a number
            example = Search(pair, replace(inputs, numbers=numbers)).find_quickly()
            if example is not None:
                return example, tried
    return None, tried


def _with_guesses(inputs: Inputs, sides: tuple[Program, Program]) -> Iterator[Induction]:
    """Inductions with relations that are more than equalities."""
    try:
        guesses = tuple(Fits(sides, inputs).guesses())
    except (NoRule, Unclear, ValueError, ZeroDivisionError, OverflowError):
        guesses = ()
    for hints in (Hints(guesses, by_state=True), Hints(guesses, after_first=True)):
        if induction.may_help(World(inputs), sides, hints):
            for level in (Level.IDENTICAL, Level.REALS)[hints.after_first :]:
                yield induction.prove(World(inputs), sides, level, hints)


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
    tx = pair[1](numbers)
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
