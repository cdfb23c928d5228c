"""`prove_equivalence`: are two optimizers the same for all inputs?"""

import time
from collections.abc import Callable, Iterator, Mapping

from equivalence_tests.proof.counterexample.example import Counterexample
from equivalence_tests.proof.counterexample.search import Search, find_with_other_settings
from equivalence_tests.proof.errors import NoRule, ProofError, Unclear
from equivalence_tests.proof.induction import induction
from equivalence_tests.proof.induction.equality import Level
from equivalence_tests.proof.induction.guessed_relations import Fits
from equivalence_tests.proof.induction.induction import Hints, Induction
from equivalence_tests.proof.induction.world import World
from equivalence_tests.proof.reading.cases import Case, read_cases
from equivalence_tests.proof.reading.sides import (
    Inputs,
    MakeSide,
    Program,
    check_inputs,
)
from equivalence_tests.proof.reading.symbols import NotASymbol
from equivalence_tests.proof.result import CaseProof, Proof
from equivalence_tests.sides.adapt import SideLike
from optax_bridge.metadata.trees import Params, PyTree


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

    Both are traced to the programs that run. The proof shows that they start in related states, and
    that a step from related states leads to related states and the same parameters, for all
    parameters, gradients and states: so it holds for any number of steps and any loss.

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
        names to a side, and the proof covers all numbers; yours help to find counterexamples. If a
        side tests in Python whether one is zero, both cases are proved.
      relation: a function from the left side's state to the right one's, for equal optimizers with
        different states; by default the prover searches for one. The state of a transformation is
        (count, params, state), of a legacy definition or a pair of functions (params, state), of a
        `TrainState` the `TrainState`.
      names: the sides' names in messages.

    Returns:
      The proof: print it, or ask its `verdict`, one of `identical`, `equal over the reals`,
      `different` and `not decided`.

    Raises:
      ProofError: something does not fit or cannot be traced; the message names side and place.
    """
    pair = _as_functions((left, right), hyper_params, names)
    relate = None if relation is None else (lambda hp, state: relation(state))
    inputs, started = check_inputs(params, hyper_params), time.perf_counter()
    notes: dict[str, str] = {}
    fixed: dict[str, float] = {}  # symbols that have to stay numbers
    while True:
        try:
            cases = read_cases(pair, inputs, fixed, relate, names)
            break
        except NotASymbol as error:
            fixed[error.name] = inputs.numbers[error.name]
            notes[error.name] = f"{error.name} = {inputs.numbers[error.name]!r}, since {error}"
    return Proof(
        names=names,
        kinds=(cases[0].programs[0].kind, cases[0].programs[1].kind),
        symbols=tuple(name for name in inputs.numbers if name not in notes),
        cases=tuple(_prove_case(pair, case) for case in cases),
        seconds=time.perf_counter() - started,
        notes=tuple(notes.values()),
        sides=pair,
    )


def _as_functions(
    pair: tuple[SideLike | MakeSide, SideLike | MakeSide],
    hyper_params: Mapping[str, float] | None,
    names: tuple[str, str] = ("left", "right"),
) -> tuple[MakeSide, MakeSide]:
    """Returns both sides as functions of hyper-parameters, which they are where there are some."""
    lhs, rhs = pair
    if hyper_params is None:
        return (lambda hp: lhs), (lambda hp: rhs)
    for name, side in zip(names, pair, strict=True):
        if not callable(side):
            raise ProofError(
                f"{name} side: with hyper_params it has to be a function of them; found "
                f"{type(side).__name__}. Write lambda hp: ...(hp['learning_rate'])"
            )
    return lhs, rhs  # pyright: ignore[reportReturnType]


def _prove_case(pair: tuple[MakeSide, MakeSide], case: Case) -> CaseProof:
    inputs, programs, relation = case.inputs, case.programs, case.relation
    hints = Hints() if relation is None else induction.given_relation(relation, programs)

    def done(
        best: Induction, counterexample: Counterexample | None = None, stopped: str = ""
    ) -> CaseProof:
        return CaseProof(case.fixed, case.excluded, best, counterexample, stopped)

    best = induction.prove(World(inputs), programs, Level.IDENTICAL, hints)
    if best.level is Level.IDENTICAL:
        return done(best)
    stopped, search = "", Search(pair, inputs, None if inputs.numbers else programs)
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
                example, tried = find_with_other_settings(pair, inputs, programs)
                settings = (f"{name} = {number:g}" for name, number in inputs.numbers.items())
                stopped += f", with {', '.join(settings)}, nor a few with {tried} other settings"
        except NoRule as error:
            stopped = str(error)
    return done(best, counterexample=example, stopped=stopped)


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
