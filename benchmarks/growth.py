"""How tracing, compiling and stepping grow with the leaves and with the groups."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import optax

import optax_bridge
from benchmarks import problem
from benchmarks.figures import Outcome, ratios
from benchmarks.timing import Stepper

SECTION = "growth"
RATE = 1e-3
LEAVES = (10, 100, 1000)
TRACED = 10_000  # XLA would compile for minutes, whatever the optimizer
GROUPS = (1, 8, 64)
LEAVES_IN_GROUPS = 128
# Times to compile vary by a tenth: to tell 3 % takes ten turns and more. How often each side is
# built first, at most, and after which time no further turn begins.
BUILDS = 16
BUILD_SECONDS = 30

Transformation = optax.GradientTransformation


def measure(quick: bool) -> Iterator[Outcome]:
    """Leaves, then groups; quick: few of either."""
    counts = (2, 4) if quick else LEAVES
    for leaves in counts:
        yield from _stages(f"{leaves} leaves", problem.equal_leaves(leaves, 4, 4), _plain(), quick)
    yield from _linear(counts if quick else (*LEAVES, TRACED), 1 if quick else 2)
    params = problem.equal_leaves(4 if quick else LEAVES_IN_GROUPS, 4, 4)
    for count in (2,) if quick else GROUPS:
        yield from _stages(f"{count} groups, {len(params)} leaves", params, _grouped(count), quick)


def _plain() -> dict[str, Transformation]:
    return {"exact": optax_bridge.adam(RATE), "stock": optax.adam(RATE)}


def _grouped(count: int) -> dict[str, Transformation]:
    """The same groups three ways: leaf number modulo `count`, each with a rate of its own."""

    def number(path: str) -> int:
        return int(path.rpartition("_")[2]) % count

    def chosen(group: int) -> Callable[[Any], Any]:
        return lambda params: {name: number(name) == group for name in params}

    rates = [RATE * (1 + group) for group in range(count)]
    selectors = [
        optax_bridge.path_mask(lambda path, _, group=group: number(path) == group)
        for group in range(count)
    ]
    parts = zip(selectors, map(optax_bridge.adam, rates), strict=True)
    masked = (optax.masked(optax.adam(rate), chosen(i)) for i, rate in enumerate(rates))
    return {
        "exact": optax_bridge.multi_optimizer(*parts),
        "optax.partition": optax.partition(
            {str(i): optax.adam(rate) for i, rate in enumerate(rates)},
            lambda params: {name: str(number(name)) for name in params},
        ),
        "chain of masks": optax.chain(*masked),
    }


def _stages(
    subject: str, params: Any, sides: dict[str, Transformation], quick: bool
) -> Iterator[Outcome]:
    """Trace, compile and step of transformations, the first one over each other.

    A program's step depends by some 3 % on when it was built in its process. So each is built
    several times, by turns first and last, and the first so many are timed, each at the second of
    two steps, as in a training loop.
    """
    grads = problem.gradients(params)
    made: dict[str, list[Stepper]] = {name: [] for name in sides}

    def compiling(name: str, tx: Transformation) -> Callable[[], float]:
        def compile_once() -> float:
            made[name].append(Stepper(_step(tx), _state(tx, params), grads))
            return made[name][-1].compile_seconds - made[name][-1].trace_seconds

        return compile_once

    first, *others = sides
    pairs = [(first, other, 1.0) for other in others]
    compiled = {name: compiling(name, tx) for name, tx in sides.items()}
    figures = functools.partial(ratios, SECTION, pairs=pairs)
    builds = (1 if quick else BUILDS) * len(sides)
    yield from figures(
        f"compile, {subject}", compiled, repeats=builds, warm_up=0, seconds=BUILD_SECONDS
    )
    times = [[built.trace_seconds for built in made[name]] for name in sides]
    traced = {name: iter(of).__next__ for name, of in zip(sides, times, strict=True)}
    yield from figures(
        f"trace, {subject}", traced, repeats=len(times[0]), warm_up=0, seconds=math.inf
    )
    repeats = 1 if quick else 2
    first_built = {name: steppers[: repeats * len(sides)] for name, steppers in made.items()}

    def stepping(name: str) -> Callable[[], float]:
        return lambda: statistics.fmean((step(), step())[1] for step in first_built[name])

    stepped = {name: stepping(name) for name in sides}
    yield from figures(f"step, {subject}", stepped, repeats=20 * repeats, seconds=math.inf)


def _linear(counts: tuple[int, ...], repeats: int) -> Iterator[Outcome]:
    """The time to trace a leaf, with more leaves over with fewer: 1 where it is linear."""
    tx = optax_bridge.adam(RATE)

    def tracing(leaves: int) -> Callable[[], float]:
        params = jax.eval_shape(lambda: problem.equal_leaves(leaves, 4, 4))
        state = jax.eval_shape(lambda p: _state(tx, p), params)

        def trace() -> float:
            start = time.perf_counter()
            jax.jit(_step(tx)).lower(state, params)
            return (time.perf_counter() - start) / leaves

        return trace

    candidates = {f"{leaves} leaves": tracing(leaves) for leaves in counts}
    names = list(candidates)
    pairs = [(more, fewer, None) for fewer, more in itertools.pairwise(names)]
    yield from ratios(
        SECTION, "trace, for each leaf", candidates, pairs, repeats=repeats, warm_up=0
    )


def _state(tx: Transformation, params: Any) -> Any:
    return optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)


def _step(tx: Transformation) -> Callable[[Any, Any], Any]:
    del tx  # a function of its own for each, so that no trace is found again
    return lambda state, grads: state.apply_gradients(grads=grads)
