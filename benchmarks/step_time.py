"""The time and the memory of an optimizer's step: the old API, the exact recipe, and Optax.

The optimizer's step alone, without a model: gradients are given. Each step is compiled once, its
state is donated, and the clock stops when the result is there. One row compares Adam with PyTorch's
fused step.
"""

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator

import jax
import numpy as np

import optax_bridge
from benchmarks import problem
from benchmarks.figures import Figure, NotRun, Outcome, exactly, ratios
from benchmarks.timing import Stepper
from equivalence_tests.sides import side as sides
from optax_bridge.correspondence import ENTRIES, Entry, UnsupportedSetting, choose_recipe
from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates
from optax_bridge.optimizers.selectors import NothingSelectedWarning

SECTION = "step"
BAR = 1.02
MEMORY_BAR = 1.02
# To compile 400 leaves takes long, and the dtype does not change the number of their kernels.
RUNS = (
    ("16 x 1024x1024", "float32"),
    ("16 x 1024x1024", "bfloat16"),
    ("400 x 64x64", "float32"),
)
_PAIRS = (("exact", "legacy", BAR), ("exact", "optax", BAR))
_TORCH = "adam, 16 x 1024x1024, float32, against PyTorch's fused step"


def sides_of(entry: Entry) -> list[sides.Side]:
    """Returns the sides of an entry's first case; Optax's where public Optax has a part in it."""
    case = entry.cases[0]
    definition = entry.definition(case, case.learning_rate)
    legacy_and_exact = [sides.legacy(definition), sides.exact(definition)]
    try:
        recipe = choose_recipe(definition, "optax").call
    except UnsupportedSetting:
        return legacy_and_exact
    return [*legacy_and_exact, sides.public_optax(definition, recipe)]


def steppers(entry: Entry, params: Params) -> dict[str, Stepper]:
    """Returns the compiled steps of an entry's sides, by the sides' names."""
    grads = problem.gradients(params)
    compiled = {}
    with warnings.catch_warnings(action="ignore", category=NothingSelectedWarning):
        for side in sides_of(entry):  # of which groups select by names that no such tree has

            def step(state: PyTree, grads: Updates, side: sides.Side = side) -> PyTree:
                return side.step(state, grads, None)

            compiled[side.name] = Stepper(step, side.init(params), grads)
    return compiled


def measure(quick: bool) -> Iterator[Outcome]:
    """Every optimizer, tree and dtype; quick: one optimizer and a tiny tree."""
    entries = [ENTRIES["adam"]] if quick else list(ENTRIES.values())
    for tree, dtype in ((problem.QUICK_TREE, "float32"),) if quick else RUNS:
        params = problem.tree(tree, dtype)
        for entry in entries:
            subject = f"{entry.name}, {tree}, {dtype}"
            candidates: dict[str, Callable[[], float]] = {**steppers(entry, params)}
            repeats = 2 if quick else 40
            yield from ratios(SECTION, subject, candidates, _PAIRS, repeats=repeats, seconds=2.5)
    yield from _against_torch(quick)


def _against_torch(quick: bool) -> Iterator[Outcome]:
    if importlib.util.find_spec("torch") is None:
        yield NotRun(SECTION, _TORCH, "torch is not installed")
        return
    params = problem.tree(problem.QUICK_TREE if quick else "16 x 1024x1024")
    tx = optax_bridge.adam(1e-3, weight_decay=0.01)
    state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
    stepper = Stepper(lambda s, g: s.apply_gradients(grads=g), state, problem.gradients(params))
    candidates = {"exact": stepper, "torch": _torch_step(params)}
    yield from ratios(
        SECTION, _TORCH, candidates, [("exact", "torch", None)], repeats=2 if quick else 40
    )


def _torch_step(params: Params) -> Callable[[], float]:
    import torch  # pyright: ignore[reportMissingImports] slow to import, needed nowhere else

    rng = np.random.default_rng(1)

    def tensor(leaf: Leaf) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(leaf.shape).astype(np.float32))

    leaves = [torch.nn.Parameter(tensor(leaf)) for leaf in jax.tree.leaves(params)]
    for leaf in leaves:
        leaf.grad = tensor(leaf)
    optimizer = torch.optim.AdamW(leaves, lr=1e-3, weight_decay=0.01, fused=True)

    def step() -> float:
        start = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - start

    return step


def measure_memory(quick: bool) -> Iterator[Outcome]:
    """Every optimizer's plan; quick: Adam's, on a tiny tree."""
    params = problem.tree(problem.QUICK_TREE if quick else "16 x 1024x1024")
    for entry in [ENTRIES["adam"]] if quick else ENTRIES.values():
        planned = {name: _planned_bytes(step) for name, step in steppers(entry, params).items()}
        for other in ("legacy", "optax"):
            if other in planned:
                ratio = exactly(planned["exact"] / planned[other])
                base = planned[other] / problem.size(params)
                sides = f"exact / {other}"
                yield Figure("memory", entry.name, sides, ratio, base, "bytes", MEMORY_BAR)


def _planned_bytes(stepper: Stepper) -> int:
    """Returns the bytes of arguments, of results that share no buffer with them, and of buffers."""
    plan: PyTree = stepper.program.memory_analysis()
    results = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.argument_size_in_bytes + results + plan.temp_size_in_bytes
