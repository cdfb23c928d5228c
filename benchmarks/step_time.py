"""How long an optimizer's step takes: the old API, the exact recipe, the stock one, and PyTorch's.

The optimizer's step alone, without a model: gradients are given. Each step is compiled once, its
state is donated, and the clock stops when the result is there. Beside them, in the same turns,
stands the physical limit: as many bytes read and written as a step must move. What two of this
package's own sides do is counted in their compiled programs as well.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax

from benchmarks import problem, torch_fused
from benchmarks.figures import NotRun, Outcome, ratios
from benchmarks.memory_speed import mover
from benchmarks.programs import compared, work_of
from benchmarks.timing import Stepper
from equivalence_tests.sides import side as sides
from optax_bridge.correspondence import ENTRIES, Entry, UnsupportedSetting, recipe_of
from optax_bridge.optimizers.selectors import NothingSelectedWarning

SECTION = "step time"
BAR = 1.02
# The 400 leaves take long to compile, and their step's time lies in the number of kernels, which
# the dtype does not change.
RUNS = (
    ("16 x 1024x1024", "float32"),
    ("16 x 1024x1024", "bfloat16"),
    ("transformer", "float32"),
    ("transformer", "bfloat16"),
    ("400 x 64x64", "float32"),
)
_PAIRS = (
    ("exact", "legacy", BAR),
    ("exact", "stock", BAR),
    ("exact", "torch", 1.0),
    ("exact", "memory", None),
)


def sides_of(entry: Entry) -> list[sides.Side]:
    """The sides of an entry's first case; stock only where public Optax has a part in it."""
    case = entry.cases[0]
    definition = entry.definition(case, case.learning_rate)
    found = [sides.legacy(definition), sides.exact(definition)]
    try:
        recipe, _ = recipe_of(definition, exact=False)
    except UnsupportedSetting:
        return found
    return [*found, sides.stock(definition, recipe)]


def steppers(entry: Entry, params: Any) -> dict[str, Stepper]:
    """The compiled steps of an entry's sides, by the sides' names."""
    grads = problem.gradients(params)
    made = {}
    with warnings.catch_warnings(action="ignore", category=NothingSelectedWarning):
        for side in sides_of(entry):  # of which groups select by names that no such tree has

            def step(state: Any, grads: Any, side: sides.Side = side) -> Any:
                return side.step(state, grads, None)

            made[side.name] = Stepper(step, side.init(params), grads)
    return made


def moved_bytes(stepper: Stepper) -> int:
    """Bytes that a step must move: it reads state and gradients, and writes the state."""
    state, grads = stepper.state_and_gradients
    size = [sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (state, grads)]
    return 2 * size[0] + size[1]


def measure(quick: bool) -> Iterator[Outcome]:
    """Every optimizer, tree and dtype; quick: one optimizer and a tiny tree."""
    entries = [ENTRIES["adam"]] if quick else list(ENTRIES.values())
    runs = ((problem.QUICK_TREE, "float32"),) if quick else RUNS
    if not torch_fused.has_torch():
        yield NotRun(SECTION, "PyTorch's fused optimizers", "torch is not installed")
    for tree, dtype in runs:
        params = problem.tree(tree, dtype)
        for entry in entries:
            yield from of_entry(entry, params, f"{entry.name}, {tree}, {dtype}", 2 if quick else 40)


def of_entry(entry: Entry, params: Any, subject: str, repeats: int) -> Iterator[Outcome]:
    """The ratios of one optimizer on one tree."""
    made = steppers(entry, params)
    candidates: dict[str, Callable[[], float]] = {**made}
    candidates["memory"] = mover(moved_bytes(made["exact"]))
    if (fused := torch_fused.torch_stepper(entry, params)) is not None:
        candidates["torch"] = fused
    work = {name: work_of(stepper.program) for name, stepper in made.items()}
    for figure in ratios(SECTION, subject, candidates, _PAIRS, repeats=repeats, seconds=2.5):
        one, other = figure.what.split(" / ")
        if other in work:
            same, said = compared(work[one], work[other])
            figure = replace(figure, same_work=same, work=said)
        elif other == "torch":
            dtype = jax.tree.leaves(params)[0].dtype.name
            figure = replace(figure, note=torch_fused.how(entry, dtype))
        yield figure
