"""The cases of the matrix, blocks of products of axes with an id each, and the sides of a case."""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace

import jax
import jax.numpy as jnp

import legacy_optim
from equivalence_tests.sides.side import Side, legacy, train_state
from equivalence_tests.suite.case import Case
from equivalence_tests.suite.matrix import axes
from equivalence_tests.suite.matrix.axes import DTYPES, STREAMS, TREES
from optax_bridge.correspondence import ENTRIES, UnsupportedSetting, Verdict, choose_recipe
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.correspondence.recipe import build
from optax_bridge.metadata.trees import Leaf, PyTree, Updates
from optax_bridge.optimizers.multi_optimizer import is_matrix, is_vector


@dataclass(frozen=True, order=True)
class MatrixCase(Case):
    """One case: where it stands on each axis."""

    axes = (
        ("entry",), ("tree",), ("dtype",), ("rate",), ("drive",), ("recipe",), ("mode",),
        ("stream",),
    )  # fmt: skip

    entry: str
    setting: int = 0
    tree: str = "plain"
    dtype: str = "float32"
    rate: str = "constant"
    drive: str = "scan"
    recipe: RecipeKind = "exact"
    mode: str = "free"
    stream: str = "normal"

    def __str__(self) -> str:
        return "-".join(["matrix", *(str(at).replace("-", "_") for at in astuple(self))])

    @property
    def program(self) -> "MatrixCase":
        """The values that decide the compiled programs: cases that agree here share them."""
        return replace(self, recipe="exact", mode="free", stream="normal")

    @property
    def column(self) -> str:
        """The axis that this case is about."""
        if self.tree != "plain":  # before its drive: the thousand leaves cannot be compiled
            return self.tree
        if self.drive != "scan":
            return self.drive
        if self.rate != "constant":
            return self.rate
        if self.dtype != "float32":
            return self.dtype
        return self.mode if self.recipe == "exact" else self.recipe


_FEW = ("normal", "mixture", "alternating")

# The second group's rate is twice the first one's.
_FACTORS = (1.0, 2.0)


def matrix() -> list[MatrixCase]:
    """All cases, those that share programs side by side."""
    return sorted(set(_all()), key=lambda case: (case.program, case.recipe, case.mode, case.stream))


def _all() -> Iterator[MatrixCase]:
    for entry, about in ENTRIES.items():
        for setting in range(len(about.cases)):
            case = MatrixCase(entry, setting)
            yield from (replace(case, stream=stream) for stream in STREAMS)
            for stream in ("normal", "mixture", "nan"):
                yield replace(case, mode="resumed", stream=stream)
            yield from _optax(case)
        first = MatrixCase(entry)
        for dtype in DTYPES[1:]:
            yield from (replace(first, dtype=dtype, stream=stream) for stream in STREAMS)
        for tree in TREES:
            if tree == "thousand":  # without a compiler, which would be busy for a minute
                yield replace(first, tree=tree, drive="eager")
            elif tree != "plain" and tree not in about.excluded:
                yield from (replace(first, tree=tree, stream=stream) for stream in STREAMS)
        for rate in ("schedule", "per-call", "per-group"):
            if rate not in about.excluded:
                yield from (replace(first, rate=rate, stream=stream) for stream in _FEW)
        for drive in ("eager", "jit", "donate", "vmap", "sharded", "data-parallel"):
            yield from (replace(first, drive=drive, stream=stream) for stream in _FEW)


def _optax(case: MatrixCase) -> Iterator[MatrixCase]:
    """Recipes of public Optax; those that are another optimizer only where that must show."""
    entry = ENTRIES[case.entry]
    about = entry.cases[case.setting]
    try:
        choice = choose_recipe(entry.definition(about, about.learning_rate), "optax")
    except UnsupportedSetting:
        return
    if choice.claim.verdict is Verdict.DIFFERENT:
        yield replace(case, recipe="optax", stream="mixture")
        return
    yield from (replace(case, recipe="optax", stream=stream) for stream in STREAMS)
    for dtype in set(DTYPES[1:]) & choice.dtypes:
        yield replace(case, recipe="optax", dtype=dtype, stream="mixture")


def peak(case: MatrixCase) -> float:
    """The learning rate of a case, the largest one where it changes."""
    return ENTRIES[case.entry].cases[case.setting].learning_rate


def definition(case: MatrixCase, learning_rate: Leaf = None) -> legacy_optim.OptimizerDef:
    """The legacy definition of a case."""
    entry = ENTRIES[case.entry]
    about = entry.cases[case.setting]
    rate = about.learning_rate if case.rate == "constant" else learning_rate
    base = entry.definition(about, rate)
    if case.rate != "per-group":
        return base
    return legacy_optim.MultiOptimizer(
        (legacy_optim.ModelParamTraversal(is_matrix), base),
        (legacy_optim.ModelParamTraversal(is_vector), legacy_optim.Momentum()),
    )


def legacy_side(case: MatrixCase) -> Side:
    """The legacy optimizer."""
    base = definition(case)
    scheduled = schedule(case)

    def step(optimizer: PyTree, grads: Updates, rate: jax.Array | float) -> PyTree:
        if scheduled is not None:
            return optimizer.apply_gradient(grads, learning_rate=scheduled(optimizer.state.step))
        if case.rate == "per-call":
            return optimizer.apply_gradient(grads, learning_rate=rate)
        if case.rate == "per-group":
            groups = zip(base.hyper_params, _FACTORS, strict=True)
            rates = [hp.replace(learning_rate=factor * rate) for hp, factor in groups]
            return optimizer.apply_gradient(grads, hyper_params=rates)
        return optimizer.apply_gradient(grads)

    return replace(legacy(base), step=step)


def recipe_side(case: MatrixCase) -> Side:
    """A TrainState with the case's recipe."""
    call = choose_recipe(definition(case, schedule(case)), case.recipe).call
    side = train_state(case.recipe, definition(case), build(call))

    def step(state: PyTree, grads: Updates, rate: jax.Array | float) -> PyTree:
        if case.rate == "per-call":
            return state.apply_gradients(grads=grads, learning_rate=rate)
        if case.rate == "per-group":
            rates = [{"learning_rate": factor * rate} for factor in _FACTORS]
            return state.apply_gradients(grads=grads, hyper_params=rates)
        return state.apply_gradients(grads=grads)

    return replace(side, step=step)


def schedule(case: MatrixCase) -> Callable[[Leaf], jax.Array] | None:
    """The learning rate as a function of the step, where the case has it so, else None."""
    if case.rate != "schedule":
        return None
    table = axes.rates(peak(case))
    return lambda count: jax.lax.dynamic_index_in_dim(
        jnp.asarray(table), jnp.asarray(count), keepdims=False
    )
