"""Converts a user's gradients into a function of the step and the parameters."""

import itertools
import operator
from collections.abc import Callable, Iterator

import jax
import numpy as np

from equivalence_tests.compare.trees import first_mismatch, signature
from equivalence_tests.sides.adapt import EquivalenceError, on_host
from equivalence_tests.sides.inputs import problems
from optax_bridge._text import did_you_mean
from optax_bridge.metadata.trees import Params, PyTree, Updates

# Gradients of shape (steps, ...) at each leaf; or a list or an iterator of trees like the
# parameters, one for each step; or the name of a stream; or a function of the step (from 0) and the
# parameters, which each side then calls with its own parameters: a closed loop.
Gradients = object

Stream = Callable[[int, Params], Updates]

_DEFAULT_STEPS = 160  # what goes wrong after the hundredth step is seen as well


def resolve(gradients: Gradients, params: Params, steps: int | None) -> tuple[Stream, int]:
    """The gradients as a function, and the number of steps."""
    steps = _checked_steps(steps)
    if callable(gradients):
        return gradients, steps or _DEFAULT_STEPS
    if isinstance(gradients, str):
        if gradients not in problems.NAMES:
            raise EquivalenceError(
                f"gradients={gradients!r}: expected one of {', '.join(problems.NAMES)}, a "
                "tree, or a function of step and parameters"
                f"{did_you_mean(gradients, problems.NAMES)}"
            )
        steps = steps or _DEFAULT_STEPS
        tree = problems.gradients(params, steps, gradients)
    else:
        if isinstance(gradients, Iterator):
            gradients = list(itertools.islice(gradients, steps))
        tree = _stack(gradients, params)
        steps = _enough(tree, steps)
    return lambda step, _: jax.tree.map(lambda leaf: leaf[step], tree), steps


def _checked_steps(steps: int | None) -> int | None:
    if steps is None:
        return None
    try:
        steps = operator.index(steps)
    except TypeError:
        raise EquivalenceError(f"steps is {steps!r}; expected a whole number") from None
    if steps < 1:
        raise EquivalenceError(f"steps is {steps}; expected at least 1")
    return steps


def _stack(gradients: Updates, params: Params) -> Updates:
    """Gradients of shape (steps, ...) at each leaf, checked against the parameters."""
    tree, wanted = on_host(gradients), signature(params, "gradients")
    structure = jax.tree.structure(params)
    if isinstance(tree, list | tuple) and tree and jax.tree.structure(tree) != structure:
        for step, one in enumerate(tree, 1):
            if wrong := first_mismatch(wanted, signature(one, "gradients")):
                raise EquivalenceError(f"{wrong} (step {step} of the list)")
        return jax.tree.map(lambda *leaves: np.stack(leaves), *tree)
    shapes = signature(tree, "gradients")
    for path, (shape, _) in shapes.items():
        if path in wanted and len(shape) != len(wanted[path][0]) + 1:
            expected = ", ".join(map(str, ("steps", *wanted[path][0])))
            raise EquivalenceError(
                f"{path}: expected shape ({expected}), a gradient for each step along the first "
                f"axis, found {shape}"
            )
    each = {path: (shape[1:], dtype) for path, (shape, dtype) in shapes.items()}
    if wrong := first_mismatch(wanted, each):
        raise EquivalenceError(f"{wrong}; gradients must be like params, one for each step")
    return tree


def _enough(tree: PyTree, steps: int | None) -> int:
    lengths = {
        jax.tree_util.keystr(path): len(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    path, longest = min(lengths, key=lambda path: lengths[path]), max(lengths.values())
    wanted = steps or 1
    if lengths[path] < wanted:
        raise EquivalenceError(
            f"gradients{path}: has {lengths[path]} steps along its first axis, expected {wanted} "
            "or more"
        )
    if lengths[path] < longest:
        raise EquivalenceError(
            f"gradients{path}: has {lengths[path]} steps along its first axis, expected {longest} "
            "as other leaves have"
        )
    return steps or lengths[path]
