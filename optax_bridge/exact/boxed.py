"""Any transformation on boxed parameters: boxes off, step, boxes on again with the right names."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import optax

from optax_bridge.exact.transformation import ExactTransformation, check_transformation
from optax_bridge.metadata.axis_metadata import (
    Reduced,
    boxed_as,
    boxes_remembered,
    check_names,
    has_boxes,
    in_remembered_boxes,
    is_box,
    keystr,
    leaves_with_path,
    unboxed,
    with_axes,
)
from optax_bridge.metadata.kept_axes import state_axes


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
    check_transformation(tx)
    if isinstance(tx, ExactTransformation):
        return exact_with_axis_metadata(tx)
    return optax.GradientTransformationExtraArgs(*_init_and_update(tx))


def exact_with_axis_metadata(tx: ExactTransformation) -> ExactTransformation:
    """`with_axis_metadata` for a transformation that has an exact step, which it keeps."""

    def step(grads: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
        args = (unboxed(grads), unboxed(state), unboxed(params))
        with boxes_remembered(params):
            new_params, new_state = tx.step(*args, **_unboxed_values(extra))
        return boxed_as(params, new_params), boxed_as(state, new_state)

    return ExactTransformation(*_init_and_update(tx), step, tx.hyper_params, tx.inner)


def _init_and_update(tx: optax.GradientTransformation) -> tuple[Any, Any]:
    with_extra = optax.with_extra_args_support(tx)

    def init(params: Any) -> Any:
        boxes = in_remembered_boxes(params)  # within another transformation that handles them
        if not has_boxes(boxes):
            return tx.init(params)
        check_names(boxes)
        with boxes_remembered(boxes), _masks_explained():
            return _boxed_state(tx, unboxed(params), boxes)

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        template = grads if params is None else params
        raw = None if params is None else unboxed(params)
        args = (unboxed(grads), unboxed(state), raw)
        with boxes_remembered(template), _masks_explained():
            updates, new_state = with_extra.update(*args, **_unboxed_values(extra))
        return boxed_as(template, updates), boxed_as(state, new_state)

    return init, update


def boxes_handled(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """The transformation, made to handle boxes if it is not one of this project's, which all do."""
    return tx if isinstance(tx, ExactTransformation) else with_axis_metadata(tx)


@contextlib.contextmanager
def _masks_explained() -> Iterator[None]:
    """Adds the remedy to an error about a mask that was made from boxed parameters."""
    try:
        yield
    except ValueError as error:
        if any(word in str(error) for word in ("structure", "mismatch", "Mismatch")):
            error.add_note(
                "The transformation is handed trees without boxes. A mask or labels within it must "
                "be made so as well: from optax_bridge.unboxed(params), or by a "
                "function of the parameters, path_mask(...), say."
            )
        raise


def _boxed_state(tx: optax.GradientTransformation, raw: Any, params: Any) -> Any:
    state = tx.init(raw)
    boxes = leaves_with_path(params)
    leaves, treedef = jax.tree.flatten(state, is_leaf=is_box)
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
