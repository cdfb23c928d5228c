"""Checkpoints of `optax-bridge train`: a step, the folder of the steps, or the folder of a run."""

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, brief
from optax_bridge.checkpoints.formats.format import Contents, Format
from optax_bridge.checkpoints.formats.orbax.read import read_orbax
from optax_bridge.metadata.paths import Names
from optax_bridge.metadata.trees import PyTree

STEP_NAME = re.compile(r"step_(\d{8})")
INDEX = "index/index.json"
CHECKSUMS = "checksums/crc32.txt"
_BLOCK = 2**24


def step_folders(folder: Path) -> list[Path]:
    """Returns the steps of a folder, damaged ones too, by rising step."""
    names = sorted(e.name for e in folder.glob("step_*") if STEP_NAME.fullmatch(e.name))
    return [folder / name for name in names if _is_step(folder / name)]


def checksum_lines(folder: Path, files: Sequence[Path]) -> str:
    """Returns a line for each file with its checksum, size and name, and one for these lines."""
    lines = [
        f"{_crc32(file):08x} {file.stat().st_size} {file.relative_to(folder).as_posix()}\n"
        for file in files
    ]
    return "".join([*lines, _last_line(lines)])


def read_checksums(folder: Path) -> list[list[str]] | None:
    """Returns checksum, size and name of each file of a step; None if they cannot be relied on."""
    try:
        *lines, last = (folder / CHECKSUMS).read_text().splitlines(keepends=True)
    except (OSError, ValueError):
        return None
    if not lines or last != _last_line(lines):
        return None
    return [line.rstrip("\n").split(" ", 2) for line in lines]


def without_checksums(folder: Path) -> str:
    """Returns what is wrong with a step whose checksums `read_checksums` cannot read."""
    state = "damaged" if (folder / CHECKSUMS).exists() else "missing"
    return f"{CHECKSUMS}: {state}, which has the checksums of all other files"


def problem_of(folder: Path, entry: Sequence[str]) -> str | None:
    """Returns what is wrong with a file of `read_checksums`, None if nothing is."""
    crc, size, name = entry
    try:
        actual_size = (folder / name).stat().st_size
        if actual_size != int(size):
            return f"{name}: {size} bytes expected, found {actual_size}"
        matches = f"{_crc32(folder / name):08x}" == crc
        return None if matches else f"{name}: other bytes than were written"
    except FileNotFoundError:
        return f"{name}: missing"
    except OSError as error:
        return f"{name}: cannot be read: {error.strerror}"


def damage_of(folder: Path) -> list[str]:
    """Returns what is wrong with the files of a step, a line each."""
    entries = read_checksums(folder)
    if entries is None:
        return [without_checksums(folder)]
    problems = (problem_of(folder, entry) for entry in entries)
    return [problem for problem in problems if problem is not None] + other_step_in(folder)


def other_step_in(folder: Path) -> list[str]:
    """Returns a line if the folder of a step holds another one, as a renamed copy does."""
    match = STEP_NAME.fullmatch(folder.name)
    try:
        (_, step), *_ = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return []
    if match is None or step == int(match[1]):
        return []
    return [f"{INDEX}: that of step {step}; rename the folder back"]


def _crc32(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def _last_line(lines: Sequence[str]) -> str:
    return f"{zlib.crc32(''.join(lines).encode()):08x}\n"


def _is_step(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (INDEX, CHECKSUMS))


def _find(path: Path) -> Path | None:
    if _is_step(path):
        return path
    for folder in (path, path / "checkpoints"):
        steps = step_folders(folder) if folder.is_dir() else []
        if steps:
            return steps[-1]
    return None


def _read(root: Path) -> Contents:
    """The step as a `TrainState`; what else it has is named, and not in the tree."""
    problems = damage_of(root)
    if problems:
        whole_steps = [p.name for p in step_folders(root.parent) if p != root and not damage_of(p)]
        raise CheckpointError(
            root, "the files that a trainer wrote", "; ".join(problems[:3]),
            f"Whole beside it: {', '.join(whole_steps)}. Name one of these." if whole_steps
            else "No other step beside it is whole.",
        )  # fmt: skip
    try:
        (name, step), *_ = json.loads((root / INDEX).read_text(encoding="utf-8"))
        if name != "step" or type(step) is not int:
            raise ValueError
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            root / INDEX, "the list of a trainer's step", brief(str(error)), "Is it another's?"
        ) from None
    tree: PyTree = read_orbax(root / "state")
    learner = tree.get("learner", {})
    if "model" not in tree or "optimizer" not in learner:
        return Contents({"step": step, **tree}, variant=f"step {step}")
    names = _linen_params(tree["model"])
    params, opt_state = _without(tree["model"], names), _without(learner["optimizer"], names)
    other_entries = [n for n in tree if n not in ("model", "learner")]
    other_entries += [f"learner/{n}" for n in learner if n != "optimizer"]
    notes = [f"steps {', '.join(str(int(p.name[5:])) for p in step_folders(root.parent))}"]
    notes += [f"parameters from model/{'/'.join(names)}"] if names else []
    notes += [f"beside it {', '.join(sorted(other_entries))}"] if other_entries else []
    contents = {"step": np.asarray(step, np.int32), "params": params, "opt_state": opt_state}
    return Contents(contents, variant="; ".join(notes))


def _linen_params(model: PyTree) -> Names:
    """Returns the path of a Linen module's parameters, if there is nothing else."""
    names: Names = ()
    while isinstance(model, dict) and len(model) == 1:
        ((name, model),) = model.items()
        names = (*names, name)
        if name == "params":
            return names
    return ()


def _without(tree: PyTree, names: Names) -> PyTree:
    """Returns a tree in which these names are replaced by what is below them."""
    below = tree
    for name in names:
        if not isinstance(below, dict) or set(below) != {name}:
            break
        below = below[name]
    else:
        return below
    return {k: _without(v, names) for k, v in tree.items()} if isinstance(tree, dict) else tree


FORMAT = Format("Trainer", "trainer", find=_find, read=_read)
