"""Boxed checkpoints into unboxed models and back: what was saved, fitted to what is there now.

A box is one level more in a checkpoint, `{"kernel": {"value": array}}`. Read into a model without
boxes, Flax would hand out the dict where an array belongs, and says nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
from flax import serialization

T = TypeVar("T")

_NO_FIELDS = {"legacy_layout"}  # what `optax-bridge convert` remembers for the way back
_LEVEL = "value"  # what Flax's own boxes, and classes of one's own by custom, call the array


def restored_into(template: T, saved: Any) -> T:
    """Fits a checkpoint's tree into a state or parameters, whichever of both have boxes.

        saved = checkpointer.restore(path)                    # Orbax, without a target
        saved = flax.serialization.msgpack_restore(data)      # or msgpack
        state = optax_bridge.restored_into(state, saved)

    `flax.serialization.from_bytes` and `from_state_dict` do the same for every `TrainState`.

    Args:
      template: a `TrainState`, parameters or an optimizer's state.
      saved: nested dicts, lists and arrays, or a tree like the template, with or without boxes.

    Returns:
      The template with the arrays of the checkpoint, in the template's boxes.

    Raises:
      ValueError: the checkpoint lacks an array, has one more, or another shape; the message names
        it.
    """
    expected = serialization.to_state_dict(template)
    fitted = _fitted(expected, serialization.to_state_dict(saved), type(template).__name__)
    restored: Any = serialization.from_state_dict(template, fitted)
    return restored


def fit_on_restore(cls: type[Any]) -> None:
    """Lets Flax restore a dataclass from checkpoints with and without boxes."""

    def to_state_dict(state: Any) -> dict[str, Any]:
        return {name: serialization.to_state_dict(getattr(state, name)) for name in _fields(state)}

    def from_state_dict(state: Any, saved: Any) -> Any:
        fitted = _fitted(to_state_dict(state), saved, cls.__name__)
        return state.replace(
            **{
                name: serialization.from_state_dict(getattr(state, name), fitted[name], name=name)
                for name in _fields(state)
            }
        )

    serialization.register_serialization_state(cls, to_state_dict, from_state_dict, override=True)


def _fields(state: Any) -> list[str]:
    fields = dataclasses.fields(state)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


def _fitted(expected: Any, saved: Any, place: str) -> Any:
    """The saved state dict with the levels of the expected one."""
    if isinstance(expected, Mapping):
        if not expected:  # an empty state, which formats keep in different ways
            return expected
        if not isinstance(saved, Mapping):
            if set(expected) == {_LEVEL}:
                return {_LEVEL: _fitted(expected[_LEVEL], saved, place)}
            raise ValueError(
                f"{place}: expected {_shown(expected)}, found {_shown(saved)} in the checkpoint. "
                "Restore into the model and the transformation that it was saved from."
            )
        missing, unknown = expected.keys() - saved.keys(), saved.keys() - expected.keys()
        unknown -= _NO_FIELDS
        if missing or unknown:
            raise ValueError(
                f"{place}: expected {_shown(expected)}, found {_shown(saved)} in the checkpoint. "
                f"It lacks {sorted(missing) or 'nothing'}, and has {sorted(unknown) or 'nothing'} "
                "besides. Restore into the model and the transformation that it was saved from."
            )
        return {key: _fitted(expected[key], saved[key], f"{place}/{key}") for key in expected}
    if isinstance(saved, Mapping):
        if set(saved) == {_LEVEL}:
            return _fitted(expected, saved[_LEVEL], place)
        if expected is None and not saved:
            return None
        raise ValueError(
            f"{place}: expected {_shown(expected)}, found {_shown(saved)} in the checkpoint. Is it "
            "a box of a class of its own? Take it off before saving, by axis_metadata.unboxed."
        )
    if expected is None or saved is None:
        if expected is None and saved is None:
            return None
    elif jnp.shape(expected) == jnp.shape(saved):
        return saved
    raise ValueError(
        f"{place}: expected {_shown(expected)}, found {_shown(saved)} in the checkpoint. Restore "
        "into a model of the sizes that it was saved from."
    )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a level with {sorted(map(str, value))}"
    return "nothing" if value is None else f"an array of shape {jnp.shape(value)}"
