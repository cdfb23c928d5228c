"""Lists of a checkpoint's content, and their comparison."""

import ast
import difflib
import enum
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.checkpointer.handlers import is_iterator
from optax_bridge.spmd.trees import TensorSpec, flatten_items, get_recursively, set_recursively

# Pairs of a path and a description; the first pair is ("step", step).
Index = Sequence[Sequence[Leaf]]


class CheckpointValidationType(enum.StrEnum):
    """Degrees to which a checkpoint must fit the state that is to be restored.

    Attributes:
      EXACT: the same paths, shapes and dtypes.
      EXACT_UP_TO_DTYPE: the same paths and shapes.
      CONTAINS_STATE: the checkpoint may have more.
      CONTAINS_STATE_UP_TO_DTYPE: likewise, and other dtypes.
    """

    EXACT = "EXACT"
    EXACT_UP_TO_DTYPE = "EXACT_UP_TO_DTYPE"
    CONTAINS_STATE = "CONTAINS_STATE"
    CONTAINS_STATE_UP_TO_DTYPE = "CONTAINS_STATE_UP_TO_DTYPE"


def index_of(state: PyTree, *, step: int) -> Index:
    """The list of a state's leaves."""
    entries: list[list[object]] = [["step", step]]
    for path, leaf in flatten_items(state):
        if is_iterator(leaf):
            entries.append([path, "iterator"])
            continue
        shape = tuple(leaf.shape) if isinstance(leaf, TensorSpec) else jnp.shape(leaf)
        dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
        entries.append([path, {"dtype": str(jnp.dtype(dtype)), "shape": str(shape)}])
    return entries


def specs_from(index: Index) -> PyTree:
    """Nested `TensorSpec`s of an index's arrays."""
    specs: dict[str, PyTree] = {}
    for path, description in index:
        if isinstance(description, dict):
            spec = TensorSpec(
                shape=ast.literal_eval(description["shape"]), dtype=jnp.dtype(description["dtype"])
            )
            set_recursively(specs, value=spec, path=path)
    return specs


def check_state_structure(
    ckpt_structure: Index,
    target_structure: Index,
    *,
    validation: CheckpointValidationType = CheckpointValidationType.EXACT,
) -> None:
    """Checks a checkpoint's structure, before any array is read.

    Args:
      ckpt_structure: the checkpoint's index.
      target_structure: the wanted one.
      validation: how exactly.

    Raises:
      ValueError: it is not; the message lists the entries that differ.
    """
    up_to_dtype = validation in (
        CheckpointValidationType.EXACT_UP_TO_DTYPE,
        CheckpointValidationType.CONTAINS_STATE_UP_TO_DTYPE,
    )
    saved, wanted = (_lines(i, up_to_dtype) for i in (ckpt_structure, target_structure))
    may_have_more = validation in (
        CheckpointValidationType.CONTAINS_STATE,
        CheckpointValidationType.CONTAINS_STATE_UP_TO_DTYPE,
    )
    if saved == wanted or (may_have_more and set(wanted) <= set(saved)):
        return
    diff = [
        line
        for line in difflib.unified_diff(saved, wanted, "checkpoint", "wanted", n=0, lineterm="")
        if not line.startswith("@@")
    ]
    if may_have_more:
        diff = [line for line in diff if not line.startswith("-")]
    raise ValueError(
        "checkpoint tree dtypes or shapes are not those of the state that is to be restored. Is it "
        "a checkpoint of another model or learner? Lines with - are in the checkpoint only, lines "
        "with + are wanted:\n" + "\n".join(diff)
    )


def _lines(index: Index, up_to_dtype: bool) -> list[str]:
    lines = []
    for key, value in index:
        if key == "step" and isinstance(value, int):
            continue
        if up_to_dtype and isinstance(value, dict):
            value = {name: item for name, item in value.items() if name != "dtype"}
        lines.append(f"{key}={value}")
    return sorted(lines)


def as_nested(state: PyTree) -> dict[str, PyTree]:
    """The arrays of a state as nested dicts by path, independent of their containers."""
    nested: dict[str, PyTree] = {}
    for path, leaf in flatten_items(state):
        if not is_iterator(leaf):
            set_recursively(nested, value=leaf, path=path)
    return nested


def from_nested(state: PyTree, nested: PyTree) -> PyTree:
    """A state with the arrays of nested dicts; its iterators stay."""
    restored = []
    for path, leaf in flatten_items(state):
        if is_iterator(leaf):
            restored.append(leaf)
            continue
        restored.append(get_recursively(nested, path))
    return jax.tree.unflatten(jax.tree.structure(state), restored)
