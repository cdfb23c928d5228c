"""Restores a checkpoint into a state or parameters, leaf by leaf, whole or not at all.

Every leaf of the template is in the checkpoint, or is named as missing; every leaf of the
checkpoint is taken, or is named as left over. Either side may have boxes: a box adds one level to a
checkpoint, `{"kernel": {"value": array}}`, which Flax by itself would restore in place of the
array.
"""

from typing import Any, TypeVar

from flax import serialization

from optax_bridge.checkpoints.trees import (
    fields_from_state_dict,
    fields_of,
    fill_outline,
    plain,
    refill,
    state_dict,
    state_dict_of,
)
from optax_bridge.metadata.trees import PyTree

T = TypeVar("T")


def restored_into(template: T, saved: PyTree) -> T:
    """Fits a checkpoint's tree into a state or parameters, with boxes on either side or none.

        >>> params = {"kernel": jnp.ones(3)}
        >>> state = optax_bridge.TrainState.create(None, params, optax_bridge.sgd(0.1))
        >>> saved = serialization.to_state_dict(state.replace(step=jnp.int32(7)))
        >>> int(restored_into(state, saved).step)
        7

    `saved` may come from Orbax without a target, or from `flax.serialization.msgpack_restore`.
    `flax.serialization.from_bytes` and `from_state_dict` do the same for every `TrainState`.

    Args:
      template: a `TrainState`, parameters or an optimizer's state.
      saved: nested dicts, lists and arrays, or a tree like the template, with or without boxes.

    Returns:
      The template with the arrays of the checkpoint, in the template's boxes.

    Raises:
      CheckpointError: the checkpoint lacks an array, has one more, or another shape; the message
        names it.
    """
    outline, saved = state_dict_of(template), plain(state_dict(saved))
    return refill(template, _fill_checked(outline, saved, type(template).__name__))


def _fill_checked(outline: PyTree, saved: PyTree, name: str) -> PyTree:
    """A template's state dict with the leaves of a checkpoint's, checked."""
    # The correspondence comes along, which no step needs.
    from optax_bridge.checkpoints.moves import Plan
    from optax_bridge.checkpoints.same_names import Paths, Scope, same_names, state_items

    scope = Scope(name, state=state_items)
    plan = Plan(name, tuple(same_names(outline, saved, Paths(), scope)))
    plan.check()
    return fill_outline(outline, plan.apply())


def fit_on_restore(cls: type[Any]) -> None:
    """Lets Flax restore this project's dataclass whole or not at all, with and without boxes."""

    def to_state_dict(state: PyTree) -> PyTree:
        # Keys as their bits, since msgpack knows no other arrays.
        return {name: plain(state_dict(getattr(state, name))) for name in fields_of(state)}

    def from_state_dict(state: PyTree, saved: PyTree) -> PyTree:
        return fields_from_state_dict(state, _fill_checked(state, plain(saved), cls.__name__))

    # Replaces the functions that Flax registers for every subclass of its dataclasses.
    serialization.register_serialization_state(cls, to_state_dict, from_state_dict, override=True)
