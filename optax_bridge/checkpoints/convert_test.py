"""Training that a conversion interrupted goes on as if it had not been; genuine files."""

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization

import legacy_optim
from optax_bridge import FullTrainState, TrainState, convert_state, from_legacy
from optax_bridge.checkpoints import (
    CheckpointError,
    LeftOverWarning,
    convert_file,
    from_bytes,
    read_checkpoint,
)
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.devices import without_memory
from optax_bridge.checkpoints.layout import with_lists
from optax_bridge.checkpoints.lazy import BLOCK
from optax_bridge.checkpoints.read import written_as
from optax_bridge.checkpoints.restore_test import fresh, same_bits
from optax_bridge.checkpoints.testdata.optimizers import OPTIMIZERS
from optax_bridge.checkpoints.to_train_state import convert_tree
from optax_bridge.checkpoints.write import compare, write
from optax_bridge.correspondence import UnsupportedSetting
from optax_bridge.metadata.paths import leaves
from optax_bridge.recorded_test import refused

# Among the recorded files is one with a group of nothing, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*none of the . parameters is selected")

FILES = Path(__file__).parent / "testdata"


def uninterrupted(name: str) -> legacy_optim.Optimizer:
    """The legacy optimizer as flax.optim restored it."""
    tree: Any = serialization.msgpack_restore((FILES / f"{name}.msgpack").read_bytes())
    target = jax.tree.map(jnp.asarray, tree["target"])
    optimizer = parse_definition(OPTIMIZERS[name]).create(target)
    return jax.tree.map(jnp.asarray, serialization.from_state_dict(optimizer, tree))


# A file of each optimizer that public Optax has.
ON_OPTAX = [
    *("adabelief", "adadelta", "adafactor", "adamw", "gradient_descent", "lars", "momentum"),
    *("multi_optimizer", "rmsprop_centered", "weight_norm_momentum", "no_elements"),
]


# Files whose state says the class, or which parameters it is of, and what has to be given then.
SAID_BY_THE_STATE = {
    **dict.fromkeys(("adadelta", "adagrad", "gradient_descent", "rmsprop_centered")),
    "focus": legacy_optim.Momentum(0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_that_of_the_optimizer_that_flax_restored(name: str) -> None:
    """By definition and by template; it goes on bit for bit, as the suite shows of every one."""
    definition, optimizer = parse_definition(OPTIMIZERS[name]), uninterrupted(name)
    path = FILES / f"{name}.msgpack"
    said = SAID_BY_THE_STATE.get(name, definition)
    definitions = [definition] if said is definition else [definition, said]
    for exact in (True, False) if name in ON_OPTAX else (True,):
        expected = TrainState.from_legacy(optimizer, exact=exact)
        template = fresh(from_legacy(definition, exact), optimizer.target)
        restored = from_bytes(template, path.read_bytes())
        assert jax.tree.structure(restored) == jax.tree.structure(template)
        states: list[Any] = [
            TrainState.from_legacy_checkpoint(path, optimizer_def=given, exact=exact)
            for given in definitions
            if exact or given is not None  # without a rate there is no recipe of public Optax
        ]
        for state in (*states, restored):
            same_bits(state.params, optimizer.target)
            same_bits(state.opt_state, expected.opt_state)
            assert int(state.step) == int(optimizer.state.step) == 4


@pytest.mark.parametrize("name", ["adam_bfloat16", "adafactor_bfloat16"])
def test_public_optax_that_is_not_the_same_in_half_precision_is_said(
    name: str, tmp_path: Path
) -> None:
    """In bfloat16 the legacy `1 - beta2 ** t` rounds to 0 and nothing moves; Optax's does not."""
    definition, source = parse_definition(OPTIMIZERS[name]), FILES / f"{name}.msgpack"
    with pytest.raises(UnsupportedSetting, match="not the same in bfloat16"):
        TrainState.from_legacy_checkpoint(source, optimizer_def=definition, exact=False)
    done = convert_file(source, tmp_path / "new", definition, recipe="auto")
    assert done.choices[""].kind == "exact" and "in bfloat16" in done.choices[""].reason
    with (
        refused(CheckpointError, r"bfloat16.*would lose bits.*--recipe exact")
        if (name == "adafactor_bfloat16")
        else contextlib.nullcontext()
    ):
        done = convert_file(source, tmp_path / "asked", definition, recipe="optax")
        assert done.choices[""].kind == "optax" and "in bfloat16" in done.choices[""].reason


# Those whose trees are of all kinds.
BY_ORBAX = ["adafactor_bfloat16", "weight_norm", "no_elements", "odd_names", "list", "chunked"]


@pytest.mark.parametrize(
    ("name", "file_format", "recipe"),
    [
        *((name, "msgpack", "exact") for name in OPTIMIZERS),
        *((name, "msgpack", "optax") for name in ON_OPTAX),
        *((name, "orbax", "exact") for name in BY_ORBAX),
    ],
)
def test_way_there_and_back_gives_the_same_bytes(
    name: str, file_format: str, recipe: Any, tmp_path: Path
) -> None:
    definition = parse_definition(OPTIMIZERS[name])
    source = FILES / f"{name}.msgpack"
    convert_file(source, tmp_path / "new", definition, file_format=file_format, recipe=recipe)
    convert_file(str(tmp_path / "new"), str(tmp_path / "back"), definition, to_legacy=True)
    same_bits(read_checkpoint(source).tree, read_checkpoint(tmp_path / "back").tree)
    if name != "chunked":
        assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_of_the_settings_that_a_state_may_have_the_likeliest_says_what_is_wrong() -> None:
    tree: Any = serialization.msgpack_restore((FILES / "rmsprop.msgpack").read_bytes())
    tree["state"]["param_states"]["scale"]["v"] = np.ones(7, np.float32)
    with refused(CheckpointError, r"\['scale'\]\['v'\]: expected .*float32\[7\]\. "):
        convert_state(tree)


class WithStats(TrainState):
    batch_stats: Any


@pytest.mark.parametrize(
    ("name", "part", "alone"),
    [
        ("tuple", "0", "adam"),
        ("dataclass", "generator", "adafactor"),
        ("replicated", None, "adam"),
        ("replicated_dataclass", None, "adafactor"),
    ],
)
def test_optimizer_within_something_is_found(name: str, part: str | None, alone: str) -> None:
    """Of equal copies, one for each device, one is taken, also of what stands beside it."""
    definition = parse_definition(OPTIMIZERS[alone])
    warns = pytest.warns(LeftOverWarning, match=r"\['mean'\]")
    with warns if name == "tuple" else contextlib.nullcontext():
        state: Any = FullTrainState.from_legacy_checkpoint(
            FILES / f"{name}.msgpack", optimizer_def=definition, part=part
        )
    expected: Any = TrainState.from_legacy_checkpoint(
        FILES / f"{alone}.msgpack", optimizer_def=definition
    )
    same_bits((state.params, state.opt_state), (expected.params, expected.opt_state))
    if name == "replicated_dataclass":
        np.testing.assert_array_equal(state.batch_stats["dense"]["mean"], np.ones(3))
        template = jax.tree.map(jnp.zeros_like, state)
        same_bits(from_bytes(template, (FILES / f"{name}.msgpack").read_bytes()), state)


def test_what_each_device_had_of_its_own_beside_the_optimizer_stays() -> None:
    tree: Any = serialization.msgpack_restore((FILES / "replicated_dataclass.msgpack").read_bytes())
    own = np.stack([np.zeros(2, np.uint32), np.ones(2, np.uint32)])
    tree |= {"keys": own, "same": np.stack([np.ones(2), np.ones(2)])}
    others = convert_tree(tree, parse_definition(OPTIMIZERS["adafactor"])).others
    np.testing.assert_array_equal(others["keys"], own)
    assert others["same"].shape == (2,)


HOLDERS = {
    "tuple": ("tuple", None, "Adam(1e-2)"),
    "generator": ("dataclass", "generator", OPTIMIZERS["adafactor"]),
    "discriminator": ("dataclass", "/discriminator/", "LARS(1.0)"),
    "dictionary": ("dictionary", None, OPTIMIZERS["adagrad"]),
    "values": ("values", None, OPTIMIZERS["momentum"]),
    "deep": ("deep", None, OPTIMIZERS["adagrad"]),
    "step_of_python": ("step_of_python", None, OPTIMIZERS["adagrad"]),
    "step_of_numpy": ("step_of_numpy", None, OPTIMIZERS["adagrad"]),
}


def held(name: str, folder: Path) -> Path:
    """A genuine file with an optimizer among other things, or a genuine optimizer among others."""
    if (FILES / f"{name}.msgpack").exists():
        return FILES / f"{name}.msgpack"
    optimizer = serialization.msgpack_restore((FILES / "adagrad.msgpack").read_bytes())
    tree = {
        "deep": {"models": {"generator": {"opt": optimizer}, "x": np.ones(2)}, "epoch": 4},
        "step_of_python": {"optimizer": optimizer, "step": 4},
        "step_of_numpy": {"optimizer": optimizer, "global_step": np.int64(4), "step": 1e-3},
    }[name]
    (folder / name).write_bytes(serialization.msgpack_serialize(tree))
    return folder / name


@pytest.mark.parametrize("file_format", ["msgpack", "orbax"])
@pytest.mark.parametrize("name", HOLDERS)
def test_what_holds_an_optimizer_comes_back_whole(
    name: str, file_format: str, tmp_path: Path
) -> None:
    file, part, expression = HOLDERS[name]
    source, definition = held(file, tmp_path), parse_definition(expression)
    convert_file(source, tmp_path / "new", definition, file_format=file_format, part=part)
    convert_file(tmp_path / "new", tmp_path / "back", definition, to_legacy=True)
    before, after = (dict(leaves(read_checkpoint(p).tree)) for p in (source, tmp_path / "back"))
    assert before.keys() == after.keys()
    for path, leaf in before.items():
        # Orbax keeps NumPy's numbers as arrays.
        assert file_format == "orbax" or type(after[path]) is type(leaf), path
        assert np.asarray(after[path]).dtype == np.asarray(leaf).dtype, path
        assert np.asarray(after[path]).tobytes() == np.asarray(leaf).tobytes(), path


@pytest.mark.parametrize("msgpack", [True, False], ids=["msgpack", "orbax"])
def test_what_held_an_optimizer_is_restored_into_a_state(msgpack: bool, tmp_path: Path) -> None:
    """By Flax and Orbax too, where all of it is one TrainState."""
    source = FILES / "dictionary.msgpack"
    convert_file(
        source, tmp_path / "new", file_format="msgpack" if msgpack else "orbax", layout="flat"
    )
    expected: Any = WithStats.from_legacy_checkpoint(source)
    empty = jax.tree.map(jnp.zeros_like, expected)
    if msgpack:
        restored = serialization.from_bytes(empty, (tmp_path / "new").read_bytes())
        adagrad = parse_definition(OPTIMIZERS["adagrad"])
        convert_file(tmp_path / "new", tmp_path / "old", adagrad, to_legacy=True, part="a/b")
        assert set(read_checkpoint(tmp_path / "old").tree["a"]["b"]) == {"target", "state"}
        convert_file(tmp_path / "new", tmp_path / "beside", adagrad, to_legacy=True)
        assert read_checkpoint(tmp_path / "beside").tree.keys() > {"optimizer"}
    else:
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(tmp_path / "new", empty)
    same_bits(restored, expected)
    with refused(CheckpointError, r"fields of a TrainState, found opt_state, params, step\. Leave"):
        momentum = parse_definition(OPTIMIZERS["momentum"])
        convert_file(FILES / "values.msgpack", tmp_path / "other", momentum, layout="flat")


def test_each_of_several_optimizers_is_converted_where_it_stands(tmp_path: Path) -> None:
    names = {"actor": "adam", "critic": "adagrad"}
    definitions = {path: parse_definition(OPTIMIZERS[name]) for path, name in names.items()}
    read = {p: read_checkpoint(FILES / f"{name}.msgpack").tree for p, name in names.items()}
    source = tmp_path / "source"
    tree = {**jax.tree.map(np.asarray, read), "n": np.int32(3)}
    source.write_bytes(serialization.msgpack_serialize(tree))
    done = convert_file(source, tmp_path / "new", definitions, file_format="msgpack")
    assert {move.target[0] for move in done.moves} == {*names}
    new = read_checkpoint(tmp_path / "new").tree
    assert [sorted(new[path]) for path in names] == [["opt_state", "params", "step"]] * 2
    done = convert_file(tmp_path / "new", tmp_path / "back", definitions, to_legacy=True)
    assert done.read.description == "Flax msgpack, a TrainState at actor, critic"
    assert {move.target[0] for move in done.moves} == {*names}
    same_bits(read_checkpoint(tmp_path / "back").tree, read_checkpoint(source).tree)
    with refused(CheckpointError, "one TrainState to convert, found actor, critic"):
        convert_file(tmp_path / "new", tmp_path / "x", definitions["actor"], to_legacy=True)
    with refused(CheckpointError, "one optimizer to convert, found actor, critic"):
        convert_file(source, tmp_path / "params", params_only=True)
    convert_file(tmp_path / "new", tmp_path / "one", params_only=True, part="/actor/")
    with refused(CheckpointError, "an optimizer: "):
        convert_file(tmp_path / "new", tmp_path / "none", params_only=True, part="act")
    with refused(CheckpointError, r"for each of its optimizers, actor, critic"):
        convert_file(source, tmp_path / "x", {"actor": definitions["actor"]})


def test_fields_beside_the_optimizer_go_back_where_a_place_is_named(tmp_path: Path) -> None:
    definition = parse_definition(OPTIMIZERS["adagrad"])
    state: Any = FullTrainState.create(
        apply_fn=None, params={"w": jnp.ones(3)}, tx=from_legacy(definition),
        batch_stats={"mean": jnp.ones(2)}, rngs={"dropout": jax.random.key(0)},
    )  # fmt: skip
    state.to_legacy_checkpoint(tmp_path / "back", optimizer_def=definition, part="models/a")
    found: Any = read_checkpoint(tmp_path / "back").tree
    assert set(found) == {"step", "models", "batch_stats", "rngs"} and int(found["step"]) == 0
    np.testing.assert_array_equal(found["batch_stats"]["mean"], np.ones(2))
    assert found["rngs"]["dropout"].dtype == np.uint32
    with pytest.warns(LeftOverWarning, match=r"\['rngs'\]\['dropout'\] left over") as warned:
        again: Any = WithStats.from_legacy_checkpoint(tmp_path / "back")
    assert warned[0].filename == __file__
    same_bits((again.params, again.opt_state), (state.params, state.opt_state))


def test_state_in_memory_goes_there_and_back(tmp_path: Path) -> None:
    definition = legacy_optim.Adam(1e-2)
    tree: Any = serialization.msgpack_restore((FILES / "adam.msgpack").read_bytes())
    state = convert_state(tree, definition)
    same_bits(convert_state(state, definition), tree)
    state.to_legacy_checkpoint(tmp_path / "back", optimizer_def=definition)
    assert (tmp_path / "back").read_bytes() == (FILES / "adam.msgpack").read_bytes()
    factored = legacy_optim.Adafactor(0.1)  # has a zero where it keeps nothing, as Optax does not
    optimizer = factored.create({"w": jnp.ones(3)}).apply_gradient({"w": jnp.ones(3)})
    state = TrainState.from_legacy(optimizer, exact=False)
    same_bits(convert_state(state, factored), serialization.to_state_dict(optimizer))


def test_parameters_in_float64_stay_so_though_jax_has_float32_alone(tmp_path: Path) -> None:
    wide = {"w": np.arange(3.0), "z": np.arange(2) * 1j}
    momenta = {name: {"momentum": leaf + 1} for name, leaf in wide.items()}
    state = {"step": np.int32(2), "param_states": momenta}
    tree = {"target": wide, "state": state}
    (tmp_path / "old").write_bytes(serialization.msgpack_serialize(tree))
    definition = legacy_optim.Momentum(0.1)
    convert_file(tmp_path / "old", tmp_path / "new", definition, file_format="msgpack")
    convert_file(tmp_path / "new", tmp_path / "back", definition, to_legacy=True)
    same_bits(read_checkpoint(tmp_path / "back").tree, tree)


ARRAY, NUMBER = np.asarray([[0.0, 1.0]], np.float32), np.int32(3)
TREE: dict[str, Any] = {"a": ARRAY, "b": NUMBER, "n": 3}
OTHER_TREES: dict[str, dict[str, Any]] = {
    "bit": TREE | {"a": np.nextafter(ARRAY, np.float32(2))},
    "sign_of_zero": TREE | {"a": ARRAY * np.asarray([-1, 1], np.float32)},
    "dtype": TREE | {"a": ARRAY.view(np.int32)},
    "shape": TREE | {"a": ARRAY.T},
    "number": TREE | {"n": 4},
    "missing": {"a": ARRAY, "n": 3},
    "more": TREE | {"c": NUMBER},
}


@pytest.mark.parametrize("file_format", ["msgpack", "orbax"])
def test_verification_finds(file_format: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    write(tmp_path / "x", TREE, file_format)
    compare(tmp_path / "x", TREE, tmp_path, written_as(file_format))
    for change, other in OTHER_TREES.items():
        with subtests.test(change), refused(CheckpointError, "the value written"):
            compare(tmp_path / "x", other, tmp_path, written_as(file_format))


def test_verification_finds_a_bit_in_any_block(tmp_path: Path) -> None:
    tree = {"w": np.zeros(2 * BLOCK + 3, np.uint8)}
    write(tmp_path / "x", tree, "msgpack")
    for position in (0, BLOCK + 1, -1):
        compare(tmp_path / "x", tree, tmp_path, written_as("msgpack"))
        tree["w"][position] ^= 1
        with pytest.raises(CheckpointError, match="the value written"):
            compare(tmp_path / "x", tree, tmp_path, written_as("msgpack"))
        tree["w"][position] ^= 1


@pytest.mark.parametrize("max_chunk_size", [2**30, 7_000_000], ids=["whole", "chunked"])
def test_large_arrays_may_be_donated_and_come_back(
    max_chunk_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large arrays are handled block by block, and JAX takes the memory as it is."""
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", max_chunk_size)
    monkeypatch.setattr(
        "optax_bridge.checkpoints.formats.flax_msgpack.MAX_CHUNK_SIZE", max_chunk_size
    )
    kernel = np.random.default_rng(0).standard_normal((2100, 2048)).astype(np.float32)
    definition, source = legacy_optim.Momentum(0.1), tmp_path / "old"
    optimizer = definition.create({"w": kernel}).apply_gradient({"w": kernel})
    source.write_bytes(serialization.to_bytes(optimizer))
    state: Any = TrainState.from_legacy_checkpoint(source, optimizer_def=definition)
    step = jax.jit(lambda s: s.apply_gradients(grads=s.params), donate_argnums=0)
    legacy_step = jax.jit(lambda o: o.apply_gradient(o.target))
    same_bits(step(state).params, legacy_step(optimizer).target)
    convert_file(source, tmp_path / "new", definition)
    convert_file(tmp_path / "new", tmp_path / "back", definition, to_legacy=True)
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_a_list_of_twelve_keeps_its_order() -> None:
    names = sorted(map(str, range(12)))  # 0, 1, 10, 11, 2
    assert with_lists({name: int(name) for name in names}) == list(range(12))


def test_a_large_template_takes_no_memory_and_its_infinities_stay() -> None:
    size = BLOCK // 4 + 1
    template = {
        "large": jnp.ones(size, np.float32), "best": np.full(size, np.inf, np.float32),
        "small": np.ones(3, np.float32),
    }  # fmt: skip
    outline = without_memory(template)
    assert outline["large"].strides == (0,) and outline["large"].shape == (size,)
    assert template["large"].is_deleted()
    assert outline["best"] is template["best"] and outline["small"] is template["small"]


def test_what_a_template_has_no_place_for_is_listed_as_dropped(tmp_path: Path) -> None:
    old = serialization.msgpack_restore((FILES / "adam.msgpack").read_bytes())
    data = serialization.msgpack_serialize({"optimizer": old, "note": np.ones(2), "step": 7})
    (tmp_path / "old").write_bytes(data)
    tx = from_legacy(parse_definition(OPTIMIZERS["adam"]))
    template = {"optimizer": TrainState.create(apply_fn=None, params=old["target"], tx=tx)}
    with pytest.warns(LeftOverWarning, match="note"):
        done = convert_file(tmp_path / "old", tmp_path / "new", like=template, dry_run=True)
    assert done.dropped() == [("note",), ("step",)]
