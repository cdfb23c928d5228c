"""`optax-bridge inspect`: lists the contents of a checkpoint."""

import os
import traceback
from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optax_bridge.cli import pytorch
from optax_bridge.cli.convert import newest_of, nothing_there, warnings_to
from optax_bridge.cli.options import ShowsTraceback
from optax_bridge.cli.programs import ProgramError, load_object

if TYPE_CHECKING:
    from rich.console import Console

    from optax_bridge.checkpoints.locate import Part
    from optax_bridge.checkpoints.read import Read
    from optax_bridge.metadata.paths import Names
    from optax_bridge.metadata.trees import Leaf, PyTree

FOUND, FAILED, MISUSE = 0, 1, 2
AT_FIRST = 20  # lines of a level; a terminal has no use for more unless somebody asks


def inspect(
    file: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a folder of numbered ones."),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the contents as JSON.")] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="List every leaf, not only the first twenty of each level."),
    ] = False,
    names: Annotated[
        bool,
        typer.Option(
            "--names",
            help="For a PyTorch checkpoint: draft `names.toml`, which says where each tensor goes.",
        ),
    ] = False,
    like: Annotated[
        str | None,
        typer.Option(
            help="The function that makes the new state, as for `convert`: print where each leaf "
            "goes in that state, and list what does not fit."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL,OPTIMIZER",
            help="The model and the optimizer to use, if a PyTorch checkpoint has several.",
        ),
    ] = None,
    shows_traceback: ShowsTraceback = False,
) -> None:
    """Identify a checkpoint and list its contents.

    | exit code | means |
    |---|---|
    | 0 | printed |
    | 1 | the checkpoint cannot be read, or does not fit the state |
    | 2 | misuse: no checkpoint at the path, --names without --like, a program that fails |
    | 130 | interrupted |

    Examples:
    - `optax-bridge inspect checkpoint_100`

    - `optax-bridge inspect runs/1/`

    - `optax-bridge inspect checkpoint_100 --like train.py:make_state`

    - `optax-bridge inspect ckpt.pt --names --like train.py:make_state > names.toml`
    """
    if names and like is None:
        message = "--names and --like train.py:make_state go together"
        raise typer.BadParameter(message, param_hint="--names")
    if like is not None:
        raise typer.Exit(print_like(file, like, part, json, names, shows_traceback))
    raise typer.Exit(print_checkpoint(file, json, everything, part))


def print_like(
    path: Path, like: str, part: str | None, json: bool, names: bool, shows_traceback: bool
) -> int:
    """Prints where each leaf goes in a state; for PyTorch's, with `names`, the draft of a file."""
    from optax_bridge.checkpoints.errors import CheckpointError
    from optax_bridge.checkpoints.read import read_checkpoint
    from optax_bridge.checkpoints.restore import plan_restore
    from optax_bridge.cli.terminal import plain_terminal
    from optax_bridge.torch.checkpoints.files import is_torch

    errors = plain_terminal(stderr=True)
    if not os.path.lexists(path):
        errors.print(nothing_there(path))
        return MISUSE
    try:
        read = read_checkpoint(path)
        if is_torch(read) and not names:
            errors.print(f"{path}: a checkpoint of PyTorch: --names drafts where each tensor goes.")
            return MISUSE
        template = load_object(like, make=True)
        if names:
            print(pytorch.draft(read, template, part), end="")
            return FOUND
        plan = plan_restore(template, read)
        if json:
            print(dumps({"moves": [move.facts() for move in plan.moves]}))
        else:
            for move in plan.moves:
                plain_terminal().print(str(move))
        with warnings_to(errors):
            plan.check()
    except ProgramError as error:
        if shows_traceback:
            traceback.print_exception(error)
        errors.print(str(error))
        return MISUSE
    except CheckpointError as error:
        errors.print(str(error))
        return FAILED
    return FOUND


def print_checkpoint(
    path: Path, json: bool = False, everything: bool = False, part: str | None = None
) -> int:
    """Prints format, optimizers, step, and a tree with shapes, dtypes and sizes."""
    from optax_bridge.checkpoints.errors import CheckpointError
    from optax_bridge.checkpoints.locate import find_parts, find_states
    from optax_bridge.checkpoints.read import read_checkpoint
    from optax_bridge.checkpoints.trees import is_array
    from optax_bridge.cli.terminal import plain_terminal
    from optax_bridge.metadata.paths import leaf_name, leaves
    from optax_bridge.torch.checkpoints.files import is_torch

    console = plain_terminal()
    errors = plain_terminal(stderr=True)
    if not os.path.lexists(path):
        errors.print(nothing_there(path))
        return MISUSE
    try:
        read = read_checkpoint(path)
    except CheckpointError as error:
        errors.print(str(error))
        return FAILED
    parts, lines, states, problem = [], [], {}, None
    try:
        parts = find_parts(read.tree, read.path)
        lines = [*map(description_of, parts)]
        if is_torch(read):
            lines = pytorch.torch_lines(read, part)
        states = {path: _step(read, path) for path in find_states(read.tree)}
    except CheckpointError as error:  # no state of an optimizer known here; its leaves are listed
        problem = error
        errors.print(str(error))
    if json:
        print(dumps(_facts(read, *((parts, states) if problem is None else ([], {})))))
        return FOUND if problem is None else FAILED
    arrays = [leaf for _, leaf in leaves(read.tree) if is_array(leaf)]
    size = sum(leaf.nbytes for leaf in arrays)
    newest = newest_of(read, path)
    console.print(f"{read.path}{newest}: {read.description}, {len(arrays)} arrays, {size:,} bytes")
    for line in lines:
        console.print(line)
    for path_in_it, step in states.items():
        where = f"TrainState {'/'.join(path_in_it)}: " if path_in_it else ""
        console.print(f"{where}step {step}")
    if not states and not lines and problem is None:
        inner = [p for p, leaf in leaves(read.tree) if isinstance(leaf, bytes | memoryview)]
        console.print(
            f"no optimizer seen, but {leaf_name(inner[0])} is bytes, in which one may be: write "
            "those to a file of their own and inspect that"
            if inner
            else "no optimizer in it: parameters or other data only"
        )
    print_outline(console, read.path.name, read.tree, None if everything else AT_FIRST)
    return FOUND if problem is None else FAILED


def _step(read: "Read", path: "Names") -> object:
    import numpy as np

    from optax_bridge._text import brief
    from optax_bridge.checkpoints.locate import at_path
    from optax_bridge.checkpoints.trees import is_array

    step = at_path(read.tree, path)["step"]
    if is_array(step) and step.size != 1:
        return f"{step.dtype}{list(step.shape)}"
    return np.asarray(step).tolist() if is_array(step) or isinstance(step, int) else brief(step)


def _facts(read: "Read", parts: "list[Part]", states: "dict[Names, object]") -> dict[str, object]:
    from optax_bridge._text import brief
    from optax_bridge.checkpoints.inference import candidates
    from optax_bridge.checkpoints.trees import is_array
    from optax_bridge.metadata.paths import leaves

    optimizers = [
        {
            "part": part.name, "candidates": candidates(part), "step": part.step,
            "copies": part.copies,
        }
        for part in parts
    ]  # fmt: skip
    leaf_facts = [
        {"path": list(path)} | (_array_facts(leaf) if is_array(leaf) else {"value": brief(leaf)})
        for path, leaf in leaves(read.tree)
    ]
    step = {"step": states[()]} if () in states else {}
    return {
        "path": str(read.path), "format": read.description, **step, "optimizers": optimizers,
        "states": [{"part": "/".join(path), "step": step} for path, step in states.items()],
        "leaves": leaf_facts,
    }  # fmt: skip


def _array_facts(leaf: "Leaf") -> dict[str, object]:
    return {"dtype": str(leaf.dtype), "shape": list(leaf.shape), "bytes": int(leaf.nbytes)}


def description_of(part: "Part") -> str:
    """Returns the likely kind of an optimizer, its step and its peculiarities, in one line."""
    from optax_bridge.checkpoints.inference import looks_like

    looks = looks_like(part)
    if " or " in looks:
        looks += " (their states have the same fields; give convert yours by --optimizer)"
    notes = [f"optimizer {part.name}".rstrip() + f": {looks}", f"step {part.step}"]
    if part.copies is not None:
        notes.append(f"replicated {part.copies} times")
    if part.is_grouped:
        notes.append(f"{len(part.param_states)} groups, the layout up to flax 0.3.2")
    elif any(state is None for _, _, state in part.rows):
        notes.append("some parameters have no state: a MultiOptimizer or focus= left them alone")
    if isinstance(part.target, Mapping) and set(part.target) == {"params"}:
        notes.append("target is {'params': ...}: a model from before Linen, or Linen variables")
    return ", ".join(notes)


def print_outline(
    console: "Console", name: str, node: "PyTree", limit: int | None = AT_FIRST
) -> None:
    """Prints a tree, each level folded to at most so many lines, or whole."""
    from rich.tree import Tree

    from optax_bridge._text import brief
    from optax_bridge.checkpoints.trees import is_array

    root = Tree(name)
    waiting = [(root, node)]
    for tree, level in waiting:
        items = [*(level.items() if isinstance(level, Mapping) else enumerate(level))]
        for key, value in items[:limit]:
            label = brief(str(key))[1:-1]
            if isinstance(value, Mapping | list | tuple):
                waiting.append((tree.add(label if value else f"{label} (empty)"), value))
            elif is_array(value):
                tree.add(f"{label} {value.dtype}{list(value.shape)} {value.nbytes:,} bytes")
            else:
                tree.add(f"{label} {brief(value)}")
        if limit is not None and len(items) > limit:
            tree.add(f"and {len(items) - limit:,} more: --all shows them")
    console.print(root)
