"""Checkpoints of every format and optimizer: all that is in them, and where each leaf goes."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

from optax_bridge.checkpoints import convert_file, read_checkpoint
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.inference import infer_definitions, looks_like
from optax_bridge.checkpoints.locate import find_parts
from optax_bridge.checkpoints.testdata.optimizers import OPTIMIZERS
from optax_bridge.checkpoints.testdata.write_t5x import write_t5x
from optax_bridge.checkpoints.write import write
from optax_bridge.metadata.paths import leaf_name, leaves
from optax_bridge.spmd.examples import regression

FILES = Path(__file__).parent / "testdata"
ALL = sorted(path.stem for path in FILES.glob("*.msgpack"))
pytestmark = pytest.mark.filterwarnings("ignore:.*none of the . parameters is selected")


def shown(tree: Any) -> Iterator[str]:
    """A line for each leaf: path, dtype, shape, and a sum in which each element weighs more."""
    for path, leaf in leaves(tree):
        if not hasattr(leaf, "shape"):
            yield f"{leaf_name(path)} {leaf!r}"
            continue
        array = np.asarray(leaf)
        kind = np.complex128 if array.dtype.kind == "c" else np.float64
        with contextlib.suppress(TypeError, ValueError):
            total = np.sum(array.astype(kind).ravel() * np.linspace(1, 2, array.size))
            yield f"{leaf_name(path)} {array.dtype}{list(array.shape)} {total:.6g}"


def page(path: Path) -> str:
    read = read_checkpoint(path)
    lines = [f"{read.path.name}: {read.description}"]
    if read.format == "Trainer":  # numbers that this machine computed
        return "\n".join([*lines, *(leaf_name(path) for path, _ in leaves(read.tree))])
    for part in find_parts(read.tree, "file"):
        notes = f"step {part.step}, {part.copies} copies, {sorted(part.dtypes)}"
        lines.append(f"optimizer at {part.name!r}: {looks_like(part)}, {notes}")
        with contextlib.suppress(ValueError):
            for definition in infer_definitions(part):
                lines.append(f"inferred: {type(definition).__name__} {definition.hyper_params}")
    return "\n".join([*lines, *shown(read.tree)])


def test_all_that_is_in_a_file(recorded: Any) -> None:
    recorded("pages.txt", {name: page(FILES / f"{name}.msgpack") for name in ALL})


def converted(name: str, folder: Path) -> str:
    """The recipe, each leaf's move, and what arrives there."""
    definition, source = parse_definition(OPTIMIZERS[name]), FILES / f"{name}.msgpack"
    done = convert_file(source, folder / name, definition, file_format="msgpack")
    lines = [f"{at!r}: {choice.kind} {choice.reason}" for at, choice in done.choices.items()]
    leaf_lines = [*shown(read_checkpoint(folder / name).tree)]
    arrived = {line.partition(" ")[0]: line.partition(" ")[2] for line in leaf_lines}
    for move in done.moves:
        lines.append(f"{move} {arrived.pop(leaf_name(move.target), '')}")
    return "\n".join([*lines, *(f"besides {path} {kind}" for path, kind in arrived.items())])


def test_where_each_leaf_goes(recorded: Any, tmp_path: Path) -> None:
    recorded("conversions.txt", {name: converted(name, tmp_path) for name in OPTIMIZERS})


TREE: Any = {
    "params": {"w": np.arange(6.0).reshape(2, 3), "h": np.arange(3).astype(ml_dtypes.bfloat16)},
    "opt_state": {"0": {"count": np.int32(3), "mu": {"w": np.full((2, 3), -1.5, np.float32)}}},
    "step": np.int32(3), "none": None, "empty": {}, "text": "words", "flag": np.array([True]),
    "nothing": np.zeros((0, 2), np.float32),
}  # fmt: skip


def of_manager(folder: Path) -> Path:
    """Two steps of Orbax's manager, each with two items."""
    with ocp.CheckpointManager(folder.absolute()) as manager:
        for step in (9, 10):
            items: Any = {
                "default": ocp.args.StandardSave({"w": np.full(2, step)}),  # pyright: ignore
                "more": ocp.args.JsonSave({"a": 1}),  # pyright: ignore[reportCallIssue]
            }
            manager.save(step, args=ocp.args.Composite(**items))
    return folder / "10"


def folders(folder: Path, *, says: bool) -> Path:
    """A folder for each array; an array of zeros has no chunk."""
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    with ocp.Checkpointer(handler) as checkpointer:
        tree = {"w": np.ones((2, 3), np.float32), "z": np.zeros(4, np.float32), "n": 3, "s": "text"}
        checkpointer.save(folder.absolute(), args=ocp.args.PyTreeSave(tree))  # pyright: ignore
    metadata = json.loads((folder / "_METADATA").read_text())
    metadata["store_array_data_equal_to_fill_value"] = says
    (folder / "_METADATA").write_text(json.dumps(metadata))
    (folder / "z" / "0").unlink(missing_ok=True)
    return folder


def t5x(folder: Path, **form: Any) -> Path:
    write_t5x(folder, read_checkpoint(FILES / "adafactor_bfloat16.msgpack").tree, **form)
    return folder


def npz(path: Path) -> Path:
    arrays = {"a/w": TREE["params"]["w"], "b": TREE["params"]["h"], "c/d": np.int8(3)}
    np.savez(path, **arrays)
    return path.with_suffix(".npz")


def trainer(folder: Path) -> Path:
    import jax

    cfg = regression.trainer(steps=2, mesh_shape=(1, 1)).set(dir=str(folder))
    cfg.checkpointer.keep_last_n = 2
    cfg.learner.ema.decay = 0.5
    cfg.instantiate(parent=None, devices=jax.devices()[:1]).run(jax.random.PRNGKey(0))
    return folder


def written(path: Path, option: str) -> Path:
    write(path, TREE, option)
    return path


def test_every_format(recorded: Any, tmp_path: Path) -> None:
    files: dict[str, Path] = {
        "msgpack": written(tmp_path / "checkpoint_1", "msgpack"),
        "orbax": written(tmp_path / "orbax", "orbax"),
        "folders": folders(tmp_path / "zeros", says=False),
        "folders with a gap": folders(tmp_path / "gap", says=True),
        "manager": of_manager(tmp_path / "manager"),
        "managers": tmp_path / "manager",
        "t5x": t5x(tmp_path / "checkpoint_2"),
        "t5x, version 2": t5x(tmp_path / "checkpoint_3", version=2),
        "t5x of Orbax": t5x(tmp_path / "checkpoint_4", key="_optimizer", version=None),
        "series": tmp_path / "checkpoint_4",
        "npz": npz(tmp_path / "arrays"),
        "trainer": trainer(tmp_path / "run"),
        "nothing": tmp_path / "nowhere",
    }

    def said(path: Path) -> str:
        try:
            return page(path)
        except ValueError as error:
            text = re.sub(r" \[source locations=.*?\]", "", str(error))  # of older tensorstores
            return f"{type(error).__name__}: {text}".replace(str(tmp_path), "TMP")

    pages = {name: said(path) for name, path in files.items()}
    first, *rest = pages["t5x"].splitlines()
    for name, text in pages.items():  # of the same content, in other forms
        if text.splitlines()[1:] == rest and text.splitlines()[0] != first:
            pages[name] = f"{text.splitlines()[0]}, and else as t5x"
    recorded("formats.txt", pages)
