"""Any transformation on boxed parameters: boxes off, step, boxes on again with the right names.

Which axes of its parameter an array of the state keeps is derived, not looked up in a list of known
states: its place in the state says whose it is, its shape says which axes, and where two axes are
equally long, a trace under a mesh of named axes does.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_bridge.axis_metadata import (
    Axes,
    Reduced,
    boxed_as,
    check_names,
    has_boxes,
    key_names,
    keystr,
    leaves_with_path,
    unboxed,
    with_axes,
)
from optax_bridge.transformation import ExactTransformation


def with_axis_metadata(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Lets a transformation work on boxed parameters, `optax.adafactor` or `optax.sm3`, say.

    The transformation itself sees arrays in the containers of the parameters, so paths are the same
    with boxes and without. Its state comes in boxes that have the names of the axes that are kept.
    `TrainState` and `multi_optimizer` do this by themselves; the optimizers of `optax_bridge` need
    it not.

    Args:
      tx: any transformation.

    Returns:
      The transformation, whose `init` takes parameters with or without boxes, and whose `update`
      takes gradients with or without boxes, whatever the parameters have.
    """
    if isinstance(tx, ExactTransformation):
        return exact_with_axis_metadata(tx)
    return optax.GradientTransformationExtraArgs(*_init_and_update(tx))


def exact_with_axis_metadata(tx: ExactTransformation) -> ExactTransformation:
    """`with_axis_metadata` for a transformation that has an exact step, which it keeps."""

    def step(grads: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
        args = (unboxed(grads), unboxed(state), unboxed(params))
        new_params, new_state = tx.step(*args, **_unboxed_values(extra))
        return boxed_as(params, new_params), boxed_as(state, new_state)

    return ExactTransformation(*_init_and_update(tx), step, tx.hyper_params, tx.inner)


def _init_and_update(tx: optax.GradientTransformation) -> tuple[Any, Any]:
    with_extra = optax.with_extra_args_support(tx)

    def init(params: Any) -> Any:
        if not has_boxes(params):
            return tx.init(params)
        check_names(params)
        return _boxed_state(tx, unboxed(params), params)

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        template = grads if params is None else params
        raw = None if params is None else unboxed(params)
        args = (unboxed(grads), unboxed(state), raw)
        updates, new_state = with_extra.update(*args, **_unboxed_values(extra))
        return boxed_as(template, updates), boxed_as(state, new_state)

    return init, update


def boxes_handled(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """The transformation, made to handle boxes if it is not one of this project's, which all do."""
    return tx if isinstance(tx, ExactTransformation) else with_axis_metadata(tx)


def state_axes(
    tx: optax.GradientTransformation, params: Any, state: Any
) -> list[tuple[int, Axes] | None]:
    """Whose statistics the leaves of a state are, and which axes they keep.

    Args:
      tx: the transformation.
      params: parameters without boxes; arrays or `jax.ShapeDtypeStruct`s.
      state: what `tx.init(params)` returns, arrays or shapes.

    Returns:
      For each leaf of the state the index of its parameter among the leaves of `params` and the
      axes; None for a leaf that belongs to no parameter.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    by_path = {key_names(p): i for i, (p, _) in enumerate(leaves_with_path(params))}
    flat = jax.tree_util.tree_leaves_with_path(state)
    spans = owners_of([path for path, _ in flat], by_path)
    found: list[tuple[int, Axes] | None] = []
    seen: list[Any] | None = None
    for index, ((path, leaf), span) in enumerate(zip(flat, spans, strict=True)):
        if span is None:
            found.append(None)
            continue
        owner = by_path[key_names(path)[span[0] : span[1]]]
        choices = _embeddings(jnp.shape(leaf), shapes[owner])
        if len(choices) > 1:
            seen = seen if seen is not None else _axes_seen_in_a_trace(tx, params, len(flat))
            choices = [seen[index]] if seen[index] in choices else []
        axes = choices[0] if choices else (None,) * jnp.ndim(leaf)
        found.append((owner, axes))
    return found


def _boxed_state(tx: optax.GradientTransformation, raw: Any, params: Any) -> Any:
    state = tx.init(raw)
    boxes = leaves_with_path(params)
    leaves, treedef = jax.tree.flatten(state)
    placed = []
    for leaf, owner in zip(leaves, state_axes(tx, raw, state), strict=True):
        if owner is None:
            placed.append(leaf)
            continue
        path, box = boxes[owner[0]]
        placed.append(with_axes(box, Reduced(leaf, owner[1]), "params" + keystr(path)))
    return treedef.unflatten(placed)


def _unboxed_values(extra: dict[str, Any]) -> dict[str, Any]:
    """Extra arguments that are trees of gradients, `grad=` for line searches, lose their boxes."""
    return {k: v if callable(v) else unboxed(v) for k, v in extra.items()}


def owners_of(
    paths: list[Any], by_path: dict[tuple[str, ...], Any]
) -> list[tuple[int, int] | None]:
    """Where in the path of each leaf of a state the path of its parameter stands.

    Args:
      paths: the state's.
      by_path: the parameters' paths, as names.

    Returns:
      Start and end of the parameter's path; None for a leaf that belongs to no parameter.
    """
    candidates: list[list[tuple[int, int]]] = []
    covered: dict[tuple[str, ...], set[Any]] = {}
    longest = max(map(len, by_path), default=0)
    for path in paths:
        names, found = key_names(path), []
        for start in range(len(names) + 1):
            for end in range(start, min(len(names), start + longest) + 1):
                if names[start:end] in by_path:
                    found.append((start, end))
                    covered.setdefault(names[:start], set()).add(names[start:end])
        candidates.append(found)
    spans = []
    for path, found in zip(paths, candidates, strict=True):
        names = key_names(path)

        def rank(span: tuple[int, int], path: Any = path, names: Any = names) -> tuple[int, ...]:
            # The fields of a state stand before its parameters' paths; then the longest path, and
            # of a list's index and another list's within it, the one where all parameters are.
            start, end = span
            fields = sum(isinstance(key, jax.tree_util.GetAttrKey) for key in path[end:])
            return (-fields, end - start, len(covered[names[:start]]), -start)

        spans.append(max(found, key=rank, default=None))
    return spans


def _embeddings(shape: tuple[int, ...], param: tuple[int, ...]) -> list[Axes]:
    """The ways in which the axes of a state's array can be axes of its parameter, in order."""
    if shape == param:
        return [tuple(range(len(param)))]
    if len(shape) == len(param) and all(s in (1, p) for s, p in zip(shape, param, strict=True)):
        return [tuple(i if size == param[i] else None for i, size in enumerate(shape))]
    extra = len(shape) - len(param)
    if extra > 0 and shape[extra:] == param:  # a history: as many copies of the parameter
        return [(None,) * extra + tuple(range(len(param)))]
    long = [i for i, size in enumerate(shape) if size != 1]
    found: list[Axes] = []
    for chosen in itertools.combinations(range(len(param)), len(long)):
        if long and all(param[axis] == shape[i] for axis, i in zip(chosen, long, strict=True)):
            places = dict(zip(long, chosen, strict=True))
            found.append(tuple(places.get(i) for i in range(len(shape))))
    return found


def _axes_seen_in_a_trace(
    tx: optax.GradientTransformation, params: Any, leaves: int
) -> list[Axes | None]:
    """The axes of a state's arrays by what flows into them during a step, from types alone.

    Every axis of every parameter is laid over an axis of a mesh that has one device, and sharding
    in types carries the names along. A transformation that cannot be traced so leaves axes
    unnamed: they are replicated, which is never wrong.
    """
    unknown: list[Axes | None] = [None] * leaves
    rank = max((jnp.ndim(leaf) for leaf in jax.tree.leaves(params)), default=0)
    names = tuple(f"axis{index}" for index in range(rank))
    try:
        from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

        mesh = AbstractMesh((1,) * rank, names, axis_types=(AxisType.Explicit,) * rank)

        def marked(leaf: Any) -> Any:
            spec = PartitionSpec(*names[: jnp.ndim(leaf)])
            sharding = NamedSharding(mesh, spec)
            return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf), sharding=sharding)

        def one_step(params: Any) -> Any:
            return tx.update(params, tx.init(params), params)[1]

        with jax.sharding.use_abstract_mesh(mesh):
            state = jax.eval_shape(one_step, jax.tree.map(marked, params))
    except Exception:
        return unknown
    seen: list[Axes | None] = []
    for leaf in jax.tree.leaves(state):
        spec = getattr(leaf.sharding, "spec", ())
        spec = (*spec, *[None] * (leaf.ndim - len(spec)))
        seen.append(tuple(names.index(name) if name in names else None for name in spec))
    return seen if len(seen) == leaves else unknown
