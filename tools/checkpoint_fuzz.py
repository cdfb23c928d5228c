"""Throws damaged files at the readers: `python -m tools.checkpoint_fuzz --count 100000`.

Every input has a number, and with the seed it says what the damage is: `--format t5x --seed 1
--start 4711 --count 1` repeats one.
"""

import argparse
import contextlib
import io
import re
import resource
import shutil
import signal
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import msgpack
import numpy as np
from flax import serialization

from optax_bridge.checkpoints.conversions import to_optimizers, to_states
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.devices import as_arrays
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats.flax_msgpack.decode import decode
from optax_bridge.checkpoints.formats.orbax import write_orbax
from optax_bridge.checkpoints.locate import find_parts
from optax_bridge.checkpoints.read import Read, read_checkpoint
from optax_bridge.checkpoints.testdata.optimizers import OPTIMIZERS
from optax_bridge.checkpoints.testdata.write_t5x import STORES, write_t5x
from optax_bridge.checkpoints.to_train_state import convert_tree
from optax_bridge.cli import inspect
from optax_bridge.cli.inspect import description_of
from optax_bridge.correspondence import UnsupportedSetting
from optax_bridge.metadata.paths import leaves
from optax_bridge.metadata.trees import PyTree
from optax_bridge.optimizers.selectors import NothingSelectedWarning

FILES = Path(__file__).parents[1] / "optax_bridge/checkpoints/testdata"
ADAM = parse_definition("Adam(learning_rate=1e-2)")
ADAFACTOR = parse_definition("Adafactor(0.1, beta1=0.9, min_dim_size_to_factor=3)")
SLOW = 20  # seconds after which an input counts as one that hangs

# What replaces a number, a name or a path in the words of a hostile file.
_NUMBERS = [b"-1", b"0", b"1e999", b"null", b"[]", b"{}", b'"x"', b"1" + b"0" * 30, b"1.5",
            b"4611686018427387904", b"1099511627776", b"[[[[[[[[]]]]]]]]"]  # fmt: skip
_VALUES: list[object] = [
    *(-1, 0, 2**40, 2**63, None, True, 1.5, "", "..", "/etc", "../../etc", "x" * 5000, "a\0b"),
    *([], [0], [-1], [2**40], [2**62, 2**62], [0, 2**40, 2**40], [0, 2**63]),
    *([1] * 40, ["3"], {}, {"0": 3}, [[3]], b"\xff"),
    *({"id": "pickle"}, {"id": "gzip", "level": 99}, {"id": "blosc"}, "file:///etc/", "zarr3"),
]

Files = dict[str, Any]  # bytes by relative path; a Path is a link to it, None an empty folder


@dataclass(frozen=True)
class Format:
    """A kind of checkpoint."""

    bases: list[Files]
    read: Callable[[Path], object]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """A file with one kind of damage: flipped bits, changed bytes, cut, doubled or moved pieces."""
    if not data:
        return rng.bytes(int(rng.integers(1, 100)))
    changed = bytearray(data)
    kind = rng.integers(6)
    places = rng.integers(len(data), size=int(rng.integers(1, 9)))
    if kind == 0:
        for place in places:
            changed[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        for place in places:
            changed[place] = int(rng.integers(256))
    elif kind == 2:
        del changed[places[0] :]
    elif kind == 3:
        start, end = sorted((int(places[0]), int(rng.integers(len(data)))))
        del changed[start:end]
    elif kind == 4:
        start, end = sorted((int(places[0]), int(rng.integers(len(data)))))
        changed[start:start] = changed[start:end]
    else:  # the largest lengths, where headers are likely
        changed[places[0] : places[0] + 5] = bytes([int(rng.integers(0xC4, 0xE0))]) + b"\xff" * 4
    return bytes(changed)


def damage(files: Files, rng: np.random.Generator) -> Files:
    """A folder with one kind of damage to one of its files."""
    files = dict(files)
    names = sorted(files)
    # Index and metadata say what the rest is to be: half of the damage goes there.
    words = [n for n in names if Path(n).name in ("checkpoint", ".zarray", "_METADATA")]
    name = str(rng.choice(words if rng.random() < 0.5 and words else names))
    kind = rng.integers(12)
    if kind < 3:
        files[name] = mutate(files[name], rng)
    elif kind < 6:
        files[name] = reword(files[name], rng)
    elif kind == 6:
        del files[name]
    elif kind == 7:  # a whole folder, or all that starts alike
        start = name[: int(rng.integers(1, len(name) + 1))]
        files = {n: data for n, data in files.items() if not n.startswith(start)}
    elif kind == 8:
        files[name] = b"" if rng.random() < 0.5 else None
    elif kind == 9:
        files[name] = Path("/etc/passwd" if rng.random() < 0.5 else "/dev/zero")
    elif kind == 10:
        files[str(Path(name).with_name(str(rng.choice(["x", ".zarray", "0.0", "d"]))))] = rng.bytes(
            100
        )
    else:
        other = str(rng.choice(names))
        files[name], files[other] = files[other], files[name]
    return files


class _Opened(list[Any]):
    """The shape, dtype and data of an array in a msgpack file, to be changed."""

    code = 0

    @classmethod
    def read(cls, code: int, payload: bytes) -> "_Opened":
        array = cls(msgpack.unpackb(payload))
        array.code = code
        return array

    def as_msgpack(self) -> msgpack.ExtType:
        return msgpack.ExtType(self.code, msgpack.packb(list(self)) or b"")


def reword(data: Any, rng: np.random.Generator) -> Any:
    """A file in which a number is another one, or a msgpack index with another value in it."""
    if not isinstance(data, bytes):
        return data
    if data[:1] != b"{":
        try:
            tree = msgpack.unpackb(data, strict_map_key=False, ext_hook=_Opened.read)
        except ValueError:
            return mutate(data, rng)
        places = list(_places(tree))
        holder, key = places[int(rng.integers(len(places)))] if places else ({}, "")
        holder[key] = _VALUES[int(rng.integers(len(_VALUES)))]
        return msgpack.packb(tree, strict_types=True, default=_Opened.as_msgpack)
    numbers = list(re.finditer(rb"\d+|null|true|\"[^\"]*\"", data))
    spot = numbers[int(rng.integers(len(numbers)))] if numbers else re.match(b"", data)
    assert spot is not None
    return data[: spot.start()] + _NUMBERS[int(rng.integers(len(_NUMBERS)))] + data[spot.end() :]


def _places(tree: PyTree) -> Any:
    """Each container with each of its keys."""
    if not isinstance(tree, dict | list):
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        yield from _places(value)


def write(folder: Path, files: Files) -> None:
    """Puts files where they belong."""
    for name, data in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if data is None:
                path.mkdir(exist_ok=True)
            elif isinstance(data, Path):
                path.symlink_to(data)
            else:
                path.write_bytes(data)
        except OSError:  # a file where another one needs a folder
            continue


def outcome(read: Callable[[], object]) -> str:
    """Returns "read", "refused" after a clear error, or the name of any other error."""
    try:
        read()
    except (CheckpointError, UnsupportedSetting):
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "read"


def survives(data: bytes) -> str:
    """The outcome of reading and converting a msgpack file."""
    return outcome(lambda: convert_tree(decode(data), ADAM, allow_nan=True))


def survives_folder(kind: str, number: int, seed: int = 0) -> str:
    """The outcome of one input: the base, the damage and the place of it follow from the number."""
    bases, rng = formats()[kind].bases, np.random.default_rng([seed, number])
    base = bases[number % len(bases)]
    name = next(iter(base))
    is_file = kind in ("msgpack", "npz")
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        if is_file:
            data = mutate(base[name], rng) if rng.random() < 0.5 else _rezip(base[name], rng)
            files: Files = {name: data}
        else:
            files = damage(base, rng)
        write(folder / "checkpoint_1", files)
        path = folder / "checkpoint_1" / (name if is_file else "")
        shown = outcome(lambda: _inspect(path))
        return shown if shown != "read" else outcome(lambda: formats()[kind].read(path))
    finally:
        shutil.rmtree(folder)


def _inspect(path: Path) -> None:
    """Inspects a checkpoint as `optax-bridge inspect` does, and drops the text."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        inspect.print_checkpoint(path)


def _rezip(data: bytes, rng: np.random.Generator) -> bytes:
    """An npz file, whole as a zip, whose members are damaged."""
    if not data.startswith(b"PK"):
        return reword(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = str(rng.choice(sorted(members)))
    header = members[name][:128]
    number = re.search(rb"\d+(?=[,)])", header[10:])
    if rng.random() < 0.5 and number is not None:
        new = _NUMBERS[int(rng.integers(len(_NUMBERS)))]
        header = header[: 10 + number.start()] + new + header[10 + number.end() :]
        members[name] = header[:127].ljust(127) + b"\n" + members[name][128:]
    else:
        members[name] = mutate(members[name], rng)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member + ("/x" if rng.random() < 0.01 else ""), content)
    return file.getvalue()


def formats() -> dict[str, Format]:
    """Every format with its undamaged files; made once."""
    if not _FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            _FORMATS.update(_make_formats(Path(folder)))
    return _FORMATS


_FORMATS: dict[str, Format] = {}


def _make_formats(folder: Path) -> dict[str, Format]:
    trees = {
        name: serialization.msgpack_restore((FILES / f"{name}.msgpack").read_bytes())
        for name in ("adam", "adafactor", "adam_bfloat16")
    }
    for number, store in enumerate(STORES):
        write_t5x(folder / "t5x" / f"{number}" / "checkpoint_1", trees["adafactor"], store=store)
    write_t5x(folder / "t5x" / "5" / "checkpoint_1", trees["adafactor"], key="_optimizer")
    write_t5x(folder / "t5x" / "6" / "checkpoint_1", trees["adam_bfloat16"], version=2)
    write_t5x(folder / "t5x" / "7" / "checkpoint_1", trees["adam"], with_metadata=False)
    state: Any = serialization.to_state_dict(convert_tree(trees["adam"], ADAM).state)
    (folder / "orbax").mkdir()
    write_orbax(folder / "orbax" / "plain", jax.tree.map(jax.numpy.asarray, state))
    nested = {"models": {"critic": trees["adam"]}, "step": trees["adam"]["state"]["step"]}
    held = to_states(Read(folder, "a tree", nested), ADAM, None, "exact", False, False)
    write_orbax(folder / "orbax" / "held", held.tree)
    write_orbax(folder / "orbax" / "zarr3", state | {"empty": np.zeros((0, 3)), "note": "text"})
    for number, compressed in enumerate((np.savez, np.savez_compressed)):
        (folder / "npz").mkdir(exist_ok=True)
        named: Any = {"/".join(p): leaf for p, leaf in leaves({"opt": trees["adam"]})}
        compressed(folder / "npz" / f"{number}.npz", **named)

    def read_t5x(path: Path) -> PyTree:
        read = read_checkpoint(path)
        is_adam = "grad_ema" in str(read.tree)
        definition = ADAM if is_adam else ADAFACTOR
        return as_arrays(convert_tree(read.tree, definition, allow_nan=True).state)

    def read_orbax(path: Path) -> PyTree:
        return as_arrays(to_optimizers(read_checkpoint(path), ADAM, None, False).tree)

    def read_any(path: Path) -> PyTree:
        definition = parse_definition(OPTIMIZERS.get(path.name, "Adam(1e-2)"))
        read = read_checkpoint(path)
        # One of the checkpoints has a group that holds nothing, as `convert` knows.
        with warnings.catch_warnings(action="ignore", category=NothingSelectedWarning):
            with contextlib.suppress(CheckpointError):
                for part in find_parts(read.tree, path):
                    description_of(part)
                convert_tree(read.tree, allow_nan=True)
            return as_arrays(to_states(read, definition, None, "exact", False, True).tree)

    t5x = [_files(path / "checkpoint_1") for path in sorted((folder / "t5x").iterdir())]
    orbax = [_files(path) for path in sorted((folder / "orbax").iterdir())]
    npz = [{"model.npz": path.read_bytes()} for path in sorted((folder / "npz").iterdir())]
    flax = [{name: (FILES / f"{name}.msgpack").read_bytes()} for name in OPTIMIZERS]
    return {
        "msgpack": Format(flax, read_any),
        "npz": Format(npz, read_any),
        "t5x": Format(t5x, read_t5x),
        "orbax": Format(orbax, read_orbax),
    }


def _files(folder: Path) -> Files:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _alarm(number: int, frame: object) -> None:
    raise TimeoutError(f"more than {SLOW} seconds")


def main() -> None:
    """Runs the fuzzer and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=["msgpack", "npz", "t5x", "orbax"], default="msgpack")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _alarm)
    formats()
    survives_folder(arguments.format, arguments.start, arguments.seed)
    outcomes: Counter[str] = Counter()
    slowest, started = 0.0, time.perf_counter()
    before_all = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for number in range(arguments.start, arguments.start + arguments.count):
        before = time.perf_counter()
        signal.alarm(SLOW)
        result = survives_folder(arguments.format, number, arguments.seed)
        signal.alarm(0)
        if result not in ("read", "refused"):
            print(f"input {number}: {result}", flush=True)
            result = "escaped"
        outcomes[result] += 1
        slowest = max(slowest, time.perf_counter() - before)
    seconds = time.perf_counter() - started
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    print(
        f"{arguments.format}, seed {arguments.seed}: {arguments.count} inputs in {seconds:.0f} s: "
        f"{counts}; the slowest {slowest * 1e3:.0f} ms; peak {resident:.0f} MiB resident, "
        f"{before_all:.0f} before"
    )


if __name__ == "__main__":
    main()
