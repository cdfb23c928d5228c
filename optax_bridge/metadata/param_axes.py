"""From the `params_axes` collection of `flax.linen.partitioning` to boxes, and back."""

import jax
from flax.core import unfreeze
from flax.linen.partitioning import AxisMetadata
from flax.linen.spmd import LogicallyPartitioned
from jax.tree_util import KeyPath

from optax_bridge.metadata.axis_metadata import (
    has_boxes,
    is_box,
    leaves_with_path,
    names_of,
    nested_dict,
    unboxed,
)
from optax_bridge.metadata.paths import key_names, keystr
from optax_bridge.metadata.trees import Leaf, Params, PyTree

_SUFFIX = "_axes"  # `param_with_axes("kernel", ...)` keeps its names under "kernel_axes"


def boxes_from_param_axes(params: Params, params_axes: PyTree) -> Params:
    """Boxes each parameter in `nn.LogicallyPartitioned` with the names of its axes.

        >>> from flax.linen.partitioning import AxisMetadata
        >>> params = {"kernel": jnp.ones((4, 6))}
        >>> axes = {"kernel_axes": AxisMetadata(("embed", "mlp"))}
        >>> boxed = boxes_from_param_axes(params, axes)
        >>> boxed["kernel"].names
        ('embed', 'mlp')
        >>> param_axes_from_boxes(boxed)[1]
        {'kernel_axes': AxisMetadata(names=('embed', 'mlp'))}

    Args:
      params: parameters as `param_with_axes` makes them, without boxes; any containers.
      params_axes: the collection of that name, or the result of `get_axis_names`; dicts or
        FrozenDicts.

    Returns:
      The parameters in their containers; one without names stays without a box.

    Raises:
      ValueError: names for an unknown parameter, or not one name for each axis.
    """
    if has_boxes(params):
        raise ValueError("params already has boxes: expected plain arrays and params_axes")
    names = _names_by_path(params_axes)

    def box(path: KeyPath, leaf: Leaf) -> Leaf:
        axes = names.pop(key_names(path), None)
        if axes is None:
            return leaf
        boxed = LogicallyPartitioned(leaf, axes)
        names_of(boxed, "params" + keystr(path))
        return boxed

    boxed = jax.tree_util.tree_map_with_path(box, params)
    if names:
        unmatched = ", ".join("/".join(path) for path in names)
        raise ValueError(f"params_axes has names for {unmatched}, which params does not have")
    return boxed


def param_axes_from_boxes(params: Params) -> tuple[Params, dict[str, PyTree]]:
    """Returns the `params_axes` collection for boxed parameters.

    Args:
      params: parameters in boxes with names.

    Returns:
      The parameters without boxes, and the `params_axes` collection.
    """
    axes = []
    for path, leaf in leaves_with_path(params):
        names = names_of(leaf, "params" + keystr(path)) if is_box(leaf) else None
        if names is not None:
            *above, last = key_names(path)
            keys = (*above, last + _SUFFIX)
            axes.append((tuple(map(jax.tree_util.DictKey, keys)), AxisMetadata(names)))
    return unboxed(params), nested_dict(axes)


def _names_by_path(params_axes: PyTree) -> dict[tuple[str, ...], tuple[str | None, ...]]:
    by_path: dict[tuple[str, ...], tuple[str | None, ...]] = {}

    def walk(node: PyTree, path: tuple[str, ...]) -> None:
        names = getattr(node, "names", node)
        if hasattr(node, "items"):
            for key, value in node.items():
                walk(value, (*path, str(key)))
        elif names is not None:
            *above, last = path
            by_path[(*above, last.removesuffix(_SUFFIX))] = tuple(names)

    walk(unfreeze(params_axes), ())
    return by_path
