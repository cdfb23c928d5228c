"""`optax-bridge inspect`: what is in a checkpoint."""

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np

from optax_bridge._terminal import plain_terminal
from optax_bridge.checkpoints.errors import CheckpointError, leaf_name, shown
from optax_bridge.checkpoints.outline import AT_FIRST, print_outline
from optax_bridge.checkpoints.read import Read, read_checkpoint
from optax_bridge.checkpoints.recognise import (
    Names,
    Part,
    at_path,
    candidates,
    find_parts,
    find_states,
    has_unmatched,
    is_array,
    leaves,
    looks_like,
)
from optax_bridge.metadata.trees import Leaf

FOUND, FAILED = 0, 1


def run(path: Path, json: bool = False, everything: bool = False) -> int:
    """Prints format, optimizers, step, and a tree with shapes, dtypes and sizes.

    Args:
      path: the checkpoint.
      json: print it as JSON.
      everything: print every leaf, however many there are.

    Returns:
      0, or 1 if it cannot be read, or holds no optimizer's state where it seems to hold one.
    """
    console = plain_terminal()
    errors = plain_terminal(stderr=True)
    try:
        read = read_checkpoint(path)
    except CheckpointError as error:
        errors.print(str(error))
        return FAILED
    parts, lines, states, problem = [], [], {}, None
    try:
        parts = find_parts(read.tree, read.path)
        lines = [described(part, read.path) for part in parts]
        states = {path: _step(read, path) for path in find_states(read.tree)}
    except CheckpointError as error:  # no state of an optimizer known here; its leaves are listed
        problem = error
        errors.print(str(error))
    if json:
        print(dumps(_facts(read, *((parts, states) if problem is None else ([], {})))))
        return FOUND if problem is None else FAILED
    arrays = [leaf for _, leaf in leaves(read.tree) if is_array(leaf)]
    size = sum(leaf.nbytes for leaf in arrays)
    console.print(f"{read.path}: {read.description}, {len(arrays)} arrays, {size:,} bytes")
    for line in lines:
        console.print(line)
    for path_in_it, step in states.items():
        where = f"TrainState {'/'.join(path_in_it)}: " if path_in_it else ""
        console.print(f"{where}step {step}")
    if not states and not parts and problem is None:
        inner = [p for p, leaf in leaves(read.tree) if isinstance(leaf, bytes | memoryview)]
        console.print(
            f"no optimizer seen, but {leaf_name(inner[0])} is bytes, in which one may be: write "
            "those to a file of their own and inspect that"
            if inner
            else "no optimizer in it: parameters or other data only"
        )
    print_outline(console, read.path.name, read.tree, None if everything else AT_FIRST)
    return FOUND if problem is None else FAILED


def _step(read: Read, path: Names) -> Any:
    step = at_path(read.tree, path)["step"]
    if is_array(step) and step.size != 1:
        return f"{step.dtype}{list(step.shape)}"
    return np.asarray(step).tolist() if is_array(step) else shown(step)


def _facts(read: Read, parts: list[Part], states: dict[Names, Any]) -> dict[str, Any]:
    optimizers = [
        {
            "part": part.name, "candidates": candidates(part, read.path), "step": part.step,
            "copies": part.copies,
        }
        for part in parts
    ]  # fmt: skip
    found = [
        {"path": list(path)} | (_array_facts(leaf) if is_array(leaf) else {"value": shown(leaf)})
        for path, leaf in leaves(read.tree)
    ]
    step = {"step": states[()]} if () in states else {}
    return {
        "path": str(read.path), "format": read.description, **step, "optimizers": optimizers,
        "states": [{"part": "/".join(path), "step": step} for path, step in states.items()],
        "leaves": found,
    }  # fmt: skip


def _array_facts(leaf: Leaf) -> dict[str, Any]:
    return {"dtype": str(leaf.dtype), "shape": list(leaf.shape), "bytes": int(leaf.nbytes)}


def described(part: Part, place: Path) -> str:
    """What an optimizer looks like, its step, and what is special about it, in one line."""
    looks = looks_like(part, place)
    if " or " in looks:
        looks += " (their states have the same fields: say which with --optimizer)"
    notes = [f"optimizer {part.name or '(the whole)'}: {looks}", f"step {part.step}"]
    if part.copies is not None:
        notes.append(f"replicated {part.copies} times")
    if part.is_grouped:
        notes.append(f"{len(part.param_states)} groups, the layout up to flax 0.3.2")
    elif has_unmatched(part, place):
        notes.append("some parameters have no state: a MultiOptimizer or focus= left them alone")
    if isinstance(part.target, Mapping) and set(part.target) == {"params"}:
        notes.append("target is {'params': ...}: a model from before Linen, or Linen variables")
    return ", ".join(notes)
