"""Shardings of a training state on a mesh, derived from those of the parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core import meta
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath

from optax_bridge.checkpoints.trees import fields_of
from optax_bridge.exact.boxed import boxes_handled
from optax_bridge.metadata.axis_metadata import (
    Axes,
    boxed_like,
    has_boxes,
    is_box,
    leaves_with_path,
    names_of,
    shapes_of,
    unboxed,
    value_of,
)
from optax_bridge.metadata.paths import key_names, keystr
from optax_bridge.metadata.trees import AxisName, Extra, Leaf, OptState, Params, PyTree

# Either pairs of a logical name and its axes of the mesh (one, several, or None), as
# `nn.logical_to_mesh_axes` takes them, or a function `rule(path, array) -> PartitionSpec` for
# parameters without boxes, with paths like '/dense/kernel'.
Rules = Sequence[tuple[str, AxisName]] | Callable[[str, Leaf], PartitionSpec]


def param_shardings(params: Params, mesh: Mesh, rules: Rules | None = None) -> PyTree:
    """Returns the sharding of each parameter.

    Args:
      params: parameters or their shapes. The rules map the names in their boxes to axes of the
        mesh; an array without a box keeps its own sharding, or is replicated.
      mesh: the mesh.
      rules: see `Rules`; without any, names are axes of the mesh.

    Returns:
      A tree like `params`, boxes included, with a `NamedSharding` for each array: for `jax.jit`,
      `jax.device_put` and Orbax.

    Raises:
      ValueError: a name is neither an axis of the mesh nor in a rule, or an axis of an array cannot
        be divided over its axis of the mesh.
    """
    _check_mesh(mesh)

    def sharding(path: KeyPath, leaf: Leaf) -> Leaf:
        names = _names(path, leaf, mesh, rules)
        return boxed_like(leaf, _sharding(names, leaf, "params" + keystr(path), mesh, rules))

    return jax.tree_util.tree_map_with_path(sharding, params, is_leaf=is_box)


def opt_state_shardings(
    tx: optax.GradientTransformation, params: Params, mesh: Mesh, rules: Rules | None = None
) -> PyTree:
    """Returns the sharding of each array in the state of any transformation.

        >>> mesh = jax.make_mesh((1,), ("model",))
        >>> params = {"w": nn.Partitioned(jnp.ones((128, 256)), ("embed", "mlp"))}
        >>> rules = [("embed", None), ("mlp", "model")]
        >>> shardings = opt_state_shardings(optax.adafactor(0.1), params, mesh, rules)
        >>> tuple(shardings[0].v_col["w"].value.spec)
        ('model',)

    Args:
      tx: the transformation.
      params: as for `param_shardings`.
      mesh: the mesh.
      rules: see `Rules`.

    Returns:
      A tree like `tx.init(params)` with a `NamedSharding` for each array. An array that keeps some
      of its parameter's axes is sharded like them; one without a parameter is replicated.
    """

    def add_box(path: KeyPath, leaf: Leaf) -> Leaf:
        """Boxes a parameter that has no box, naming its axes after those of the mesh."""
        if is_box(leaf):
            return leaf
        return _Located(leaf, _names(path, leaf, mesh, rules))

    leaves, treedef = jax.tree.flatten(params, is_leaf=is_box)
    with_path = zip(leaves_with_path(params), leaves, strict=True)
    boxed = treedef.unflatten([add_box(path, leaf) for (path, _), leaf in with_path])
    state = jax.eval_shape(boxes_handled(tx).init, shapes_of(boxed))
    plain = jax.eval_shape(boxes_handled(tx).init, shapes_of(params))

    def sharding(path: KeyPath, leaf: Leaf) -> Leaf:
        names = leaf.spec if isinstance(leaf, _Located) else names_of(leaf)
        names = names or (None,) * jnp.ndim(value_of(leaf))
        return _sharding(names, leaf, "opt_state" + keystr(path), mesh, rules)

    shardings = [sharding(path, leaf) for path, leaf in leaves_with_path(state)]
    targets, treedef = jax.tree.flatten(plain, is_leaf=is_box)
    pairs = zip(targets, shardings, strict=True)
    return treedef.unflatten([boxed_like(target, where) for target, where in pairs])


def state_shardings(state: OptState, mesh: Mesh, rules: Rules | None = None) -> PyTree:
    """Returns the shardings of a `TrainState`, for `jax.jit`, `jax.device_put` and Orbax.

    Args:
      state: a `TrainState`, or the result of `jax.eval_shape` for one.
      mesh: the mesh.
      rules: see `Rules`.

    Returns:
      The same `TrainState` with a `NamedSharding` for each array. A field like the parameters (an
      average of them, accumulated gradients) is sharded like them; in other fields, boxed arrays
      are sharded by their names and all others replicated.

    Raises:
      ValueError: see `param_shardings`.
    """
    params = param_shardings(state.params, mesh, rules)
    shardings = {
        "params": params,
        "opt_state": opt_state_shardings(state.tx, state.params, mesh, rules),
    }
    like_params = _form(state.params)
    for name in fields_of(state):
        if name in shardings:
            continue
        value = getattr(state, name)
        if value is not None and _form(value) == like_params:
            shardings[name] = _refill(value, params)
        else:
            shardings[name] = param_shardings(value, mesh, rules if has_boxes(value) else None)
    return state.replace(**shardings)


class _Located(struct.PyTreeNode, meta.AxisMetadata[Any]):
    """A box around a parameter that has none: entries of a specification instead of names."""

    value: Leaf
    spec: tuple[AxisName, ...] = struct.field(pytree_node=False)

    def unbox(self) -> Leaf:
        return self.value

    def replace_boxed(self, val: Leaf) -> Leaf:
        return self.replace(value=val)

    def add_axis(self, index: int, params: dict[Any, Any]) -> Leaf:
        del params
        return self.replace(spec=(*self.spec[:index], None, *self.spec[index:]))

    def remove_axis(self, index: int, params: dict[Any, Any]) -> Leaf:
        del params
        return self.replace(spec=(*self.spec[:index], *self.spec[index + 1 :]))

    def keep_axes(self, axes: Axes) -> Leaf:
        return self.replace(spec=tuple(None if a is None else self.spec[a] for a in axes))


def create_sharded(
    cls: Any, mesh: Mesh, rules: Rules | None, init: Callable[[], PyTree], **kwargs: Extra
) -> Leaf:
    """The work of `TrainState.create_sharded`."""

    def make() -> PyTree:
        variables = init()
        collections = dict(kwargs)
        is_collections = isinstance(variables, Mapping) and "params" in variables
        if is_collections and OVERWRITE_WITH_GRADIENT not in variables:
            collections.update(variables)
        else:
            collections["params"] = variables
        return cls.create(**collections)

    # Flax constrains a box's array to its names when it sees a mesh in scope, which fails for
    # logical names and under explicit meshes: here the shardings are given to jit instead.
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):  # no mesh is set in it
        shardings = state_shardings(jax.eval_shape(make), mesh, rules)
        return jax.jit(make, out_shardings=shardings)()


def _check_mesh(mesh: object) -> None:
    if not isinstance(mesh, Mesh | jax.sharding.AbstractMesh):
        raise TypeError(
            f"mesh: expected a jax.sharding.Mesh, found {type(mesh).__name__}; "
            'jax.make_mesh((8,), ("data",)) makes one'
        )


def _names(path: KeyPath, leaf: Leaf, mesh: Mesh, rules: Rules | None) -> tuple[AxisName, ...]:
    """The names of an array's axes, its specification's entries if it is in no box."""
    value = value_of(leaf)
    rank = jnp.ndim(value)
    names = names_of(leaf, "params" + keystr(path)) if is_box(leaf) else None
    if names is None and callable(rules):
        names = tuple(rules("/" + "/".join(key_names(path)), value))
    if names is None:
        sharding = getattr(value, "sharding", None)
        is_named = isinstance(sharding, NamedSharding)
        on_this = is_named and sharding.mesh.axis_names == mesh.axis_names
        names = tuple(sharding.spec) if on_this else ()  # type: ignore[union-attr]
    return (*names, *[None] * (rank - len(names)))


def _sharding(
    names: Sequence[AxisName], leaf: Leaf, where: str, mesh: Mesh, rules: Rules | None
) -> NamedSharding:
    """Names to a sharding on the mesh, checked against the array's shape."""
    shape = jnp.shape(value_of(leaf))
    pairs = [] if rules is None or callable(rules) else list(rules)
    logical = {name for name, _ in pairs}
    taken: set[str] = set()
    spec = []
    for name, size in zip(names, shape, strict=True):
        options = [to for name_, to in pairs if name_ == name] if name in logical else [name]
        entry = next((to for to in options if not taken & set(_axes(to))), None)
        for axis in _axes(entry):
            if axis not in mesh.axis_names:
                if pairs and name not in logical:
                    entry = None  # a logical name that no rule has is not sharded, as in Flax
                    break
                raise ValueError(
                    f"{where}, shape {shape}, axes {tuple(names)}: {axis!r} is no axis of the mesh "
                    f"{dict(mesh.shape)}. Give a rule for it, e.g. rules=[({name!r}, None)]."
                )
        ways = 1
        for axis in _axes(entry):
            ways *= mesh.shape[axis]
        if size % ways:
            raise ValueError(
                f"{where}, shape {shape}, axes {tuple(names)}: axis {name!r} of size {size} cannot "
                f"be divided over {entry!r}, which has {ways} devices. Map it to None, or pad it."
            )
        taken.update(_axes(entry))
        spec.append(entry)
    return NamedSharding(mesh, PartitionSpec(*spec))


def _axes(entry: AxisName) -> tuple[str, ...]:
    """The axes of the mesh in one entry of a specification."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def _form(tree: PyTree) -> PyTree:
    """Paths and shapes, for telling which fields are like the parameters."""
    return [(key_names(path), jnp.shape(value_of(leaf))) for path, leaf in leaves_with_path(tree)]


def _refill(tree: PyTree, shardings: PyTree) -> PyTree:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_box)
    pairs = zip(leaves, jax.tree.leaves(unboxed(shardings)), strict=True)
    return treedef.unflatten([boxed_like(leaf, where) for leaf, where in pairs])
