"""Recordings as files: read from a folder or from one packed file, and packed.

A folder is what `recorder.py` writes. A packed file is one `.npz` with one recording or several:
leaves that the same steps have are one array of bytes, of shape (bytes of a step, steps), so that
what stays alike from step to step is compressed away; an index says which leaf is where. Nothing is
pickled.
"""

import functools
import itertools
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import SequenceKey

from equivalence_tests.output_files import write_bytes_with
from equivalence_tests.recordings.recorder import INDEX, VERSION
from optax_bridge._text import listing
from optax_bridge.metadata.paths import key_names
from optax_bridge.metadata.trees import PyTree

Path_ = tuple[str | int, ...]
Flat = dict[Path_, Any]  # path -> array, or a scalar

# What zipfile, json and NumPy raise on files that are damaged, or that another program wrote.
_UNREADABLE = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,  # encrypted; a method that is not supported
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)


class RecordingError(ValueError):
    """A recording that cannot be read or used; the message says why."""


@dataclass(frozen=True)
class Step:
    """One recorded step; its fields beside the trees are those of the file."""

    number: int
    trees: dict[str, Flat]
    rates: Mapping[str, float] = field(default_factory=dict)  # by group
    loss: float | None = None
    micro_batches: int = 1
    skipped: bool = False
    missing: frozenset[tuple[str, Path_]] = frozenset()  # gradients that are None
    digest: str | None = None

    @property
    def is_double(self) -> bool:
        """True if a parameter is in float64, which JAX has to be set to."""
        return any(leaf.dtype == np.float64 for leaf in self.trees["params"].values())

    @property
    def batch(self) -> Any:
        """The batch, or the digest of it; None if neither was recorded."""
        return self.digest or (nest(self.trees["batch"]) if "batch" in self.trees else None)

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

    @property
    def origin(self) -> str:
        """The framework and its version."""
        versions = self.index.get("versions", {})
        name = next((n for n in ("torch", "tensorflow", "flax", "jax", "mlx") if n in versions), "")
        return f"{name} {versions[name]}" if name else "an unnamed framework"

    def until(self, count: int | None) -> "Recording":
        """The first steps of it, so many."""
        return replace(self, steps=self.steps[:count])

    def stacks(self, tree: str) -> dict[Path_, np.ndarray]:
        """Every array of a tree over all steps, of shape (steps, ...), as far as all have it."""
        return stacks_of([step.trees.get(tree, {}) for step in self.steps])


def stacks_of(flats: Sequence[Flat]) -> dict[Path_, np.ndarray]:
    """The arrays that each step has, with a leading axis of steps."""
    paths = [path for path in flats[0] if all(path in flat for flat in flats)]
    paths = [path for path in paths if isinstance(flats[0][path], np.ndarray)]
    return {path: np.stack([flat[path] for flat in flats]) for path in paths}


def read(place: Path | str, steps: int | None = None) -> Recording:
    """Reads a recording, a folder or a packed file, or the first steps of a folder."""
    path = Path(place)
    if path.is_dir():
        return _read_folder(path, steps)
    recordings = read_packed(path)
    if len(recordings) != 1:
        raise RecordingError(
            f"{place}: expected one recording, found {listing(list(recordings))}. What "
            "`optax-bridge check --record` wrote is compared by `optax-bridge check --against`"
        )
    return next(iter(recordings.values()))


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


def path_text(path: Path_, tree: str = "params") -> str:
    """Returns a leaf's path as messages write it: `params['dense']['kernel']`."""
    return tree + "".join(f"[{key!r}]" for key in path)


def named_leaves(flat: Mapping[Path_, Any], tree: str = "params") -> dict[str, Any]:
    """Leaves by the text of their paths, as comparisons name them."""
    return {path_text(path, tree): leaf for path, leaf in flat.items()}


def host_leaves(tree: PyTree) -> Flat:
    """The leaves of a tree of JAX by path, as NumPy's arrays."""
    flat: Flat = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        pairs = zip(path, key_names(path), strict=True)
        names = (key.idx if isinstance(key, SequenceKey) else name for key, name in pairs)
        flat[tuple(names)] = np.asarray(leaf)
    return flat


def _read_folder(path: Path, limit: int | None) -> Recording:
    index = _load_index(path / INDEX, lambda file: json.loads(file.read_text(encoding="utf-8")))
    files = sorted(path.glob("step-*.npz"))[:limit]
    size = sum(file.stat().st_size for file in files)
    if size > _memory():
        raise RecordingError(
            f"{path}: {len(files)} steps of {size:.3g} bytes are more than the memory of this "
            "machine. Read the first ones: steps=, or --steps"
        )
    steps: list[Step] = []
    remark = ""
    for file in files:
        try:
            step = _read_step(file, steps)
        except _UNREADABLE as error:
            remark = f"{file.name} cannot be read ({_cause(error)}): what comes before it is judged"
            break
        if steps and step.number != steps[-1].number + 1:
            remark = (
                f"step {steps[-1].number + 1} is missing: what comes before it is judged, "
                f"{len(steps)} of {len(files)} steps"
            )
            break
        steps.append(step)
    if not steps:
        raise RecordingError(f"{path}: expected recorded steps, found none. {remark}".rstrip(" ."))
    return Recording(str(path), index, _with_new_params(steps), remark)


def _load_index(path: Path, load: Callable[[Path], Any]) -> Mapping[str, Any]:
    try:
        index = load(path)
        version = index["version"]
    except _UNREADABLE as error:
        raise RecordingError(
            f"{path}: expected a recording, as `optax-bridge recorder` makes one, found "
            f"{_cause(error)}"
        ) from None
    if version != VERSION:
        raise RecordingError(
            f"{path}: expected a recording of version {VERSION}, found {version!r}. Record it with "
            "the file that this version's `optax-bridge recorder` prints"
        )
    return index


def _read_step(file: Path, before: Sequence[Step]) -> Step:
    with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        meta = json.loads(_member(archive, "meta").tobytes())
        trees: dict[str, Flat] = {}
        for number, (tree, path, dtype) in enumerate(meta.pop("arrays")):
            bits = _member(archive, str(number))
            trees.setdefault(tree, {})[tuple(path)] = bits.view(_dtype(dtype))
    return _step(meta, trees, before)


def _step(meta: Mapping[str, Any], trees: dict[str, Flat], before: Sequence[Step]) -> Step:
    fields = dict(meta)
    for tree, path, value in fields.pop("scalars"):
        trees.setdefault(tree, {})[tuple(path)] = value
    if "params" not in trees and before:
        trees["params"] = before[-1].trees["new_params"]
    missing = frozenset((tree, tuple(path)) for tree, path in fields.pop("missing"))
    return Step(trees=trees, missing=missing, **fields)


def _with_new_params(steps: Sequence[Step]) -> list[Step]:
    """The steps with the next one's parameters where the new ones were not recorded."""
    for step, following in itertools.pairwise(steps):
        step.trees.setdefault("new_params", following.trees["params"])
    return list(steps)


def _dtype(name: str) -> np.dtype[Any]:
    dtype = jnp.dtype(name)
    if dtype.kind not in "fiubcV" or dtype.hasobject:
        raise ValueError(f"numbers, not {name!r}")
    return dtype


def _member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Reads an array; its size is looked at before memory is taken."""
    size = archive.getinfo(f"{name}.npy").file_size
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = header(stream)
        expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if dtype.hasobject or size < expected:
            raise ValueError(f"{name}: {dtype}{list(shape)} in {size} bytes")
        if expected > _memory():
            raise ValueError(f"{name}: {expected:.3g} bytes, more than the memory of this machine")
    with archive.open(f"{name}.npy") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"


def pack(recordings: Mapping[str, Recording], file: Path) -> None:
    """Writes recordings into one `.npz`; arrays that several share are in it once."""
    members: dict[tuple[Any, ...], str] = {}  # name by content
    entries = {name: _packed(recording, members) for name, recording in recordings.items()}
    index = json.dumps({"version": VERSION, "recordings": entries}).encode()

    def write(stream: BinaryIO) -> None:
        # One date for all, so that the same recordings are the same bytes.
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for (shape, content), name in [(((len(index),), index), "index"), *members.items()]:
                entry = zipfile.ZipInfo(f"{name}.npy")
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    array = np.frombuffer(content, np.uint8).reshape(shape)
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write_bytes_with(file, write)


def _packed(recording: Recording, members: dict[tuple[Any, ...], str]) -> dict[str, Any]:
    """The entry of a recording in the index; its arrays are added to the members."""
    # Leaf -> the array of each step that has it; what the same steps have is one member.
    by_leaf: dict[tuple[Any, ...], dict[int, np.ndarray]] = {}
    metas = []
    last = None
    for number, step in enumerate(recording.steps):
        meta = {key: value for key, value in vars(step).items() if key != "trees"}
        metas.append({**meta, "missing": sorted(step.missing, key=str), "scalars": []})
        for tree, flat in step.trees.items():
            if flat is last:
                continue  # the new parameters of the step before
            for path, leaf in flat.items():
                if isinstance(leaf, np.ndarray):
                    key = (tree, path, leaf.dtype.name, leaf.shape)
                    by_leaf.setdefault(key, {})[number] = leaf
                else:
                    metas[-1]["scalars"].append([tree, path, leaf])
        last = step.trees.get("new_params")
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[Any, ...]]] = {}
    for (tree, *leaf), by_step in by_leaf.items():
        groups.setdefault((tree, tuple(by_step)), []).append((leaf, by_step.values()))
    rows = []
    for (tree, numbers), leaves in groups.items():
        parts = [b"".join(array.tobytes() for array in arrays) for _, arrays in leaves]
        stacks = [np.frombuffer(part, np.uint8).reshape(len(numbers), -1) for part in parts if part]
        packed = np.concatenate(stacks or [np.zeros((len(numbers), 0), np.uint8)], axis=1).T
        name = members.setdefault((packed.shape, packed.tobytes()), str(len(members)))
        rows.append([tree, numbers, name, [leaf for leaf, _ in leaves]])
    about = {key: value for key, value in recording.index.items() if key != "names"}
    return {**about, "steps": metas, "trees": rows}


def read_packed(path: Path) -> dict[str, Recording]:
    """Reads every recording of a packed file."""
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            index = _load_index(path, lambda _: json.loads(_member(archive, "index").tobytes()))
            member = functools.cache(lambda name: np.ascontiguousarray(_member(archive, name).T))
            if not (entries := index["recordings"].items()):
                raise ValueError("none in it")
            return {name: _unpacked(f"{path}:{name}", entry, member) for name, entry in entries}
    except RecordingError:
        raise
    except _UNREADABLE as error:
        raise RecordingError(
            f"{path}: expected a file written by `optax-bridge replay --pack` or `check --record`, "
            f"or a folder of the recorder, found {_cause(error)}"
        ) from None


def _unpacked(
    place: str, entry: Mapping[str, Any], member: Callable[[str], np.ndarray]
) -> Recording:
    flats: list[dict[str, Flat]] = [{} for _ in entry["steps"]]
    for tree, numbers, name, leaves in entry["trees"]:
        rows, start = member(name), 0
        for path, dtype, shape in ((tuple(p), _dtype(d), s) for p, d, s in leaves):
            end = start + dtype.itemsize * int(np.prod(shape))
            for number, row in zip(numbers, rows, strict=True):
                leaf = np.frombuffer(row[start:end].tobytes(), dtype).reshape(shape)
                flats[number].setdefault(tree, {})[path] = leaf
            start = end
        if start != rows.shape[1]:
            raise ValueError(f"leaves of {start} bytes in {rows.shape[1]}")
    steps: list[Step] = []
    for meta, trees in zip(entry["steps"], flats, strict=True):
        steps.append(_step(meta, trees, steps))
    about = {key: value for key, value in entry.items() if key not in ("trees", "steps")}
    return Recording(place, about, _with_new_params(steps))
