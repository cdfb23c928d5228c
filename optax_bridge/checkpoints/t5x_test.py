"""T5X folders: arrays beside the index, both dtypes of version 2, and paths that lead outside."""

import gzip
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flax import serialization

import legacy_optim
from optax_bridge import TrainState
from optax_bridge.checkpoints import CheckpointError, read_checkpoint

FILES = Path(__file__).parent / "testdata"
ADAFACTOR = legacy_optim.Adafactor(0.1, beta1=0.9, min_dim_size_to_factor=3)


def spec(name: str, array: np.ndarray, chunks: list[int]) -> dict[str, Any]:
    """What T5X puts in the index in an array's place."""
    metadata = {
        "chunks": chunks,
        "compressor": {"id": "gzip", "level": 1},
        "shape": list(array.shape),
    }
    stored = "bfloat16" if array.dtype == ml_dtypes.bfloat16 else array.dtype.name
    return {
        "driver": "zarr", "dtype": stored, "metadata": metadata,
        "kvstore": {"driver": "file", "path": name},
    }  # fmt: skip


def write_zarr(folder: Path, array: np.ndarray, chunks: list[int], with_metadata: bool) -> None:
    folder.mkdir(parents=True)
    if with_metadata:
        dtype = "bfloat16" if array.dtype == ml_dtypes.bfloat16 else array.dtype.str
        text = (
            f'{{"zarr_format": 2, "shape": {list(array.shape)}, "chunks": {chunks}, "dtype": '
            f'"{dtype}", "compressor": {{"id": "gzip", "level": 1}}, "fill_value": null, '
            f'"order": "C", "filters": null, "dimension_separator": "."}}'
        )
        (folder / ".zarray").write_text(text)
    rows = chunks[0]
    for index in range(-(-array.shape[0] // rows)):
        part = array[index * rows : (index + 1) * rows]
        padded = np.zeros((rows, *array.shape[1:]), array.dtype)
        padded[: len(part)] = part
        name = ".".join([str(index)] + ["0"] * (array.ndim - 1))
        (folder / name).write_bytes(gzip.compress(padded.tobytes(), 1))


def write_t5x(
    folder: Path, version: int = 3, with_metadata: bool = True, key: str = "optimizer"
) -> dict[str, Any]:
    """A T5X checkpoint of the genuine Adafactor's state; matrices lie beside the index."""
    tree: Any = serialization.msgpack_restore((FILES / "adafactor.msgpack").read_bytes())
    folder.mkdir()

    def moved(node: Any, names: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return {name: moved(value, (*names, name)) for name, value in node.items()}
        if node.ndim < 2:
            return node
        name = (
            ".".join(names[:2]) + "." + "/".join(names[2:])
            if names[0] == "state"
            else (".".join(names))
        )
        chunks = [3, node.shape[1]]
        write_zarr(folder / name, node, chunks, with_metadata)
        return spec(name, node, chunks)

    index = {"version": version, key: moved(tree, ())}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(index))
    return tree


@pytest.mark.parametrize("with_metadata", [True, False], ids=["zarray", "metadata_in_index"])
@pytest.mark.parametrize("key", ["optimizer", "_optimizer"])
def test_adafactor_comes_along(key: str, with_metadata: bool, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint_4"
    tree = write_t5x(folder, with_metadata=with_metadata, key=key)
    assert read_checkpoint(tmp_path).description == "T5X, version 3"
    state: Any = TrainState.from_legacy_checkpoint(tmp_path, optimizer_def=ADAFACTOR)
    assert int(state.step) == 4
    kernel = tree["state"]["param_states"]["head"]["kernel"]["m"]
    np.testing.assert_array_equal(state.opt_state.m["head"]["kernel"], kernel)
    np.testing.assert_array_equal(state.params["head"]["kernel"], tree["target"]["head"]["kernel"])


def one_array(folder: Path, version: int, array: np.ndarray, **changes: Any) -> Any:
    folder.mkdir(exist_ok=True)
    write_zarr(folder / "target.w", array, list(array.shape), with_metadata=False)
    found = spec("target.w", array, list(array.shape))
    found = found | {k: v for k, v in changes.items() if k in found}
    index = {"version": version, "optimizer": {"target": {"w": found}}}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(index))
    return np.asarray(read_checkpoint(folder).tree["optimizer"]["target"]["w"])


def test_version_2_has_bfloat16_as_uint16(tmp_path: Path) -> None:
    expected = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16)
    found = one_array(tmp_path / "two", 2, expected.view(np.uint16))
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, expected)
    assert one_array(tmp_path / "three", 3, expected.view(np.uint16)).dtype == np.uint16


def test_bfloat16_of_version_3(tmp_path: Path) -> None:
    expected = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(one_array(tmp_path / "three", 3, expected), expected)


ARRAY = np.ones((3, 4), np.float32)
BAD_SPECS = {
    "absolute": {"kvstore": {"driver": "file", "path": "/etc"}},
    "upwards": {"kvstore": {"driver": "file", "path": "../secret"}},
    "upwards_within": {"kvstore": {"driver": "file", "path": "target.w/../../secret"}},
    "itself": {"kvstore": {"driver": "file", "path": "."}},
    "link": {"kvstore": {"driver": "file", "path": "link"}},
    "missing": {"kvstore": {"driver": "file", "path": "target.x"}},
    "no_path": {"kvstore": {"driver": "memory"}},
    "other_driver": {"driver": "json"},
    "huge": {"metadata": {"shape": [2**40], "chunks": [2**40]}},
    "many_chunks": {"metadata": {"shape": [2**40], "chunks": [1]}},
    "chunks_of_0": {"metadata": {"shape": [3, 4], "chunks": [0, 4]}},
    "other_rank": {"metadata": {"shape": [3, 4], "chunks": [3]}},
    "objects": {"dtype": "object"},
    "text_as_shape": {"metadata": {"shape": "3", "chunks": "3"}},
    "unknown_compressor": {
        "metadata": {"shape": [3, 4], "chunks": [3, 4], "compressor": {"id": "pickle"}}
    },
    "too_short": {"metadata": {"shape": [3, 5], "chunks": [3, 5], "compressor": None}},
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_spec_is_a_clear_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    write_zarr(tmp_path / "secret" / "inner", ARRAY, [3, 4], with_metadata=True)
    folder = tmp_path / "checkpoint_1"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError):
        one_array(folder, 3, ARRAY, **BAD_SPECS[name])


def test_missing_chunk_is_a_clear_error(tmp_path: Path) -> None:
    write_t5x(tmp_path / "checkpoint_4")
    next(path for path in tmp_path.rglob("0.0")).unlink()
    with pytest.raises(CheckpointError, match="chunk"):
        TrainState.from_legacy_checkpoint(tmp_path, optimizer_def=ADAFACTOR)


def test_unknown_version_is_a_clear_error(tmp_path: Path) -> None:
    write_t5x(tmp_path / "checkpoint_4", version=9)
    with pytest.raises(CheckpointError, match="version"):
        read_checkpoint(tmp_path)
