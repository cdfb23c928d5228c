"""Checkpoints of `optax-bridge train`: a step, the folder of the steps, or the folder of a run."""

import json
import re
import zlib
from collections.abc import Callable, Sequence
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


def checksum_lines(folder: Path, files: Sequence[Path]) -> str:
    """Returns a line for each file with its checksum, size and name, and one for these lines."""
    lines = [
        f"{_crc32(file):08x} {file.stat().st_size} {file.relative_to(folder).as_posix()}\n"
        for file in files
    ]
    return "".join([*lines, _last_line(lines)])


def damage_of(
    folder: Path,
    index: int = 0,
    count: int = 1,
    merge: Callable[[np.ndarray], np.ndarray] = lambda is_wrong: is_wrong,
) -> list[str]:
    """Returns the problems of a step's files, a line each; processes share the work by number."""
    try:
        *lines, last = (folder / CHECKSUMS).read_text().splitlines(keepends=True)
    except (OSError, ValueError):
        lines, last = list[str](), ""
    if not lines or last != _last_line(lines):
        state = "damaged" if (folder / CHECKSUMS).exists() else "missing"
        return [f"{CHECKSUMS}: {state}, which has the checksums of all other files"]
    entries = [line.rstrip("\n").split(" ", 2) for line in lines]
    is_wrong = np.zeros(len(entries), bool)
    for number in range(index, len(entries), count):
        is_wrong[number] = _problem_of(folder, *entries[number]) is not None
    problems = [
        _problem_of(folder, *entry) or f"{entry[2]}: damaged"
        for entry, is_bad in zip(entries, merge(is_wrong), strict=True)
        if is_bad
    ]
    match, step = STEP_NAME.fullmatch(folder.name), _step_in(folder)
    if match is not None and step not in (None, int(match[1])):
        problems.append(f"{INDEX}: that of step {step}; rename the folder back")
    return problems


def _problem_of(folder: Path, crc: str, size: str, name: str) -> str | None:
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


def _step_in(folder: Path) -> int | None:
    """The step that the index of a folder is of; None if it does not say."""
    try:
        (name, step), *_ = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
    return step if name == "step" and type(step) is int else None


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


def _steps(folder: Path) -> list[Path]:
    """The steps in a folder, damaged ones too, by rising step."""
    return sorted(p for p in folder.glob("step_*") if STEP_NAME.fullmatch(p.name) and _is_step(p))


def _find(path: Path) -> Path | None:
    if _is_step(path):
        return path
    steps = _steps(path) or _steps(path / "checkpoints")
    return steps[-1] if steps else None


def _read(root: Path) -> Contents:
    """The step as a `TrainState`; what else it has is named, and not in the tree."""
    problems, steps = damage_of(root), _steps(root.parent)
    if problems:
        whole_steps = [step.name for step in steps if step != root and not damage_of(step)]
        raise CheckpointError(
            root, "the files that a trainer wrote", "; ".join(problems[:3]),
            f"Whole beside it: {', '.join(whole_steps)}. Name one of these." if whole_steps
            else "No other step beside it is whole.",
        )  # fmt: skip
    step = _step_in(root)
    if step is None:
        content = brief((root / INDEX).read_text())
        raise CheckpointError(root / INDEX, "a trainer's step", content, "Is it another's?")
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
    notes += [f"beside it {', '.join(sorted(other_entries))}"] if other_entries else []
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
    """Returns a tree in which these names are replaced by what is below them."""
    if not isinstance(tree, dict):
        return tree
    below: PyTree = tree
    for name in names:
        below = below[name] if isinstance(below, dict) and set(below) == {name} else None
    is_found = names and below is not None
    return below if is_found else {name: _without(node, names) for name, node in tree.items()}


FORMAT = Format("Trainer", "trainer", find=_find, read=_read)
