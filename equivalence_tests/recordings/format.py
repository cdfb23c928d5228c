"""Recordings as files: read from a folder or from one packed file, and packed.

A folder is what `recorder.py` writes. A packed file is one `.npz` with one recording or several:
each tree is one array of bytes, of shape (bytes of a step, steps), so that what stays alike from
step to step is compressed away; an index says which leaf is where. Nothing is pickled.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np

from equivalence_tests.output_files import write_bytes_with
from equivalence_tests.recordings.recorder import INDEX, TREES, VERSION
from optax_bridge._text import listing
from optax_bridge.metadata.trees import PyTree

Path_ = tuple[str | int, ...]
Flat = dict[Path_, Any]  # path -> array, or a scalar
Row = tuple[str, Path_, np.dtype[Any], tuple[int, ...]]

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
    """A recording that cannot be read, or not be used for what it was meant; says why."""


@dataclass(frozen=True)
class Step:
    """One recorded step."""

    number: int
    trees: Mapping[str, Flat]
    rates: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None
    micro_batches: int = 1
    skipped: bool = False
    missing: frozenset[tuple[str, Path_]] = frozenset()
    digest: str | None = None

    def tree(self, name: str) -> Flat | None:
        """The leaves of a tree; None if it was not recorded."""
        return self.trees.get(name)


@dataclass(frozen=True)
class Recording:
    """The steps of a training run, and what was said of it."""

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

    def stacked(self, tree: str, steps: int | None = None) -> dict[Path_, np.ndarray]:
        """Every array of a tree over all steps, of shape (steps, ...), as far as all have it."""
        flats = [step.trees.get(tree, {}) for step in self.steps[:steps]]
        paths = [path for path in flats[0] if all(path in flat for flat in flats)]
        return {path: np.stack([np.asarray(flat[path]) for flat in flats]) for path in paths}


def read(place: Path | str, name: str | None = None) -> Recording:
    """Reads a recording: a folder, or a packed file; `name` says which one of several."""
    path = Path(place)
    if path.is_dir():
        return _read_folder(path)
    recordings = read_packed(path)
    if name is None and len(recordings) == 1:
        return next(iter(recordings.values()))
    if name not in recordings:
        raise RecordingError(
            f"{place}: expected one recording, or one called {name!r}, found "
            f"{listing(list(recordings))}"
        )
    return recordings[name]


def nest(flat: Flat) -> PyTree:
    """Returns nested dicts and tuples of leaves by path."""
    if list(flat) == [()]:
        return flat[()]
    below: dict[str | int, Flat] = {}
    for path, leaf in flat.items():
        below.setdefault(path[0], {})[path[1:]] = leaf
    parts = {key: nest(leaves) for key, leaves in below.items()}
    if parts and all(isinstance(key, int) for key in parts):
        return tuple(parts[key] for key in sorted(parts))
    return parts


def path_text(path: Path_, tree: str = "params") -> str:
    """A leaf's path as in messages: `params['dense']['kernel']`."""
    return tree + "".join(f"[{key!r}]" for key in path)


def _read_folder(path: Path) -> Recording:
    index = _load_index(path / INDEX, lambda file: json.loads(file.read_text(encoding="utf-8")))
    files = sorted(path.glob("step-*.npz"))
    steps: list[Step] = []
    remark = ""
    last: Flat = {}
    for file in files:
        try:
            step = _read_step(file, last)
        except _UNREADABLE as error:
            remark = f"{file.name} cannot be read ({_cause(error)}): what comes before it is judged"
            break
        if steps and step.number != steps[-1].number + 1:
            remark = (
                f"step {steps[-1].number + 1} is missing: what comes before it is judged, "
                f"{len(steps)} of {len(files)} steps"
            )
            break
        last = step.trees.get("new_params", {})
        steps.append(step)
    if not steps:
        raise RecordingError(f"{path}: expected recorded steps, found none. {remark}".rstrip(" ."))
    return Recording(str(path), index, _with_new_params(steps), remark)


def _load_index(path: Path, load: Any) -> Mapping[str, Any]:
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


def _read_step(file: Path, last: Flat) -> Step:
    with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        meta = json.loads(_member(archive, "meta").tobytes())
        trees: dict[str, Flat] = {}
        for number, (tree, path, dtype) in enumerate(meta["arrays"]):
            bits = _member(archive, str(number))
            trees.setdefault(tree, {})[tuple(path)] = bits.view(_dtype(dtype))
    return _step(meta, trees, last)


def _step(meta: Mapping[str, Any], trees: dict[str, Flat], last: Flat) -> Step:
    for tree, path, value in meta["scalars"]:
        trees.setdefault(tree, {})[tuple(path)] = value
    if "params" not in trees:
        if not last:
            raise ValueError("it has no parameters, nor has the step before it new ones")
        trees["params"] = last
    if unknown := trees.keys() - {*TREES}:
        raise ValueError(f"an unknown tree {sorted(unknown)[0]!r}")
    return Step(
        number=int(meta["step"]),
        trees=trees,
        rates=dict(meta["learning_rate"]),
        loss=meta["loss"],
        micro_batches=meta["micro_batches"],
        skipped=meta["skipped"],
        missing=frozenset((tree, tuple(path)) for tree, path in meta["missing"]),
        digest=meta["digest"],
    )


def _with_new_params(steps: Sequence[Step]) -> list[Step]:
    """The steps with the next one's parameters where the new ones were not recorded."""
    following = [step.trees["params"] for step in steps[1:]]
    return [
        step
        if "new_params" in step.trees or number == len(following)
        else Step(**{**vars(step), "trees": {**step.trees, "new_params": following[number]}})
        for number, step in enumerate(steps)
    ]


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
        if dtype.hasobject or not 0 <= size - expected < 2**16:
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
    members: dict[str, np.ndarray] = {}
    by_content: dict[bytes, str] = {}
    index: dict[str, Any] = {"version": VERSION, "recordings": {}}

    def add(name: str, packed: np.ndarray) -> str:
        key = repr(packed.shape).encode() + packed.tobytes()
        if key not in by_content:
            by_content[key] = name
            members[name] = packed
        return by_content[key]

    for name, recording in recordings.items():
        trees = {}
        metas = [_meta(step) for step in recording.steps]
        for tree in TREES:
            flats = [dict(_arrays(step, tree)) for step in recording.steps]
            if tree == "params":  # only the first, where each step goes on from the one before
                flats = [
                    {} if before and _same(flat, before) else flat
                    for flat, before in zip(flats, _before(recording), strict=True)
                ]
            rows = [number for number, flat in enumerate(flats) if flat]
            if not rows:
                continue
            leaves = _signature(recording.place, tree, flats)
            for meta, flat in zip(metas, flats, strict=True):
                if flat and (absent := [path for path in leaves if path not in flat]):
                    meta["absent"][tree] = absent
            packed = np.stack([_bytes(flats[number], leaves) for number in rows], axis=1)
            trees[tree] = {
                "member": add(f"{name}/{tree}", packed),
                "rows": None if len(rows) == len(metas) else rows,
                "leaves": [[path, *leaf] for path, leaf in leaves.items()],
            }
        about = {key: value for key, value in recording.index.items() if key != "names"}
        index["recordings"][name] = {**about, "trees": trees, "steps": metas}
    members["index"] = np.frombuffer(json.dumps(index).encode(), np.uint8)

    def write(stream: BinaryIO) -> None:
        # One date for all, so that the same recordings are the same bytes.
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in members.items():
                entry = zipfile.ZipInfo(f"{name}.npy")
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write_bytes_with(file, write)


def read_packed(path: Path) -> dict[str, Recording]:
    """Reads every recording of a packed file."""
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            index = _load_index(path, lambda _: json.loads(_member(archive, "index").tobytes()))
            rows: dict[str, np.ndarray] = {}  # of the members, some of which several share
            return {
                name: _unpack(f"{path}:{name}", entry, archive, rows)
                for name, entry in index["recordings"].items()
            }
    except RecordingError:
        raise
    except _UNREADABLE as error:
        raise RecordingError(f"{path}: expected a recording, found {_cause(error)}") from None


def _unpack(
    place: str, entry: Mapping[str, Any], archive: zipfile.ZipFile, rows: dict[str, np.ndarray]
) -> Recording:
    metas = entry["steps"]
    flats: list[dict[str, Flat]] = [{} for _ in metas]
    for tree, packed in entry["trees"].items():
        member = packed["member"]
        if member not in rows:
            rows[member] = np.ascontiguousarray(_member(archive, member).T)
        leaves = [(tuple(p), _dtype(dtype), tuple(shape)) for p, dtype, shape in packed["leaves"]]
        numbers = range(len(metas)) if packed["rows"] is None else packed["rows"]
        for number, row in zip(numbers, rows[member], strict=True):
            absent = {tuple(path) for path in metas[number]["absent"].get(tree, ())}
            flats[number][tree] = {
                path: leaf for path, leaf in _split(row, leaves) if path not in absent
            }
    steps: list[Step] = []
    for meta, trees in zip(metas, flats, strict=True):
        steps.append(_step(meta, trees, steps[-1].trees.get("new_params", {}) if steps else {}))
    about = {key: value for key, value in entry.items() if key not in ("trees", "steps")}
    return Recording(place, about, _with_new_params(steps))


def _split(row: np.ndarray, leaves: Sequence[Any]) -> Iterator[tuple[Path_, np.ndarray]]:
    start = 0
    for path, dtype, shape in leaves:
        end = start + dtype.itemsize * int(np.prod(shape))
        yield path, np.frombuffer(row[start:end].tobytes(), dtype).reshape(shape)
        start = end
    if start != row.size:
        raise ValueError(f"leaves of {start} bytes in {row.size}")


def _meta(step: Step) -> dict[str, Any]:
    return {
        "step": step.number,
        "learning_rate": dict(step.rates),
        "loss": step.loss,
        "micro_batches": step.micro_batches,
        "skipped": step.skipped,
        "missing": sorted(step.missing, key=str),
        "digest": step.digest,
        "scalars": [
            [tree, path, value]
            for tree, flat in step.trees.items()
            for path, value in flat.items()
            if not isinstance(value, np.ndarray)
        ],
        "absent": {},
    }


def _arrays(step: Step, tree: str) -> Iterator[tuple[Path_, np.ndarray]]:
    flat = step.trees.get(tree, {}).items()
    return ((path, leaf) for path, leaf in flat if isinstance(leaf, np.ndarray))


def _before(recording: Recording) -> list[Flat]:
    return [{}, *(dict(_arrays(step, "new_params")) for step in recording.steps[:-1])]


def _same(one: Flat, other: Flat) -> bool:
    return one.keys() == other.keys() and all(
        leaf.dtype == other[path].dtype and leaf.tobytes() == other[path].tobytes()
        for path, leaf in one.items()
    )


def _signature(place: str, tree: str, flats: Sequence[Flat]) -> dict[Path_, tuple[str, Any]]:
    leaves: dict[Path_, tuple[str, Any]] = {}
    for flat in flats:
        for path, leaf in flat.items():
            signature = (leaf.dtype.name, leaf.shape)
            if leaves.setdefault(path, signature) != signature:
                raise RecordingError(
                    f"{place}, {path_text(path, tree)}: expected one shape and dtype at all steps, "
                    f"found {leaves[path]} and {signature}; a recording of such is not packed"
                )
    return leaves


def _bytes(flat: Flat, leaves: Mapping[Path_, tuple[str, Any]]) -> np.ndarray:
    parts = [
        flat[path].tobytes()
        if path in flat
        else bytes(jnp.dtype(dtype).itemsize * int(np.prod(shape)))
        for path, (dtype, shape) in leaves.items()
    ]
    return np.frombuffer(b"".join(parts), np.uint8)
