"""The axes of their parameters that the arrays of a transformation's state keep.

That is derived, not looked up in a list of known states. An array's place in the state says whose
it is, and its shape says which axes it keeps. Where two axes are equally long, shapes in which they
are not tell them apart; where the transformation itself chooses by length, a trace of a step does,
under a mesh of named axes.
"""

import itertools
import warnings
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath

from optax_bridge.metadata.axis_metadata import (
    Axes,
    box_of,
    boxed_like,
    boxes_remembered,
    is_box,
    leaves_with_path,
    unboxed,
)
from optax_bridge.metadata.paths import key_names, keystr
from optax_bridge.metadata.trees import Leaf, OptState, Params


def state_axes(
    tx: optax.GradientTransformation, params: Params, state: OptState
) -> list[tuple[int, Axes] | None]:
    """The parameter of each leaf of a state, and the axes that the leaf keeps."""
    flat_params = leaves_with_path(params)
    shapes = [jnp.shape(leaf) for _, leaf in flat_params]
    by_path = {key_names(path): index for index, (path, _) in enumerate(flat_params)}
    flat = leaves_with_path(state)
    spans = owners_of([path for path, _ in flat], by_path)
    owners: list[tuple[int, Axes] | None] = []
    unclear: dict[int, list[Axes]] = {}
    for index, ((path, leaf), span) in enumerate(zip(flat, spans, strict=True)):
        if span is None or is_box(leaf):
            owners.append(None)
            continue
        owner = by_path[key_names(path)[span[0] : span[1]]]
        choices = _embeddings(jnp.shape(leaf), shapes[owner])
        if len(choices) > 1:
            unclear[index] = choices
        owners.append((owner, choices[0] if choices else (None,) * jnp.ndim(leaf)))
    if unclear:
        _settle(tx, params, [leaf for _, leaf in flat], owners, unclear)
    for index in unclear:
        path, leaf = flat[index]
        owner, _ = owners[index] or (0, ())
        owners[index] = (owner, (None,) * jnp.ndim(leaf))
        warnings.warn(
            f"opt_state{keystr(path)} of shape {jnp.shape(leaf)}: shapes do not show which axes "
            f"of params{keystr(flat_params[owner][0])}, shape {shapes[owner]}, it keeps, and a "
            "step cannot be traced on its own; it gets no names and will be replicated. Put "
            "with_axis_metadata(...) around the inner transformation, or use "
            "optax_bridge.adafactor with axis_rules or path_rules.",
            stacklevel=2,
        )
    return owners


def _settle(
    tx: optax.GradientTransformation,
    params: Params,
    leaves: Sequence[Leaf],
    owners: list[tuple[int, Axes] | None],
    unclear: dict[int, list[Axes]],
) -> None:
    """Infers the axes of unclear leaves, and removes these leaves from `unclear`."""
    # Of axes equally long either the last or the first is made the longest: a transformation that
    # chooses axes by their length would choose others, and then only a step of it tells.
    if_last_longest, if_first_longest = (
        _axes_at_other_lengths(tx, params, leaves, owners, up) for up in (True, False)
    )
    for index in list(unclear):
        if (
            if_last_longest[index] == if_first_longest[index]
            and if_last_longest[index] in unclear[index]
        ):
            owners[index] = ((owners[index] or (0, ()))[0], if_last_longest[index] or ())
            del unclear[index]
    if not unclear:
        return
    seen = _axes_seen_in_a_trace(tx, params, len(leaves))
    for index in list(unclear):
        if seen[index] in unclear[index]:
            owners[index] = ((owners[index] or (0, ()))[0], seen[index] or ())
            del unclear[index]


def owners_of(
    paths: list[KeyPath], by_path: Mapping[tuple[str, ...], object]
) -> list[tuple[int, int] | None]:
    """The place of a parameter's path in the path of each leaf of a state."""
    candidates: list[list[tuple[int, int]]] = []
    covered: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    longest = max(map(len, by_path), default=0)
    for path in paths:
        names, within = key_names(path), []
        for start in range(len(names) + 1):
            for end in range(start, min(len(names), start + longest) + 1):
                if names[start:end] in by_path:
                    within.append((start, end))
                    covered.setdefault(names[:start], set()).add(names[start:end])
        candidates.append(within)
    spans = []
    for path, within in zip(paths, candidates, strict=True):
        names = key_names(path)

        def rank(
            span: tuple[int, int], path: KeyPath = path, names: tuple[str, ...] = names
        ) -> tuple[int, ...]:
            # The fields of a state stand before its parameters' paths; then the longest path, and
            # of a list's index and another list's within it, the one where all parameters are.
            start, end = span
            fields = sum(isinstance(key, jax.tree_util.GetAttrKey) for key in path[end:])
            return (-fields, end - start, len(covered[names[:start]]), -start)

        spans.append(max(within, key=rank, default=None))
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
    embeddings: list[Axes] = []
    for chosen in itertools.combinations(range(len(param)), len(long)):
        if long and all(param[axis] == shape[i] for axis, i in zip(chosen, long, strict=True)):
            axis_of = dict(zip(long, chosen, strict=True))
            embeddings.append(tuple(axis_of.get(i) for i in range(len(shape))))
    return embeddings


def _axes_at_other_lengths(
    tx: optax.GradientTransformation,
    params: Params,
    leaves: Sequence[Leaf],
    owners: Sequence[tuple[int, Axes] | None],
    last_is_longest: bool,
) -> list[Axes | None]:
    """The axes of a state's arrays, from the state of parameters that have no two axes alike."""
    flat = leaves_with_path(params)
    shapes = [_told_apart(jnp.shape(leaf), last_is_longest) for _, leaf in flat]
    pairs = zip(flat, shapes, strict=True)
    unlike = [jax.ShapeDtypeStruct(s, jnp.result_type(leaf)) for (_, leaf), s in pairs]
    treedef = jax.tree.structure(params)
    boxed = [boxed_like(box_of(*leaf), value) for leaf, value in zip(flat, unlike, strict=True)]
    with boxes_remembered(treedef.unflatten(boxed)):
        state = jax.tree.leaves(unboxed(jax.eval_shape(tx.init, treedef.unflatten(unlike))))
    if len(state) != len(leaves):
        return [None] * len(leaves)
    axes: list[Axes | None] = []
    for leaf, array, owner in zip(leaves, state, owners, strict=True):
        choices = [] if owner is None else _embeddings(array.shape, shapes[owner[0]])
        fits = len(choices) == 1 and array.ndim == jnp.ndim(leaf)
        axes.append(choices[0] if fits else None)
    return axes


def _told_apart(shape: tuple[int, ...], last_is_longest: bool) -> tuple[int, ...]:
    """A shape like this, in the same order of lengths, without two axes of the same length."""
    order = sorted(range(len(shape)), key=lambda i: (shape[i], i if last_is_longest else -i))
    new, longest = list(shape), 1
    for axis in order:
        if shape[axis] > 1:
            longest = new[axis] = max(shape[axis], longest + 1)
    return tuple(new)


def _axes_seen_in_a_trace(
    tx: optax.GradientTransformation, params: Params, leaves: int
) -> list[Axes | None]:
    """Returns the axes of a state's arrays from the data flow of a step, by types alone."""
    rank = max((jnp.ndim(leaf) for leaf in jax.tree.leaves(params)), default=0)
    names = tuple(f"axis{index}" for index in range(rank))
    mesh = AbstractMesh((1,) * rank, names, axis_types=(AxisType.Explicit,) * rank)

    def with_names(leaf: Leaf) -> Leaf:
        sharding = NamedSharding(mesh, PartitionSpec(*names[: jnp.ndim(leaf)]))
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf), sharding=sharding)

    def one_step(params: Params) -> OptState:
        return unboxed(tx.update(params, tx.init(params), params)[1])

    try:
        with jax.sharding.use_abstract_mesh(mesh):
            state = jax.make_jaxpr(one_step)(jax.tree.map(with_names, params)).out_avals
    except Exception:
        # It wants arguments that only a call has, branches on values (under `lax.cond` both sides
        # must be sharded alike), or mixes axes (a product whose sharding the types leave open: JAX
        # has no public name for that error). Whoever asked says so.
        return [None] * leaves
    seen: list[Axes | None] = []
    for leaf in state:
        spec = leaf.sharding.spec
        spec = (*spec, *[None] * (leaf.ndim - len(spec)))
        seen.append(tuple(names.index(name) if name in names else None for name in spec))
    return seen if len(seen) == leaves else [None] * leaves
