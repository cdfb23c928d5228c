"""Checkpoints of `optax-bridge train`: a step, the folder of the steps, or the folder of a run."""

import json
import re
from pathlib import Path

import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats import Contents, Format
from optax_bridge.checkpoints.formats.orbax.read import read_orbax
from optax_bridge.metadata.paths import Names
from optax_bridge.metadata.trees import PyTree

STEP_NAME = re.compile(r"step_(\d{8})")
INDEX = "index/index.json"
CHECKSUMS = "checksums/crc32.txt"


def _is_step(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (INDEX, CHECKSUMS))


def _steps(folder: Path) -> list[Path]:
    """The steps in a folder, damaged ones too, by rising step."""
    return sorted(p for p in folder.glob("step_*") if STEP_NAME.fullmatch(p.name) and _is_step(p))


def _find(path: Path) -> Path | None:
    if _is_step(path):
        return path
    steps = _steps(path) or _steps(path / "checkpoints")
    return steps[-1] if steps else None


def step_in(folder: Path) -> int:
    """The step that the index of a folder is of."""
    try:
        (name, step), *_ = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if name != "step" or type(step) is not int:
            raise ValueError(f"{name}: {step}")
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(folder / INDEX, "the index of a trainer's step", error) from None
    match = STEP_NAME.fullmatch(folder.name)
    if match is not None and step != int(match[1]):
        found, remedy = f"the checkpoint of step {step}", "Rename the folder back."
        raise CheckpointError(folder / INDEX, f"the index of {folder.name}", found, remedy)
    return step


def _read(root: Path) -> Contents:
    """The step as a `TrainState`; other entries are named, and not in the tree."""
    step, steps = step_in(root), _steps(root.parent)
    tree: PyTree = read_orbax(root / "state")
    learner = tree.get("learner", {})
    if "model" not in tree or "optimizer" not in learner:
        return Contents({"step": step, **tree}, variant=f"step {step}")
    names = _linen_params(tree["model"])
    params, opt_state = _without(tree["model"], names), _without(learner["optimizer"], names)
    other_entries = [n for n in tree if n not in ("model", "learner")]
    other_entries += [f"learner/{n}" for n in learner if n != "optimizer"]
    notes = [f"steps {', '.join(str(int(p.name[5:])) for p in steps)}"]
    notes += [f"parameters from model/{'/'.join(names)}"] if names else []
    notes += [f"next to it {', '.join(sorted(other_entries))}"] if other_entries else []
    contents = {"step": np.asarray(step, np.int32), "params": params, "opt_state": opt_state}
    return Contents(contents, variant="; ".join(notes))


def _linen_params(model: PyTree) -> Names:
    """Returns the path of a Linen module's parameters, if there is nothing else."""
    names: Names = ()
    while isinstance(model, dict) and len(model) == 1 and names[-1:] != ("params",):
        ((name, model),) = model.items()
        names = (*names, name)
    return names if names[-1:] == ("params",) else ()


def _without(tree: PyTree, names: Names) -> PyTree:
    """Returns a tree in which these names are replaced by the level below them."""
    if not isinstance(tree, dict):
        return tree
    below: PyTree = tree
    for name in names:
        below = below[name] if isinstance(below, dict) and set(below) == {name} else None
    is_found = names and below is not None
    return below if is_found else {name: _without(node, names) for name, node in tree.items()}


FORMAT = Format("Trainer", "trainer", find=_find, read=_read)
