"""Runs any transformation on boxed parameters: unboxes, steps, and boxes the results again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import jax
import optax

from optax_bridge.checks import check_transformation
from optax_bridge.exact.transformation import ExactTransformation, update_with_arguments
from optax_bridge.metadata.axis_metadata import (
    Reduced,
    boxed_as,
    boxes_remembered,
    check_names,
    has_boxes,
    in_remembered_boxes,
    is_box,
    leaves_with_path,
    unboxed,
    with_axes,
)
from optax_bridge.metadata.kept_axes import state_axes
from optax_bridge.metadata.paths import keystr
from optax_bridge.metadata.trees import Extra, OptState, Params, PyTree, Updates

T = TypeVar("T")


@overload
def with_axis_metadata(tx: ExactTransformation) -> ExactTransformation: ...
@overload
def with_axis_metadata(
    tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs: ...
def with_axis_metadata(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Wraps a transformation, such as `optax.adafactor`, to work on boxed parameters.

        >>> params = {"w": nn.Partitioned(jnp.ones((128, 256)), ("embed", "mlp"))}
        >>> with_axis_metadata(optax.adafactor(0.1)).init(params)[0].v_row["w"].names
        ('embed',)

    The transformation itself sees arrays in the containers of the parameters, so paths are the same
    with boxes and without. Its state comes in boxes that have the names of the axes that are kept.
    `TrainState` and `multi_optimizer` do this by themselves; the optimizers of `optax_bridge` need
    it not.

    Args:
      tx: any transformation.

    Returns:
      The transformation, whose `init` takes parameters with or without boxes, and whose `update`
      takes gradients with or without boxes, independent of the parameters.

    Raises:
      TypeError: `tx` is no transformation.
    """
    check_transformation(tx)
    inner = _WithoutBoxes(tx)
    if isinstance(tx, ExactTransformation):
        record = (tx.hyper_params, tx.inner, tx.parts)
        return ExactTransformation(inner.init, inner.update, inner.step, *record)
    return optax.GradientTransformationExtraArgs(inner.init, inner.update)


@dataclass(frozen=True, eq=False)
class _WithoutBoxes:
    """A transformation that is handed parameters and gradients without boxes."""

    tx: optax.GradientTransformation

    def init(self, params: Params) -> OptState:
        boxes = in_remembered_boxes(params)  # within another transformation that handles them
        if not has_boxes(boxes):
            return self.tx.init(params)
        check_names(boxes)

        def without_boxes() -> OptState:
            with boxes_remembered(boxes):
                return _boxed_state(self.tx, unboxed(params), boxes)

        return _with_boxes_if_masked(without_boxes, lambda: self.tx.init(boxes))

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Extra
    ) -> tuple[Updates, OptState]:
        update = update_with_arguments(self.tx)
        template = updates if params is None else params
        return self._run(update, template, updates, state, params, extra)

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Extra
    ) -> tuple[Params, OptState]:
        tx: Any = self.tx
        return self._run(tx.step, params, grads, state, params, extra)

    def _run(
        self,
        take: Callable[..., tuple[PyTree, OptState]],
        template: PyTree,
        grads: Updates,
        state: OptState,
        params: Params,
        extra: dict[str, Extra],
    ) -> tuple[PyTree, OptState]:
        def without_boxes() -> tuple[PyTree, OptState]:
            args = (unboxed(grads), unboxed(state), unboxed(params))
            with boxes_remembered(template):
                result, new_state = take(*args, **_unboxed_values(extra))
            return boxed_as(template, result), boxed_as(state, new_state)

        def with_boxes() -> tuple[PyTree, OptState]:
            return take(boxed_as(template, unboxed(grads)), state, params, **extra)

        return _with_boxes_if_masked(without_boxes, with_boxes)


def boxes_handled(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """Wraps a transformation to handle boxes, unless it is of this project, which all do."""
    return tx if isinstance(tx, ExactTransformation) else with_axis_metadata(tx)


def _with_boxes_if_masked(without: Callable[[], T], with_boxes: Callable[[], T]) -> T:
    """The first result, or the second where a mask or labels were made from boxes."""
    try:
        return without()
    except ValueError as error:
        if not any(word in str(error) for word in ("structure", "mismatch", "Mismatch")):
            raise
        try:
            return with_boxes()
        except Exception:
            error.add_note(
                "The transformation gets trees without boxes. Make its masks and labels without "
                "boxes too: from optax_bridge.unboxed(params), or with a function of the "
                "parameters such as path_mask(...)."
            )
            raise error from None


def _boxed_state(tx: optax.GradientTransformation, raw: PyTree, params: Params) -> PyTree:
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


def _unboxed_values(extra: dict[str, Extra]) -> dict[str, Extra]:
    """Extra arguments that are trees of gradients, `grad=` for line searches, lose their boxes."""
    return {k: v if callable(v) else unboxed(v) for k, v in extra.items()}
