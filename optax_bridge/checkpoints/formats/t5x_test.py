"""T5X folders: arrays beside the index, both dtypes of version 2, and paths that lead outside."""

import zipfile
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import serialization

import legacy_optim
import optax_bridge
from optax_bridge import TrainState, convert_state
from optax_bridge.checkpoints import CheckpointError, convert_file, read_checkpoint
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.testdata.optimizers import OPTIMIZERS
from optax_bridge.checkpoints.testdata.write_t5x import STORES, write_t5x
from optax_bridge.recorded_test import refused

FILES = Path(__file__).parents[1] / "testdata"
ADAFACTOR = legacy_optim.Adafactor(0.1, beta1=0.9, min_dim_size_to_factor=3)


def genuine(name: str) -> Any:
    return serialization.msgpack_restore((FILES / f"{name}.msgpack").read_bytes())


@pytest.mark.parametrize(
    ("store", "with_metadata"), [*((store, True) for store in STORES), ("file", False)]
)
def test_adafactor_comes_along(store: str, with_metadata: bool, tmp_path: Path) -> None:
    tree = genuine("adafactor")
    folder = tmp_path / "checkpoint_1000000"
    write_t5x(folder, tree, with_metadata=with_metadata, store=store)
    assert (folder / "state.param_states.head.kernel.m" / "0.0").is_file()
    assert read_checkpoint(tmp_path).description == "T5X, version 3"
    state: Any = TrainState.from_legacy_checkpoint(tmp_path, optimizer_def=ADAFACTOR)
    expected = convert_state(tree, ADAFACTOR)
    for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "archive", "named"),
    [
        ("adafactor", "t5x_folders", ""),
        ("adafactor", "t5x_one_store", "checkpoint_4"),
        ("adam_bfloat16", "t5x_folders", "checkpoint_4/state/checkpoint"),
        ("adam_bfloat16", "t5x_one_store", ""),
    ],
)
def test_later_form_that_orbax_wrote(name: str, archive: str, named: str, tmp_path: Path) -> None:
    """What the Orbax of that time wrote for T5X; see `tools/record_t5x.py`."""
    folder = tmp_path / name
    with zipfile.ZipFile(FILES / f"{archive}.zip") as file:
        file.extractall(tmp_path)
    read = read_checkpoint(folder / named)
    assert read.path == folder / "checkpoint_4" / "state"
    assert read.description == "T5X, with Orbax's index"
    definition = parse_definition(OPTIMIZERS[name])
    convert_file(folder / named, tmp_path / "new", definition, file_format="msgpack")
    convert_file(tmp_path / "new", tmp_path / "back", definition, to_legacy=True)
    assert (tmp_path / "back").read_bytes() == (FILES / f"{name}.msgpack").read_bytes()


@pytest.mark.parametrize("least_size", [8, 1000], ids=["beside_the_index", "in_the_index"])
def test_what_stood_beside_the_optimizer_is_there(least_size: int, tmp_path: Path) -> None:
    form: dict[str, Any] = {"key": "_optimizer", "version": None, "least_size": least_size}
    write_t5x(tmp_path / "checkpoint_4", genuine("adafactor"), extra={"epoch": 3}, **form)
    read = read_checkpoint(tmp_path)
    assert read.format == "T5X" and set(read.tree) == {"optimizer", "epoch"}


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "array_of_one"])
def test_step_may_be_an_array(shape: tuple[int, ...], tmp_path: Path) -> None:
    tree = genuine("adafactor")
    tree["state"]["step"] = np.full(shape, 1_000_000, np.int32)
    write_t5x(tmp_path / "checkpoint_1000000", tree)
    assert int(TrainState.from_legacy_checkpoint(tmp_path, optimizer_def=ADAFACTOR).step) == 10**6


RULES = {
    "attention/kernel": ("row", "batch", "column", "column"),  # embed, layers, heads, kv
    "mlp/kernel": ("batch", "row", "column"),
}


NOWHERE: Any = {"nowhere": ("row", "column")}


def scanned() -> Any:
    """What T5X's Adafactor holds for scanned layers; statistics by axis, biases not factored."""
    rng, unused = np.random.default_rng(3), np.zeros(1, np.float32)

    def fields(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
        drawn = {n: rng.uniform(0.1, 1, shape).astype(np.float32) for n, shape in shapes.items()}
        return dict.fromkeys(("v_row", "v_col", "v", "m"), unused) | drawn

    kernels = fields(attention=(6, 2, 3, 4), mlp=(2, 6, 8), bias=(2, 8))
    decoder = {
        "attention": {"kernel": kernels["attention"]},
        "mlp": {"kernel": kernels["mlp"], "bias": kernels["bias"]},
    }
    states = {
        "attention": {"kernel": fields(v_row=(6, 2), v_col=(2, 3, 4))},
        "mlp": {"kernel": fields(v_row=(2, 6), v_col=(2, 8)), "bias": fields(v=(2, 8))},
    }
    state = {"step": np.int32(1000), "param_states": {"decoder": states}}
    return {"target": {"decoder": decoder}, "state": state}


@pytest.mark.parametrize("is_grouped", [False, True], ids=["one", "groups"])
def test_adafactor_by_axis_takes_over_what_t5x_had(is_grouped: bool, tmp_path: Path) -> None:
    tree = scanned()
    tx = optax_bridge.adafactor(1e-3, path_rules=RULES)
    if is_grouped:
        tree["target"]["frozen"] = np.ones(3, np.float32)
        tree["state"]["param_states"]["frozen"] = None
        groups = []
        for name, rule in RULES.items():
            mask = optax_bridge.path_mask(lambda path, _, name=name: name.split("/")[0] in path)
            groups.append((mask, optax_bridge.adafactor(1e-3, path_rules={name: rule})))
        tx = optax_bridge.multi_optimizer(*groups)
    write_t5x(tmp_path / "checkpoint_1000", tree)
    state: Any = TrainState.from_legacy_checkpoint(tmp_path, optimizer_def=tx)
    assert int(state.step) == 1000
    states = tree["state"]["param_states"]["decoder"]
    for number, name in enumerate(("attention", "mlp")):
        inner = state.opt_state.inner[number] if is_grouped else state.opt_state
        assert int(inner.count) == 1000
        for field in ("v_row", "v_col"):
            actual = getattr(inner, field)["decoder"][name]["kernel"]
            np.testing.assert_array_equal(actual, states[name]["kernel"][field])


OTHERS: dict[str, tuple[Any, str]] = {
    "rule_fits_nothing": (lambda: optax_bridge.adafactor(1e-3, path_rules=NOWHERE), "nowhere"),
    "rules_by_name": (lambda: optax_bridge.adafactor(1e-3, axis_rules={"a": "row"}), "path_rules"),
    "no_rules": (lambda: optax_bridge.adafactor(1e-3), "v_row"),
    "other_optimizer": (lambda: optax_bridge.adam(1e-3), "param_states"),
    "not_ours": (lambda: optax.adafactor(1e-3), "optax_bridge.adafactor"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_transformation_that_does_not_fit_is_an_error(name: str, tmp_path: Path) -> None:
    write_t5x(tmp_path / "checkpoint_1000", scanned())
    make, message = OTHERS[name]
    with refused(CheckpointError, message):
        TrainState.from_legacy_checkpoint(tmp_path, optimizer_def=make())


STORED_WHOLE: dict[str, Any] = {"largest_chunk": 99, "with_metadata": False}


def one_array(folder: Path, version: int, array: np.ndarray, **changes: Any) -> Any:
    folder = folder / "checkpoint_1"
    write_t5x(folder, {"target": {"w": array}}, version=version, **STORED_WHOLE)
    index = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    index["optimizer"]["target"]["w"] |= changes
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(index))
    return np.asarray(read_checkpoint(folder).tree["optimizer"]["target"]["w"])


def test_version_2_has_bfloat16_as_uint16(tmp_path: Path) -> None:
    expected = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16)
    assert one_array(tmp_path / "one", 1, expected).dtype == ml_dtypes.bfloat16
    found = one_array(tmp_path / "two", 2, expected)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, expected)
    assert one_array(tmp_path / "three", 3, expected.view(np.uint16)).dtype == np.uint16


ARRAY = np.ones((3, 4), np.float32)
BAD_SPECS = {
    "absolute": {"kvstore": {"driver": "file", "path": "/etc"}},
    "upwards": {"kvstore": {"driver": "file", "path": "../../secret/inner"}},
    "upwards_within": {"kvstore": {"driver": "file", "path": "target.w/../../../secret/inner"}},
    "itself": {"kvstore": {"driver": "file", "path": "."}},
    "upwards_of_a_bucket": {"kvstore": "gs://bucket/../target.w"},
    "control_character": {"kvstore": {"driver": "file", "path": "target.w\0"}},
    "kvstore_of_a_number": {"kvstore": 3},
    "missing": {"kvstore": {"driver": "file", "path": "target.x"}},
    "no_path": {"kvstore": {"driver": "memory"}},
    "other_driver": {"driver": "json"},
    "huge": {"metadata": {"shape": [2**40], "chunks": [2**40]}},
    "many_chunks": {"metadata": {"shape": [2**40], "chunks": [1]}},
    "chunks_of_0": {"metadata": {"shape": [3, 4], "chunks": [0, 4]}},
    "other_rank": {"metadata": {"shape": [3, 4], "chunks": [3]}},
    "objects": {"dtype": "object"},
    "no_dtype": {"dtype": "numbers"},
    "text_as_shape": {"metadata": {"shape": "3", "chunks": "3"}},
    "unknown_compressor": {
        "metadata": {"shape": [3, 4], "chunks": [3, 4], "compressor": {"id": "pickle"}}
    },
    "too_short": {"metadata": {"shape": [3, 5], "chunks": [3, 5], "compressor": None}},
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_spec_is_a_clear_error(name: str, tmp_path: Path) -> None:
    write_t5x(tmp_path / "secret", {"inner": ARRAY}, **STORED_WHOLE)
    with pytest.raises(CheckpointError, match="numeric" if name == "no_dtype" else "."):
        one_array(tmp_path / "run", 3, ARRAY, **BAD_SPECS[name])


def test_chunks_of_more_than_the_files_can_hold_are_refused(tmp_path: Path) -> None:
    metadata = {"shape": [3, 4], "chunks": [2**20, 2**20]}
    with refused(CheckpointError, r"an array that \d+ bytes may hold"):
        one_array(tmp_path, 3, ARRAY, metadata=metadata)


@pytest.mark.parametrize("is_circle", [False, True], ids=["out", "circle"])
@pytest.mark.parametrize("name", ["target.w", "target.w/0.0", "target.w/.zarray"])
def test_a_link_is_a_clear_error(name: str, is_circle: bool, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint_1"
    write_t5x(folder, {"target": {"w": ARRAY}}, key="_optimizer", largest_chunk=99)
    (folder / name).rename(tmp_path / "moved")
    (folder / name).symlink_to(folder / name if is_circle else tmp_path / "moved")
    with pytest.raises(CheckpointError):
        np.asarray(read_checkpoint(folder).tree["optimizer"]["target"]["w"])


def test_missing_chunk_is_a_clear_error(tmp_path: Path) -> None:
    write_t5x(tmp_path / "checkpoint_4", genuine("adafactor"))
    next(path for path in tmp_path.rglob("0.0")).unlink()
    with pytest.raises(CheckpointError, match="chunk"):
        TrainState.from_legacy_checkpoint(tmp_path, optimizer_def=ADAFACTOR)


def test_unknown_version_is_a_clear_error(tmp_path: Path) -> None:
    write_t5x(tmp_path / "checkpoint_4", genuine("adafactor"), version=9)
    with refused(CheckpointError, "version"):
        read_checkpoint(tmp_path)
