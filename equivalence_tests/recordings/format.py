"""Recordings as files: folders, as `recorder.py` writes them, and packed ones.

A packed file is one `.npz`: an index of its recordings, and the bytes of all arrays in that order.
"""

import contextlib
import io
import itertools
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.output_files import write_bytes_with
from equivalence_tests.recordings.recorder import INDEX, STEP, VERSION, leaves_of, path_text
from optax_bridge._text import listing
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.layout import torch_checkpoint
from optax_bridge.torch.checkpoints.moves import as_legacy
from optax_bridge.torch.checkpoints.names import NamesFile

Path_ = tuple[str | int, ...]
Flat = dict[Path_, Any]  # path -> array, or a scalar; of a gradient that is missing None
Leaves = dict[str, np.ndarray]  # by the text of their paths, as comparisons name them

# What zipfile, json and NumPy raise on files that are damaged, or that another program wrote.
_UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, LookupError)
_UNREADABLE += (TypeError, ValueError, AttributeError)


class RecordingError(ValueError):
    """A recording that cannot be read or used; the message says why."""


@dataclass(frozen=True)
class Step:
    """One recorded step: its trees, and the other fields of its file."""

    number: int
    trees: dict[str, Flat]
    rates: Mapping[str, float] = field(default_factory=dict)  # by group
    loss: float | None = None
    micro_batches: int = 1
    skipped: bool = False

    @property
    def is_double(self) -> bool:
        """True if a parameter is in float64, which JAX has to be set to."""
        return any(leaf.dtype == np.float64 for leaf in self.trees["params"].values())

    @property
    def batch(self) -> Any:
        """The batch, or the text of its digest; None if neither was recorded."""
        return nest(self.trees["batch"]) if "batch" in self.trees else None

    @property
    def tensors(self) -> dict[str, Any]:
        """Parameters and model state by name, as PyTorch's are."""
        flats = [self.trees.get(tree, {}) for tree in ("params", "model_state")]
        return {"/".join(map(str, path)): leaf for flat in flats for path, leaf in flat.items()}


@dataclass(frozen=True)
class Recording:
    """The steps of a training run, and notes on it."""

    place: str
    index: Mapping[str, Any]
    steps: Sequence[Step]
    remark: str = ""  # on what could not be read

    @property
    def first(self) -> int:
        """The number of the first step."""
        return self.steps[0].number

    def until(self, count: int | None) -> "Recording":
        """The first steps of it, so many."""
        return replace(self, steps=self.steps[:count])

    def stacks(self, tree: str, root: str = "params") -> Leaves:
        """Every array of a tree over all steps, of shape (steps, ...), as far as all have it."""
        return stacks_of([step.trees.get(tree, {}) for step in self.steps], root)


def stacks_of(flats: Sequence[Flat], root: str = "params") -> Leaves:
    """The arrays that each step has, with a leading axis of steps."""
    return {
        path_text(path, root): np.stack([flat[path] for flat in flats])
        for path in (flats[0] if flats else ())
        if all(isinstance(flat.get(path), np.ndarray) for flat in flats)
    }


def nest(flat: Mapping[Path_, Any]) -> PyTree:
    """Returns nested dicts and tuples of leaves by path."""
    if list(flat) == [()]:
        return flat[()]
    below: dict[str | int, Flat] = {}
    for path, leaf in flat.items():
        below.setdefault(path[0], {})[path[1:]] = leaf
    nested = {key: nest(leaves) for key, leaves in below.items()}
    if nested and all(isinstance(key, int) for key in nested):
        return tuple(nested[key] for key in sorted(nested))
    return nested


def named_leaves(flat: Mapping[Path_, Any], tree: str = "params") -> dict[str, Any]:
    """Leaves by the text of their paths, as comparisons name them."""
    return {path_text(path, tree): leaf for path, leaf in flat.items()}


def flat_like(tree: PyTree) -> Flat:
    """The leaves of a tree, those of JAX on the host, by the paths that the recorder gives them."""
    return {tuple(path): leaf for path, leaf in leaves_of(jax.device_get(tree))}


def read(place: Path | str, steps: int | None = None) -> Recording:
    """Reads a recording, a folder or a packed file, or the first steps of it."""
    path = Path(place)
    if path.is_dir():
        return _read_folder(path, steps)
    recordings = read_packed(path)
    if len(recordings) != 1:
        message = f"found {listing(list(recordings))}. `check --against` reads those of `--record`"
        raise RecordingError(f"{place}: expected one recording, {message}")
    return next(iter(recordings.values())).until(steps)


@contextlib.contextmanager
def _readable(place: Path) -> Iterator[None]:
    """Context that turns every error of a damaged file into a RecordingError."""
    try:
        yield
    except RecordingError:
        raise
    except _UNREADABLE as error:
        raise RecordingError(
            f"{place}: expected a recording: a folder as `optax-bridge recorder` makes one, or a "
            f"file written by `replay --pack` or `check --record`; found {error!r}"
        ) from None


def _index(content: bytes, place: Path) -> dict[str, Any]:
    index = json.loads(content)
    if index["version"] != VERSION:
        message = f"found {index['version']!r}. Record it with today's `optax-bridge recorder`"
        raise RecordingError(f"{place}: expected a recording of version {VERSION}, {message}")
    return index


def _read_folder(path: Path, limit: int | None) -> Recording:
    with _readable(path / INDEX):
        index = _index((path / INDEX).read_bytes(), path / INDEX)
    files = sorted(path.glob("step-*.npz"))[:limit]
    size = sum(file.stat().st_size for file in files)
    if size > _memory():
        text = f"{path}: {len(files)} steps of {size:.3g} bytes are more than the memory"
        raise RecordingError(f"{text} of this machine. Read the first ones: steps=, or --steps")
    steps: list[Step] = []
    remark = ""
    for file in files:
        if steps and file.name != STEP % (steps[-1].number + 1):
            remark = f"step {steps[-1].number + 1} is missing"
            break
        try:
            with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
                members = (_member(archive, str(number)) for number in itertools.count())
                meta = json.load(_member(archive, "meta"))
                steps.append(_step(meta, members, steps))
        except _UNREADABLE as error:
            remark = f"{file.name} cannot be read ({error!r})"
            break
    if not steps:
        raise RecordingError(f"{path}: expected recorded steps, found none. {remark}".rstrip(" ."))
    remark += f": the {len(steps)} steps before it are judged" if remark else ""
    return Recording(str(path), index, steps, remark)


def read_packed(path: Path) -> dict[str, Recording]:
    """Reads every recording of a packed file."""
    with _readable(path), path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        index = _index(_member(archive, "index").read(), path)
        data = itertools.repeat(_member(archive, "data"))
        recordings: dict[str, Recording] = {}
        for name, entry in index["recordings"].items():
            steps: list[Step] = []
            for meta in entry.pop("steps"):
                steps.append(_step(meta, data, steps))
            recordings[name] = Recording(f"{path}:{name}", entry, steps)
        if not recordings or next(data).read(1):
            raise ValueError("no recordings, or more arrays than its index has")
        return recordings


def _step(meta: dict[str, Any], streams: Iterator[BinaryIO], earlier: Sequence[Step]) -> Step:
    """A step of its description and of the streams that its arrays are read from."""
    trees: dict[str, Flat] = {}
    for tree, path, name, shape in meta.pop("arrays"):
        if (dtype := jnp.dtype(name)).kind not in "fiubcV":
            raise ValueError(f"numbers, not {name!r}")
        content = next(streams).read(dtype.itemsize * math.prod(shape))
        trees.setdefault(tree, {})[tuple(path)] = np.frombuffer(content, dtype).reshape(shape)
    for tree, path, value in meta.pop("scalars"):
        trees.setdefault(tree, {})[tuple(path)] = value
    if earlier:  # what it does not repeat, and what was not recorded of the one before
        params = trees.setdefault("params", earlier[-1].trees.get("new_params", {}))
        earlier[-1].trees.setdefault("new_params", params)
    return Step(trees=trees, **meta)


def _member(archive: zipfile.ZipFile, name: str) -> BinaryIO:
    """The content of an array as a stream; its size is looked at before memory is taken."""
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > _memory():
        raise ValueError(f"{name}: {info.file_size:.3g} bytes, more than this machine's memory")
    stream = io.BytesIO(archive.read(info))
    np.lib.format.read_magic(stream)
    np.lib.format.read_array_header_1_0(stream)
    return stream


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def pack(recordings: Mapping[str, Recording], file: Path) -> None:
    """Writes recordings into one `.npz`."""
    data = io.BytesIO()
    entries = {name: _entry(recording, data) for name, recording in recordings.items()}
    index = json.dumps({"version": VERSION, "recordings": entries}).encode()
    arrays = (np.frombuffer(content, np.uint8) for content in (index, data.getbuffer()))
    named: Any = dict(zip(("index", "data"), arrays, strict=True))
    write_bytes_with(file, lambda stream: np.savez_compressed(stream, **named))


def _entry(recording: Recording, data: BinaryIO) -> dict[str, Any]:
    """The entry of a recording in the index; the content of its arrays is appended."""
    metas, last = [], None
    for step in recording.steps:
        meta = {**vars(step), "arrays": [], "scalars": []}
        for tree, flat in meta.pop("trees").items():
            for path, leaf in {} if flat is last else flat.items():
                if isinstance(leaf, np.ndarray):
                    meta["arrays"].append([tree, path, leaf.dtype.name, leaf.shape])
                    data.write(leaf.tobytes())
                else:
                    meta["scalars"].append([tree, path, leaf])
        last = step.trees.get("new_params")
        metas.append(meta)
    about = {key: value for key, value in recording.index.items() if key != "names"}
    return {**about, "steps": metas}


_BY_NAME = ("params", "half_params", "raw_grads", "grads", "new_params", "model_state")


def in_flax(recording: Recording, file: NamesFile) -> Recording:
    """Returns a recording of PyTorch with the names and the layout of a names file."""
    tensors = list(recording.steps[0].tensors)
    entries = {name: entry for name, entry in file.entries.items() if name in tensors}
    file = replace(file, model=None, optimizer=None, entries=entries)
    rules = {rule.name: rule for rule in file.rules(tensors)}

    def move(tree: str, flat: Flat) -> Flat:
        collections = 0 if tree == "model_state" else 1  # in front of a parameter's path
        leaves: Flat = {}
        for name, leaf in flat.items():
            if rule := rules.get("/".join(map(str, name))):
                arrays = dict.fromkeys(rule.paths) if leaf is None else rule.to_flax(leaf)
                leaves |= {path[collections:]: array for path, array in arrays.items()}
        return leaves

    groups = [
        {**g, "params": [p[1:] for (n,) in g["params"] if n in rules for p in rules[n].paths]}
        for g in recording.index.get("groups", [])
    ]
    steps = [
        replace(s, trees=s.trees | {t: move(t, x) for t, x in s.trees.items() if t in _BY_NAME})
        for s in recording.steps
    ]
    return replace(recording, index={**recording.index, "groups": groups}, steps=steps)


def recorded_state(source: Recording, names: NamesFile | None) -> PyTree:
    """The optimizer's state before the first step, in the layout of flax.optim or Optax's own."""
    first, state = source.steps[0], source.steps[0].trees.get("state")
    if state is None:
        return None
    tree = nest({tuple(map(str, path)): leaf for path, leaf in state.items()})
    if "param_groups" not in tree:
        is_legacy = "param_states" in tree
        return {"state": tree} if is_legacy else {"step": source.first, "opt_state": tree}
    if names is None:
        entries = {str(name): f"params/{name}" for (name,) in first.trees["params"]}
        drop = [str(name) for (name,) in first.trees.get("model_state", {})]
        names = NamesFile(source.place, None, None, drop, None, entries)
    order = [str(name) for group in source.index.get("groups", []) for (name,) in group["params"]]
    names = replace(names, model="model", optimizer="optimizer", order=order)
    saved = {"model": first.tensors, "optimizer": nest(state)}
    checkpoint = torch_checkpoint(saved, source.place, "model", "optimizer")
    return as_legacy(checkpoint, names, step=source.first)[0]["optimizer"]
