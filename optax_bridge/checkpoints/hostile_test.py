"""Damaged and hostile files: one kind of error, and never anything from inside a library."""

import functools
import io
import json
import operator
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

from optax_bridge.checkpoints import CheckpointError, read_checkpoint
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.formats.flax_msgpack import write_msgpack
from optax_bridge.checkpoints.formats.flax_msgpack.decode import decode
from optax_bridge.checkpoints.lazy import BLOCK
from optax_bridge.checkpoints.to_train_state import convert_tree
from optax_bridge.recorded_test import refused

FILES = Path(__file__).parent / "testdata"
ADAM = (FILES / "adam.msgpack").read_bytes()


def nested(depth: int) -> bytes:
    return b"\x81\xa1a" * depth + b"\x01"


def extension(payload: bytes, code: int = 1) -> Any:
    return msgpack.packb({"x": msgpack.ExtType(code, payload)})


def array(*parts: Any) -> Any:
    """A file with one array: shape, dtype and data, or others."""
    return extension(msgpack.packb(parts) or b"")


def chunked(**entries: Any) -> Any:
    """A file with one array in pieces, which may be given as shape, dtype and data."""
    pieces = entries.get("chunks", {})
    packed = {name: msgpack.ExtType(1, msgpack.packb(p) or b"") for name, p in pieces.items()}
    entries |= {"chunks": packed} if pieces else {}
    return msgpack.packb({"x": {"__msgpack_chunked_array__": True, **entries}})


DAMAGED = {
    "empty": b"",
    "cut_short": ADAM[:-10],
    "cut_in_a_header": ADAM[:3],
    "more_than_a_document": ADAM + b"\x01",
    "a_number": b"\x01",
    "text": b"hello, world",
    "promises_4_GiB_of_text": b"\xdb\xff\xff\xff\xff",
    "promises_4_billion_entries": b"\xdf\xff\xff\xff\xff",
    "promises_4_billion_values": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "promises_4_GiB_of_array": b"\x81\xa1a\xc9\xff\xff\xff\xff\x01",
    "nested_1000_deep": nested(1000),
    "nested_a_million_deep": b"\x91" * 10**6,
    "complex_within_complex": b"\x81\xa1a" + b"\xc7\x04\x02\x92\xd4\x02\x01",
    "unknown_extension": extension(b"abc", 42),
    "array_of_objects": array((1,), "object", b"12345678"),
    "array_of_records": array((1,), "V8", b"12345678"),
    "shape_too_large": array((2**40, 2**40), "float32", b"1234"),
    "shape_of_nothing_too_large": array((0, 2**40, 2**40), "float32", b""),
    "shape_of_nothing_beyond_64_bits": array((0, 2**63), "float32", b""),
    "chunks_of_nothing_too_large": chunked(
        shape={"0": 0, "1": 2**62, "2": 9}, chunks={"0": ((0,), "float32", b"")}
    ),
    "chunks_of_another_size": chunked(shape={"0": 3}, chunks={"0": ((1,), "int8", b"1")}),
    "chunks_of_two_types": chunked(
        shape={"0": 2}, chunks={"0": ((1,), "int8", b"1"), "1": ((1,), "uint8", b"1")}
    ),
    "chunks_missing": chunked(shape={"0": 4}),
    "array_of_two_parts": array((1,), "int8"),
    "array_of_four_parts": array((1,), "int8", b"1", b"2"),
    "array_with_more_behind_it": extension((msgpack.packb(((1,), "int8", b"1")) or b"") + b"\x01"),
    "array_that_is_a_number": extension(b"\x01"),
    "complex_of_integers": extension(msgpack.packb((1, 2)) or b"", 2),
    "a_byte_that_starts_nothing": b"\x81\xa1a\xc1",
    "shape_negative": array((-1,), "float32", b"1234"),
    "shape_of_text": array(("4",), "int8", b"1234"),
    "wrong_size": array((3,), "float32", b"1234"),
    "same_name_twice": b"\x82\xa1a\x01\xa1a\x02",
    "name_is_a_number": b"\x81\x01\x02",
    "name_is_no_text": b"\x81\xa1\xff\x01",
    "pickle": pickle.dumps({"target": 1}),
    "zip_without_end": b"PK\x03\x04" + b"\0" * 100,
    "zip_empty": b"PK\x05\x06" + b"\0" * 18,
    # What the fuzzer found first, with seed 0: a list is no key, and has no hash to look up.
    "dtype_is_a_list": array((1,), ["float32"], b"1234"),
    "name_is_a_list": b"\x81\x91\x01\x02",
    "name_is_an_array": b"\x81\xc7\x03\x01\x90\xa0\xc4\x02",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_a_clear_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_1"
    path.write_bytes(DAMAGED[name])
    with refused(CheckpointError, r"expected .* found "):
        read_checkpoint(path)


def test_what_is_nested_is_not_followed_to_its_end() -> None:
    with refused(CheckpointError, "an array within an array"):
        decode(array(msgpack.ExtType(1, b"\x01")))
    with refused(CheckpointError, "at most 100 levels"):
        decode(nested(200))


FOLDERS = ["missing", "empty_folder", "two_series", "deep", "circle", "long", "pipe", "empty_index"]


@pytest.mark.parametrize("kind", FOLDERS)
def test_folder_without_a_checkpoint_is_a_clear_error(kind: str, tmp_path: Path) -> None:
    if kind == "deep":
        (tmp_path / "/".join(["x_1"] * 900)).mkdir(parents=True)
    if kind == "circle":
        (tmp_path / "x_1").symlink_to(tmp_path)
    if kind == "two_series":
        (tmp_path / "generator_1").write_bytes(ADAM)
        (tmp_path / "critic_1").write_bytes(ADAM)
    if kind == "empty_index":
        (tmp_path / "checkpoint").touch()
    if kind == "pipe":
        os.mkfifo(tmp_path / "pipe")
    names = {"missing": "no", "long": "x" * 5000, "pipe": "pipe"}
    message = "neither a file nor a folder" if kind == "pipe" else "expected"
    with refused(CheckpointError, message):
        read_checkpoint(tmp_path / names.get(kind, ""))


def broken(change: Any) -> Any:
    tree = serialization.msgpack_restore(ADAM)
    change(tree)
    return tree


def _set(*path: str, value: Any) -> Any:
    def change(tree: Any) -> None:
        for name in path[:-1]:
            tree = tree[name]
        if value is None:
            del tree[path[-1]]
        else:
            tree[path[-1]] = value

    return change


KERNEL = ("state", "param_states", "dense", "kernel")
MISFITS = {
    "leaf_missing": (_set(*KERNEL[:3], "bias", value=None), r"\['param_states'\]\['dense'\]"),
    "leaf_too_many": (_set(*KERNEL[:3], "other", value={}), r"\['param_states'\]\['dense'\]"),
    "field_missing": (_set(*KERNEL, "grad_ema", value=None), r"param_states'\].*\['grad_ema'\]"),
    "field_too_many": (_set(*KERNEL, "v", value=np.ones(3)), r"\['kernel'\]"),
    "shape": (_set(*KERNEL, "grad_ema", value=np.ones((3, 4), np.float32)), r"\['grad_ema'\]"),
    "dtype": (_set(*KERNEL, "grad_ema", value=np.ones((4, 3))), r"\['grad_ema'\]"),
    "text": (_set(*KERNEL, "grad_ema", value="no"), r"\['grad_ema'\]"),
    "step_float": (_set("state", "step", value=np.float32(1)), r"\['step'\]"),
    "step_empty": (_set("state", "step", value=np.ones(0, np.int32)), r"\['step'\]"),
    "state_of_an_array": (_set(*KERNEL, value=np.ones(3)), "the fields of a parameter's state"),
    "step_of_truth": (_set("state", "step", value=True), r"\['step'\]"),
    "entry_too_many": (_set("more", value=1), r"\['more'\]: expected an optimizer's target"),
    "entry_in_the_state": (_set("state", "more", value=1), r"\['state'\]\['more'\]: expected"),
    "no_target": (_set("target", value=None), "an optimizer"),
    "target_text": (_set("target", value="x"), r"\['target'\]"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfit_is_an_error_at_its_leaf(name: str) -> None:
    change, where = MISFITS[name]
    with refused(CheckpointError, where):
        convert_tree(broken(change), parse_definition("Adam(1e-2)"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("target", "scale"), r"\['scale'\]: expected the same array 2 times.*different values"),
        ((*KERNEL, "grad_ema"), r"\['kernel'\]\['grad_ema'\]: expected the same array 2 times"),
        (("state", "step"), r"\['step'\]: expected the number of steps"),
    ],
    ids=["parameter", "moment", "step"],
)
def test_copies_that_differ_between_devices_are_refused(path: Any, message: str) -> None:
    tree = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), broken(lambda _: None))
    convert_tree(tree, parse_definition("Adam(1e-2)"))
    leaf = functools.reduce(operator.getitem, path, tree)
    leaf[1] += 1
    with refused(CheckpointError, message):
        convert_tree(tree, parse_definition("Adam(1e-2)"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_nan_is_found_wherever_it_stands(dtype: str) -> None:
    """In an array of several blocks, each of which is looked at by itself."""
    size = 2 * BLOCK // np.dtype(dtype).itemsize + 3
    moments = np.zeros(size, dtype)
    tree = {
        "target": {"w": np.zeros(size, dtype)},
        "state": {"step": np.int32(1), "param_states": {"w": {"momentum": moments}}},
    }
    momentum = parse_definition("Momentum(0.1)")
    convert_tree(tree, momentum)
    for position, number in ((0, np.inf), (size // 2 + 1, np.nan), (size - 1, np.nan)):
        moments[position] = number
        with refused(CheckpointError, r"NaN|infinity"):
            convert_tree(tree, momentum)
        moments[position] = 0


@pytest.mark.parametrize("is_host", [True, False])
def test_nan_is_found_on_devices(is_host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_host:  # as if that of the array were a GPU
        monkeypatch.setattr(jax, "local_devices", lambda **_: [])
    tree = broken(_set(*KERNEL, "grad_ema", value=jnp.full((4, 3), jnp.nan).at[0].set(1.0)))
    with refused(CheckpointError, r"\['grad_ema'\].*NaN"):
        convert_tree(tree, parse_definition("Adam(1e-2)"))


NAMES = st.one_of(
    st.sampled_from(["target", "state", "step", "param_states", "..", "a/b"]), st.text()
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(),
    st.sampled_from([np.ones((2, 2), np.float32), np.int32(3), np.zeros(0), 1j]),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(NAMES, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(TREES)
def test_any_tree_is_written_as_flax_does_and_read_back(tree: Any) -> None:
    file = io.BytesIO()
    write_msgpack(file, tree)
    # Flax copies a tree first, which sorts its names; in place it leaves their order.
    assert file.getvalue() == serialization.msgpack_serialize(tree, in_place=True)
    again = io.BytesIO()
    write_msgpack(again, decode(file.getvalue()))
    assert again.getvalue() == file.getvalue()


def orbax(folder: Path, change: Any = None, ocdbt: bool = True) -> Path:
    """An Orbax checkpoint of two arrays, whose metadata are changed."""
    tree = {"params": {"w": np.ones((3, 4), np.float32)}, "step": np.int32(3)}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(tree))  # pyright: ignore[reportCallIssue]
    if change is not None:
        metadata = json.loads((folder / "_METADATA").read_text())
        change(metadata["tree_metadata"]["('params', 'w')"])
        (folder / "_METADATA").write_text(json.dumps(metadata))
    return folder


BAD_LEAVES = {
    "upwards": _set("key_metadata", value=[{"key": "../other/params.w", "key_type": 2}]),
    "upwards_by_dots": _set("key_metadata", value=[{"key": "..", "key_type": 2}]),
    "absolute": _set("key_metadata", value=[{"key": "/etc", "key_type": 2}]),
    "no_names": _set("key_metadata", value=[]),
    "names_of_another_kind": _set("key_metadata", value=7),
    "missing": _set("key_metadata", value=[{"key": "x", "key_type": 2}]),
    "another_kind": _set("value_metadata", "value_type", value="pickle"),
    "no_kind": _set("value_metadata", value=None),
    "deep": _set("key_metadata", value=[{"key": "a", "key_type": 2}] * 1000),
}


@pytest.mark.parametrize(
    ("name", "ocdbt"), [*((name, False) for name in BAD_LEAVES), ("upwards", True)]
)
def test_bad_leaf_of_orbax_is_a_clear_error(name: str, ocdbt: bool, tmp_path: Path) -> None:
    if name == "upwards":
        orbax(tmp_path / "other", ocdbt=False)  # where there is an array
    with pytest.raises(CheckpointError):
        read_checkpoint(orbax(tmp_path / "new", BAD_LEAVES[name], ocdbt))


def _moved_out(folder: Path) -> None:
    (folder / "params.w" / "0.0").rename(folder.with_name("moved"))
    (folder / "params.w" / "0.0").symlink_to(folder.with_name("moved"))


def _of_shape(folder: Path) -> None:
    path = folder / "params.w" / ".zarray"
    shape = json.loads(path.read_text()) | {"shape": [3, 2**40]}
    path.write_text(json.dumps(shape | {"chunks": [3, 2**40]}))


BAD_FOLDERS: dict[str, Any] = {
    "link": _moved_out,
    "device": lambda folder: os.mkfifo(folder / "pipe"),
    "deep_json": lambda folder: (folder / "_METADATA").write_text("[" * 100_000),
    "no_json": lambda folder: (folder / "_METADATA").write_bytes(b"\xff\xfe"),
    "list": lambda folder: (folder / "_METADATA").write_text("[]"),
    "list_of_leaves": lambda folder: (folder / "_METADATA").write_text('{"tree_metadata": []}'),
    "huge_shape": _of_shape,
    "gap": lambda folder: (folder / "params.w" / "0.0").unlink(),
}


@pytest.mark.parametrize("damage", BAD_FOLDERS)
def test_bad_folder_of_orbax_is_a_clear_error(damage: str, tmp_path: Path) -> None:
    folder = orbax(tmp_path / "new", ocdbt=False)
    BAD_FOLDERS[damage](folder)
    with pytest.raises(CheckpointError):
        np.asarray(read_checkpoint(folder).tree["params"]["w"])


def npz_header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def bomb(size: int) -> bytes:
    """A zip whose only member says that it is of this size when unpacked."""
    data = zipped({"x.npy": npz_header("(1,)") + b"1234"})
    at = data.index(b"PK\x01\x02") + 24
    return data[:at] + struct.pack("<I", min(size, 2**32 - 2)) + data[at + 4 :]


ONE = npz_header("(1,)") + b"1234"
MANY = npz_header("(50000,)") + b"1234" * 50000
NPZ = {
    "void_of_four_bytes": zipped({"x.npy": ONE.replace(b"<f4", b"|V4")}),
    "absurd_shape": zipped({"x.npy": npz_header("(1000000000000,)") + b"1234"}),
    "absurd_shape_of_nothing": zipped({"x.npy": npz_header("(0, 1000000000000, 10000000)")}),
    "negative_shape": zipped({"x.npy": npz_header("(-1,)") + b"1234"}),
    "no_array": zipped({"x.npy": b"hello"}),
    "objects": zipped({"x.npy": ONE.replace(b"<f4", b"|O8")}),
    "name_of_many_parts": zipped({"/".join("a" * 200): ONE}),
    "name_twice": zipped({"x.npy": ONE, "x": ONE}),
    "name_and_folder": zipped({"a.npy": ONE, "a/b.npy": ONE}),
    "packed_by_lzma": zipped({"x.npy": ONE}, zipfile.ZIP_LZMA),
    "packed_by_bzip2": zipped({"x.npy": ONE}, zipfile.ZIP_BZIP2),
    "damaged_lzma": zipped({"x.npy": b"1234" * 99}, zipfile.ZIP_LZMA).replace(b"12", b"21"),
    "cut_short": zipped({"x.npy": ONE})[:-5],
    "other_sum": zipped({"x.npy": MANY}).replace(zlib.crc32(MANY).to_bytes(4, "little"), bytes(4)),
    "header_of_brackets": zipped({"x.npy": npz_header("(" * 80)}),
    "header_of_4_GiB": zipped({"x.npy": b"\x93NUMPY\x02\x00" + b"\xff" * 4}),
    "promises_more_than_it_can_hold": bomb(2**40),
}


@pytest.mark.parametrize("name", NPZ)
def test_damaged_npz_is_a_clear_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(NPZ[name])
    with pytest.raises(CheckpointError):
        jax.tree.map(np.asarray, read_checkpoint(path).tree)
