"""Growth of tracing, compiling and stepping with the leaves and with the groups."""

import functools
import math
import statistics
from collections.abc import Callable, Iterator

import optax

import optax_bridge
from benchmarks import problem
from benchmarks.figures import Outcome, ratios
from benchmarks.timing import Stepper
from optax_bridge.metadata.trees import Params, PyTree

SECTION = "growth"
RATE = 1e-3
LEAVES = (10, 100, 1000)
GROUPS = (1, 8, 64)
LEAVES_IN_GROUPS = 128
# Times to compile vary by a tenth, so that to tell 3 % takes ten turns and more: how often each
# side is built first, at most, and after which time no further turn begins.
BUILDS = 16
BUILD_SECONDS = 30

Transformation = optax.GradientTransformation


def measure(quick: bool) -> Iterator[Outcome]:
    """Leaves, then groups; quick: few of either."""
    for leaves in (2,) if quick else LEAVES:
        sides = {"exact": optax_bridge.adam(RATE), "optax": optax.adam(RATE)}
        yield from _stages(f"{leaves} leaves", problem.equal_leaves(leaves, 4, 4), sides, quick)
    params = problem.equal_leaves(4 if quick else LEAVES_IN_GROUPS, 4, 4)
    for count in (2,) if quick else GROUPS:
        subject = f"{count} groups, {len(params)} leaves"
        yield from _stages(subject, params, _group(count), quick)


def _group(count: int) -> dict[str, Transformation]:
    """Returns the same groups three ways: leaf number modulo `count`, each with its own rate."""

    def number(path: str) -> int:
        return int(path.rpartition("_")[2]) % count

    def mask(group: int) -> Callable[[PyTree], PyTree]:
        return lambda params: {name: number(name) == group for name in params}

    rates = [RATE * (1 + group) for group in range(count)]
    selectors = [
        optax_bridge.path_mask(lambda path, _, group=group: number(path) == group)
        for group in range(count)
    ]
    parts = zip(selectors, map(optax_bridge.adam, rates), strict=True)
    masked = (optax.masked(optax.adam(rate), mask(i)) for i, rate in enumerate(rates))
    return {
        "exact": optax_bridge.multi_optimizer(*parts),
        "optax.partition": optax.partition(
            {str(i): optax.adam(rate) for i, rate in enumerate(rates)},
            lambda params: {name: str(number(name)) for name in params},
        ),
        "chain of masks": optax.chain(*masked),
    }


def _stages(
    subject: str, params: Params, sides: dict[str, Transformation], quick: bool
) -> Iterator[Outcome]:
    """Yields compile, trace and step of the first side over each other one."""
    grads = problem.gradients(params)
    built: dict[str, list[Stepper]] = {name: [] for name in sides}

    def build(name: str) -> float:
        state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=sides[name])
        # A function of its own each time, so that JAX does not reuse a trace.
        built[name].append(Stepper(lambda s, g: s.apply_gradients(grads=g), state, grads))
        return built[name][-1].compile_seconds

    first, *others = sides
    figures = functools.partial(ratios, SECTION, pairs=[(first, name, 1.0) for name in others])
    compiled = {name: functools.partial(build, name) for name in sides}
    builds = (1 if quick else BUILDS) * len(sides)
    yield from figures(
        f"compile, {subject}", compiled, repeats=builds, warm_up=0, seconds=BUILD_SECONDS
    )
    times = [[stepper.trace_seconds for stepper in built[name]] for name in sides]
    traced = {name: iter(seconds).__next__ for name, seconds in zip(sides, times, strict=True)}
    turns = len(times[0])
    yield from figures(f"trace, {subject}", traced, repeats=turns, warm_up=0, seconds=math.inf)
    repeats = 1 if quick else 2
    first_built = {name: steppers[: repeats * len(sides)] for name, steppers in built.items()}

    def stepping(name: str) -> Callable[[], float]:
        return lambda: statistics.fmean((step(), step())[1] for step in first_built[name])

    stepped = {name: stepping(name) for name in sides}
    yield from figures(f"step, {subject}", stepped, repeats=20 * repeats, seconds=math.inf)
