"""Where what is read ends: lists, shapes, compression, and what is no file."""

import io
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization

from optax_bridge.checkpoints import (
    CheckpointError,
    convert_file,
    lazy,
    read_checkpoint,
    restore_checkpoint,
)
from optax_bridge.checkpoints import read as reading
from optax_bridge.checkpoints.formats import Format, flax_msgpack
from optax_bridge.checkpoints.formats.flax_msgpack import read_msgpack, write_msgpack
from optax_bridge.checkpoints.formats.flax_msgpack.decode import decode
from optax_bridge.checkpoints.hostile_test import zipped
from optax_bridge.checkpoints.testdata.write_t5x import write_t5x
from optax_bridge.recorded_test import refused

LOGS = "events.out.tfevents.1625674313.t1v-n-9f6d6b0a-w-0"
ADAM = (Path(__file__).parent / "testdata" / "adam.msgpack").read_bytes()


def packed(kind: str, zeros: np.ndarray, tmp_path: Path) -> Path:
    """A checkpoint of zeros, which compress a thousandfold."""
    if kind == "npz":
        np.savez_compressed(tmp_path / "x.npz", w=zeros)
    elif kind == "orbax":
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(tmp_path / "x", args=ocp.args.PyTreeSave({"w": zeros}))  # pyright: ignore[reportCallIssue]
    else:
        tree = {"target": {"w": zeros}, "state": {"step": np.int32(1)}}
        write_t5x(tmp_path / "x", tree, largest_chunk=512)
    return tmp_path / ("x.npz" if kind == "npz" else "x")


@pytest.mark.parametrize("kind", ["npz", "t5x", "orbax"])
def test_what_would_not_fit_is_refused_before_it_is_unpacked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = np.zeros((1024, 512), np.float32)
    monkeypatch.setenv(lazy.UNPACKED_LIMIT, "7")  # which lowers no limit
    path = packed(kind, zeros, tmp_path)
    large = [x for x in jax.tree.leaves(read_checkpoint(path).tree) if x.shape == zeros.shape]
    np.testing.assert_array_equal(np.asarray(large[0]), zeros)  # it compresses well, no more
    monkeypatch.setattr(lazy, "_UNPACKED_AT_LEAST", 2**10)
    said = rf"2,097,1\d\d bytes\. Nothing was unpacked.*{lazy.UNPACKED_LIMIT}=2097"
    calls: list[Any] = [
        lambda: read_checkpoint(path),
        lambda: restore_checkpoint(path, None),
        lambda: restore_checkpoint(path, {"w": np.zeros(3)}),
        lambda: convert_file(path, tmp_path / "new", params_only=True),
    ]
    with monkeypatch.context() as context:
        context.setattr(lazy.LazyArray, "__array__", lambda *_, **__: pytest.fail("unpacked"))
        for call in calls:
            with pytest.raises(CheckpointError, match=said):
                call()
    assert read_checkpoint(path, requested=2**22)
    if kind != "t5x":  # a template says as much
        assert restore_checkpoint(path, {"w": zeros})["w"].shape == zeros.shape
    monkeypatch.setenv(lazy.UNPACKED_LIMIT, str(2**22))
    assert read_checkpoint(path)


@pytest.mark.parametrize(
    ("names", "latest", "count"),
    [
        (["checkpoint_9", "checkpoint_20", "checkpoint_100"], "checkpoint_100", 3),
        (["checkpoint_9", "checkpoint_20", "model_100"], "checkpoint_20", 2),
        (["checkpoint_9", "checkpoint_20.tmp-1625674313", LOGS], "checkpoint_9", 1),
        (["model_9", "model_20.orbax-checkpoint-tmp-162567", LOGS, ".model_30"], "model_9", 1),
        (["model_2.5", "model_1e2", "model_99", "model_tmp"], "model_1e2", 3),
        (["ckpt-9.flax", "ckpt-10.flax", "ckpt-10.index", "checkpoint"], "ckpt-10.flax", 2),
        (["my-model_v2_7", "my-model_v2_17"], "my-model_v2_17", 2),
        (["checkpoint_9", "ckpt_20"], "checkpoint_9", 1),
    ],
    ids=["number", "usual", "rests", "rests_of_others", "decimal", "clu", "prefix", "two"],
)
def test_latest_is_by_number(names: list[str], latest: str, count: int, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(
            b'model_checkpoint_path: "ckpt-10"' if name == "checkpoint" else ADAM
        )
    assert read_checkpoint(tmp_path).path.name == latest
    assert reading.count_of_series(tmp_path / latest) == count


def test_what_is_not_what_the_file_said_is_refused() -> None:
    for shape, dtype in (((3, 2), "float32"), ((2, 3), "int32")):
        leaf = lazy.LazyArray("x", shape, np.dtype(dtype), lambda: np.zeros((2, 3), np.float32))
        with refused(CheckpointError, r"found float32\[2, 3\]\. .*changed while"):
            np.asarray(leaf)


FOUND: dict[str, tuple[dict[str, bytes], str | None]] = {
    "zip of PyTorch": ({"x": zipped({"any/data.pkl": b""})}, "PyTorch"),
    "PyTorch before zips": ({"x": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."}, "PyTorch"),
    "a pickle": ({"x": b"\x80\x02}."}, None),
    "npz": ({"x": zipped({"data.npy": b""})}, "npz"),
    "safetensors": ({"x": b"\x02\0\0\0\0\0\0\0{}"}, "safetensors"),
    "of the Trainer": ({"x/optimizer.pt": b"", "x/pytorch_model.bin": b""}, "PyTorch"),
    "a model alone": ({"x/pytorch_model.bin": b""}, None),
    "an optimizer alone": ({"x/optimizer.pt": b""}, None),
}


@pytest.mark.parametrize("case", FOUND)
def test_files_of_pytorch_are_told_by_their_content(case: str, tmp_path: Path) -> None:
    files, expected = FOUND[case]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = reading.format_of(tmp_path / "x")
    assert (found and (found[0].name, found[1])) == (expected and (expected, tmp_path / "x"))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("as_list", [True, False], ids=["lists", "dicts"])
def test_an_array_in_pieces_is_joined_in_whatever_form_they_are(count: int, as_list: bool) -> None:
    def form(values: list[Any]) -> Any:
        return values if as_list else {str(index): value for index, value in enumerate(values)}

    pieces = np.split(np.arange(6.0), count)
    tree = {"w": {"__msgpack_chunked_array__": True, "shape": form([2, 3]), "chunks": form(pieces)}}
    file = io.BytesIO()
    write_msgpack(file, tree)
    read = decode(file.getvalue(), "file")["w"]
    assert (read.shape, read.dtype) == ((2, 3), np.float64)
    np.testing.assert_array_equal(np.asarray(read), np.arange(6.0).reshape(2, 3))
    for start, stop in ((0, 48), (0, 0), (20, 30), (23, 25), (24, 48), (47, 48)):
        expected = np.arange(6.0).tobytes()[start:stop]
        assert read.bytes_at(start, stop).tobytes() == expected


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
def test_large_arrays_are_cut_as_flax_cuts_them(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (flax_msgpack, serialization):
        monkeypatch.setattr(module, "MAX_CHUNK_SIZE", 24)
    for size in (3, 6, 9, 24, 25):
        tree, file = {"w": np.arange(size).astype(dtype)}, io.BytesIO()
        write_msgpack(file, tree)
        assert file.getvalue() == serialization.msgpack_serialize(tree, in_place=True)


@pytest.mark.parametrize("error", [RecursionError("too deep"), KeyError("x"), MemoryError()])
def test_whatever_a_library_raises_names_the_file(error: Exception, tmp_path: Path) -> None:
    def read(path: Path) -> Any:
        raise error

    toy = Format("Toy", "toy", find=lambda path: path, read=read)
    with refused(CheckpointError, rf"{tmp_path}.*Toy.*{type(error).__name__}"):
        reading.contents_of(toy, tmp_path)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_file_of_many_small_arrays_is_not_in_memory_whole(tmp_path: Path):
    def mapped() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("RssFile:")[1].split()[0])

    path = tmp_path / "checkpoint_7"
    with path.open("wb") as file:
        write_msgpack(file, {str(i): np.full(2**18, i, np.float32) for i in range(96)})
    before, most = mapped(), 0
    tree = read_msgpack(path)
    for number, leaf in tree.items():
        assert all((block.view(np.float32) == int(number)).all() for block in lazy.blocks_of(leaf))
        most = max(most, mapped() - before)
    assert path.stat().st_size > 96 * 2**20 and most < 2.5 * lazy.BLOCK
