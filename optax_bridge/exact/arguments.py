"""The keyword arguments that a transformation takes per call.

Optax transformations pass every extra argument on to their parts and ignore unknown ones, so a
misspelt `learnig_rate=` would vanish. An `ExactTransformation` names its arguments, and the
signature of a function may. All others are tried: an argument that has no part in a trace of the
step is one that nothing takes.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
import optax

from optax_bridge.checks import check_transformation
from optax_bridge.exact.transformation import ExactTransformation, argument_names, take_step
from optax_bridge.metadata.trees import Extra, Leaf, OptState, Params, PyTree, Updates

P = ParamSpec("P")
R = TypeVar("R")


def accepted_arguments(tx: optax.GradientTransformation) -> frozenset[str] | None:
    """Returns the extra keyword arguments that `tx.update` uses, by records and signatures.

        >>> sorted(accepted_arguments(optax_bridge.adagrad(0.1)))
        ['eps', 'learning_rate']
        >>> accepted_arguments(optax.scale(0.1))
        frozenset()

    Args:
      tx: any transformation, chains and wrappers included.

    Returns:
      Their names; None where that is not known: `optax.chain` takes anything, whether its parts use
      it or not. `unused_arguments` tries.
    """
    check_transformation(tx)
    if isinstance(tx, ExactTransformation):
        names = set(tx.hyper_params)
        for part in map(accepted_arguments, tx.inner):
            if part is None:
                return None
            names |= part
        return frozenset(names)
    return argument_names(tx.update)


def unused_arguments(
    tx: optax.GradientTransformation,
    grads: Updates,
    state: OptState,
    params: Params,
    extra: Mapping[str, Extra],
) -> list[str]:
    """Returns the extra arguments that a step does not use."""
    if not extra:
        return []
    accepted = accepted_arguments(tx)
    if accepted is not None:
        return sorted(extra.keys() - accepted)
    trees: PyTree = (grads, state, params, dict(extra))
    leaves, treedef = jax.tree.flatten(trees)
    described = tuple(_shape(leaf) if _is_numeric(leaf) else leaf for leaf in leaves)
    # A function is not kept in the cache: it may hold a batch.
    find = _find_unused.__wrapped__ if any(map(callable, described)) else _find_unused
    try:
        return list(find(tx, treedef, described))
    except TypeError:  # something that cannot be hashed
        return list(_find_unused.__wrapped__(tx, treedef, described))


@functools.lru_cache(maxsize=64)
def _find_unused(
    tx: optax.GradientTransformation, treedef: Any, leaves: tuple[Leaf, ...]
) -> tuple[str, ...]:
    *_, extra = treedef.unflatten(leaves)
    names = [path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(extra)]
    owners = [None] * (len(leaves) - len(names)) + names  # of each leaf the argument that it is of
    numeric = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]
    used = extra.keys() - {owners[i] for i in numeric}

    def one_step(values: list[Leaf]) -> PyTree:
        leaves_by_index = dict(zip(numeric, values, strict=True))
        for index, (leaf, name) in enumerate(zip(leaves, owners, strict=True)):
            if name is not None and callable(leaf):
                used.discard(name)
                leaves_by_index[index] = _noting(leaf, name, used)
        taken = [leaves_by_index.get(index, leaf) for index, leaf in enumerate(leaves)]
        grads, state, params, extra = treedef.unflatten(taken)
        return take_step(tx, grads, state, params, **extra)

    try:
        jaxpr = jax.make_jaxpr(one_step)([leaves[i] for i in numeric]).jaxpr
    except Exception:  # taking the step will raise it again
        return ()
    read = {id(var) for eqn in jaxpr.eqns for var in eqn.invars} | set(map(id, jaxpr.outvars))
    pairs = zip(jaxpr.invars, numeric, strict=True)
    used |= {owners[index] for var, index in pairs if id(var) in read}
    return tuple(sorted(extra.keys() - used))


def _noting(function: Callable[P, R], name: str, called: set[str]) -> Callable[P, R]:
    """The function, which puts its name into a set when it is called."""

    @functools.wraps(function)
    def noting(*args: P.args, **kwargs: P.kwargs) -> R:
        called.add(name)
        return function(*args, **kwargs)

    return noting


def _is_numeric(leaf: Leaf) -> bool:
    is_number = isinstance(leaf, int | float | complex | jax.ShapeDtypeStruct)
    return is_number or isinstance(getattr(leaf, "dtype", None), np.dtype)


def _shape(leaf: Leaf) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
