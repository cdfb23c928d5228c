"""Nothing is restored in part: every way says which leaf is missing, new or reshaped."""

import contextlib
import copy
import functools
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization

import legacy_optim
import optax_bridge
from optax_bridge import (
    CheckpointError,
    FullTrainState,
    UnsupportedSetting,
    convert_state,
    restored_into,
)
from optax_bridge.checkpoints import (
    LeftOverWarning,
    from_state_dict,
    restore_checkpoint,
)
from optax_bridge.checkpoints.trees import fields_of, is_key

ocp = pytest.importorskip("orbax.checkpoint")

TX = optax.sgd(optax.constant_schedule(0.1), momentum=0.9)
PARAMS = {"dense": {"kernel": jnp.ones((2, 3))}}


class Own(FullTrainState):
    """A state with a field of its own."""

    epoch: Any = None


def state(number: float, key: Any) -> Any:
    return Own.create(
        apply_fn=None,
        params=jax.tree.map(lambda p: p * number, PARAMS),
        tx=TX,
        batch_stats={"mean": jnp.full(2, number)},
        rngs={"dropout": key},
        ema_decay=0.9,
        epoch=jnp.asarray(int(number)),
    )


SAVED, FRESH = state(3.0, jax.random.key(3)), state(0.0, jax.random.key(0))


def tree() -> Any:
    """What is saved, in dicts and lists."""

    def opened(node: Any) -> Any:
        if isinstance(node, tuple):
            names = getattr(node, "_fields", None)
            if names is None:
                return [opened(item) for item in node]
            return {name: opened(getattr(node, name)) for name in names}
        return {k: opened(v) for k, v in node.items()} if isinstance(node, dict) else node

    return {name: opened(getattr(SAVED, name)) for name in fields_of(SAVED)}


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from paths(node[key], (*path, key))
    elif node is not None:
        yield path


def changed(path: tuple[Any, ...], change: str) -> Any:
    new = copy.copy(tree())
    level = new
    for key in path[:-1]:
        level = level[key]
    leaf = level[path[-1]]
    if change == "reshaped":
        level[path[-1]] = leaf[None]
    elif change == "added":
        level[f"{path[-1]}_too"] = leaf
    elif change != "nothing":
        del level[path[-1]]
        if change == "renamed":
            level[f"{path[-1]}_too"] = leaf
    return new


@functools.cache
def folder() -> Path:
    made = tempfile.TemporaryDirectory()
    folder.made = made  # type: ignore[attr-defined]  # lives as long as the process
    return Path(made.name)


@functools.cache
def by_orbax(path: tuple[Any, ...], change: str) -> Path:
    """The changed tree in a folder as a CheckpointManager has it."""
    saved = folder() / f"{'.'.join(map(str, path))}_{change}" / "5"
    os.makedirs(saved)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(saved / "default", changed(path, change))
    return saved


def by_msgpack(path: tuple[Any, ...], change: str) -> bytes:
    return serialization.msgpack_serialize(
        serialization.to_state_dict(_bits(changed(path, change)))
    )


def _bits(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _bits(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_bits(value) for value in node]
    return jax.random.key_data(node) if is_key(node) else node


WAYS: dict[str, Callable[..., Any]] = {
    "from_bytes of Flax": lambda *a: serialization.from_bytes(FRESH, by_msgpack(*a)),
    "from_state_dict": lambda *a, **how: from_state_dict(
        FRESH, serialization.msgpack_restore(by_msgpack(*a)), **how
    ),
    "restore_checkpoint": lambda *a, **how: restore_checkpoint(
        by_orbax(*a) / "default", FRESH, **how
    ),
    "restored_into": lambda *a: optax_bridge.restored_into(FRESH, changed(*a)),
}
LEAVES = list(paths(tree()))
no_sharding_said = pytest.mark.filterwarnings("ignore:Sharding info not provided")


@no_sharding_said
@pytest.mark.parametrize("way", WAYS)
def test_the_whole_is_restored_with_typed_keys(way: str) -> None:
    restored = WAYS[way](("step",), "nothing")
    assert jax.tree.structure(restored) == jax.tree.structure(FRESH)
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), restored, SAVED)
    assert all(jax.tree.leaves(same))
    assert restored.rngs["dropout"].dtype == SAVED.rngs["dropout"].dtype


def says_which_leaf(way: str, path: tuple[Any, ...], change: str) -> None:
    with pytest.raises(CheckpointError) as error:
        WAYS[way](path, change)
    assert f"{path[-1]}{'_too' if change == 'added' else ''}" in str(error.value)


@pytest.mark.parametrize("change", ["deleted", "renamed", "added", "reshaped"])
def test_no_leaf_is_lost_unsaid(change: str) -> None:
    for path in LEAVES:
        says_which_leaf("restored_into", path, change)


@no_sharding_said
@pytest.mark.parametrize("change", ["renamed", "reshaped"])
@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_restoring_loses_a_leaf_unsaid(way: str, change: str) -> None:
    says_which_leaf(way, ("params", "dense", "kernel"), change)


def test_a_step_of_a_manager_is_a_checkpoint_and_a_folder_of_steps_is_refused(
    tmp_path: Path,
) -> None:
    saved = by_orbax(("step",), "nothing")
    restored = restore_checkpoint(saved, FRESH)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), restored, SAVED))
    for step in (9, 10):
        shutil.copytree(saved, tmp_path / str(step))
    with pytest.raises(
        CheckpointError, match=r"steps of Orbax's CheckpointManager.*/10 is the newest"
    ):
        restore_checkpoint(tmp_path, FRESH)


def test_parameters_alone_are_restored_whole_or_not_at_all() -> None:
    params = {"a": {"w": jnp.ones(2)}}
    fine = restored_into(params, {"a": {"w": np.full(2, 3.0, "f4")}})
    np.testing.assert_array_equal(fine["a"]["w"], [3, 3])
    for wrong, said in (
        ({"a": {"w": jnp.ones(2), "b": jnp.ones(1)}}, r"\['a'\]\['b'\]"),
        ({"a": {"w": jnp.ones(2)}, "c": jnp.ones(1)}, r"\['c'\]"),
        ({"a": {}}, r"\['a'\]\['w'\]"),
        ({"a": {"w": jnp.ones(3)}}, r"\['a'\]\['w'\].*float32\[3\]"),
    ):
        with pytest.raises(CheckpointError, match=said):
            restored_into(params, wrong)


@no_sharding_said
@pytest.mark.parametrize("change", ["deleted", "renamed"])
@pytest.mark.parametrize("way", ["from_state_dict", "restore_checkpoint"])
def test_what_is_missing_is_kept_if_asked_for(way: str, change: str) -> None:
    warns = pytest.warns(LeftOverWarning, match="mean_too")
    with warns if change == "renamed" else contextlib.nullcontext():
        restored = WAYS[way](("batch_stats", "mean"), change, missing="keep")
    assert float(restored.batch_stats["mean"][0]) == 0.0
    assert (int(restored.epoch), restored.rngs["dropout"]) == (3, jax.random.key(3))
    if way == "restore_checkpoint":
        assert isinstance(restored.params["dense"]["kernel"], jax.Array)


def test_a_replicated_template_says_so_where_flax_restores():
    """Flax's own functions do not copy what a file has once; the message says which does."""
    state = optax_bridge.TrainState.create(
        apply_fn=None, params={"w": jnp.ones((3, 2))}, tx=optax_bridge.adam(0.1)
    )
    copies = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    said = r"replicated.*flax.jax_utils.unreplicate\(state\)"
    for template, saved in ((copies, state), (state, copies)):
        with pytest.raises(optax_bridge.CheckpointError, match=said):
            serialization.from_bytes(template, serialization.to_bytes(saved))


@pytest.mark.parametrize("is_by_index", [False, True], ids=["by name", "by index"])
def test_the_state_of_a_named_chain_comes_back(is_by_index: bool) -> None:
    """Its levels are an OrderedDict, in which NamedTuples were once written by index."""
    tx = optax.named_chain(("clip", optax.clip(1.0)), ("adam", optax.adam(0.1)))
    params = OrderedDict(b=jnp.ones(2), a=jnp.ones(3))
    fresh = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
    saved = fresh.apply_gradients(grads=params)
    tree = cast(Any, serialization.msgpack_restore(serialization.to_bytes(saved)))
    if is_by_index:
        adam = tree["opt_state"]["adam"]["0"]
        tree["opt_state"]["adam"]["0"] = {"0": adam["count"], "1": adam["mu"], "2": adam["nu"]}
    restored = from_state_dict(fresh, tree)
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    assert type(restored.params) is OrderedDict
    assert jax.tree.all(jax.tree.map(np.array_equal, restored, saved))
    assert jax.tree.structure(serialization.from_state_dict(fresh, tree)) == jax.tree.structure(
        saved
    )


def test_what_is_in_hand_goes_back_by_a_definition_alone() -> None:
    adam = legacy_optim.Adam(0.1)
    optimizer = adam.create(PARAMS)
    ill = optimizer.replace(target=jax.tree.map(lambda leaf: leaf * np.nan, PARAMS))
    with pytest.raises(CheckpointError, match="finite numbers"):
        convert_state(ill)  # whose definition it has
    state: Any = convert_state(ill, allow_nan=True, exact=False)
    assert "ScaleByAdamState" in str(state.opt_state)
    mixed = adam.create({"a": jnp.ones(1), "b": jnp.ones(1, jnp.bfloat16)})
    with pytest.raises(UnsupportedSetting, match="in bfloat16"):
        convert_state(mixed, exact=False)


def test_a_part_of_a_checkpoint_goes_there_and_back(tmp_path: Path) -> None:
    definition = legacy_optim.Momentum(0.1)
    actor = definition.create(PARAMS)
    saved = {"actor": actor, "critic": actor.apply_gradient(PARAMS)}
    (tmp_path / "old").write_bytes(serialization.to_bytes(saved))
    state = FullTrainState.from_legacy_checkpoint(
        tmp_path / "old", optimizer_def=definition, part="critic", ema_decay=0.5
    )
    assert (int(state.step), state.ema_decay) == (1, 0.5)
    for force in (False, True):
        state.to_legacy_checkpoint(
            tmp_path / "back", optimizer_def=definition, part="critic", force=force
        )
    back: Any = serialization.msgpack_restore((tmp_path / "back").read_bytes())
    assert jax.tree.all(jax.tree.map(np.array_equal, back["critic"]["target"], state.params))
    with pytest.raises(CheckpointError, match="--force"):
        state.to_legacy_checkpoint(tmp_path / "back", optimizer_def=definition)
