"""Checkpoints restored directly onto a mesh, leaf by leaf."""

import functools
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
from flax.training import checkpoints
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import legacy_optim
from optax_bridge import TrainState, from_legacy, state_shardings
from optax_bridge.checkpoints import CheckpointError, restore_checkpoint
from optax_bridge.checkpoints.devices import quiet_orbax
from optax_bridge.checkpoints.testdata.write_t5x import write_t5x
from optax_bridge.metadata.paths import leaves
from optax_bridge.recorded_test import refused

FILES = Path(__file__).parent / "testdata"


def _sharding(mesh: jax.sharding.Mesh, path: Any, leaf: Any) -> NamedSharding:
    """Rows over one axis of the mesh and columns over the other, where they can be cut."""
    del path
    axes = zip(mesh.axis_names, leaf.shape, strict=False)
    names = [name if dim % mesh.shape[name] == 0 else None for name, dim in axes]
    return NamedSharding(mesh, P(*names))


@pytest.mark.parametrize(
    ("form", "shape"),
    [("msgpack", (2, 1)), ("msgpack", (1, 8)), ("t5x", (4, 2)), ("npz", (8, 1))],
    ids=str,
)
def test_restores_onto_a_mesh(form: str, shape: tuple[int, int], tmp_path: Path) -> None:
    mesh = jax.make_mesh(shape, ("data", "model"), devices=jax.devices()[: shape[0] * shape[1]])
    kernel = jnp.arange(128.0).reshape(16, 8)
    definition, params = legacy_optim.Adam(1e-2), {"dense": {"kernel": kernel, "bias": kernel[0]}}
    optimizer = definition.create(params).apply_gradient(params)
    tree: Any = jax.tree.map(np.asarray, serialization.to_state_dict(optimizer))
    path = tmp_path / {"msgpack": "checkpoint_5", "t5x": "checkpoint_5", "npz": "model.npz"}[form]
    if form == "t5x":
        write_t5x(path, tree)
    elif form == "npz":
        named: Any = {"/".join(p): leaf for p, leaf in leaves({"opt": tree})}
        np.savez(path, **named)
    else:
        path.write_bytes(serialization.msgpack_serialize(tree))
    state: Any = TrainState.from_legacy_checkpoint(
        path, optimizer_def=definition, sharding=functools.partial(_sharding, mesh)
    )
    for moment in (state.params, state.opt_state.mu, state.opt_state.nu):
        kernel = moment["dense"]["kernel"]
        assert kernel.sharding.spec == P("data", "model")
        assert len(kernel.addressable_shards) == shape[0] * shape[1]
        assert kernel.addressable_shards[0].data.shape == (16 // shape[0], 8 // shape[1])
    everywhere = NamedSharding(mesh, P())  # for every leaf
    whole: Any = TrainState.from_legacy_checkpoint(
        path, optimizer_def=definition, sharding=everywhere
    )
    left, right = (jax.tree.leaves((s.params, s.opt_state)) for s in (state, whole))
    for one, other in zip(left, right, strict=True):
        assert other.sharding == everywhere
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    grads = jax.tree.map(lambda p: 0.1 * p, state.params)
    after = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))(state, grads)
    assert after.params["dense"]["kernel"].sharding.is_equivalent_to(kernel.sharding, 2)


def test_shardings_of_a_state(tmp_path: Path) -> None:
    """What `state_shardings` says of a state that is not there yet."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    definition = legacy_optim.Adafactor(0.1, beta1=0.9, min_dim_size_to_factor=2)
    params = {"kernel": jnp.ones((16, 8)), "bias": jnp.arange(8.0)}
    optimizer = definition.create(params).apply_gradient(params)
    (tmp_path / "checkpoint_1").write_bytes(serialization.to_bytes(optimizer))
    shapes = jax.eval_shape(
        lambda: TrainState.create(apply_fn=None, params=params, tx=from_legacy(definition))
    )
    shardings = state_shardings(
        shapes, mesh, lambda path, leaf: P("data", "model") if leaf.ndim == 2 else P()
    )
    state: Any = TrainState.from_legacy_checkpoint(
        tmp_path, optimizer_def=definition, sharding=shardings
    )
    for field in ("params", "opt_state"):
        found, wanted = (jax.tree.leaves(getattr(s, field)) for s in (state, shardings))
        assert [leaf.sharding for leaf in found] == wanted
    with refused(CheckpointError, "state_shardings"):
        TrainState.from_legacy_checkpoint(FILES / "adagrad.msgpack", sharding=shardings)


def test_leaves_are_placed_one_after_another(tmp_path: Path) -> None:
    """While one leaf is placed, of the others of a T5X folder nothing is in memory yet."""
    tree: Any = serialization.msgpack_restore((FILES / "adam.msgpack").read_bytes())
    write_t5x(tmp_path / "checkpoint_4", tree)
    missing = tmp_path / "checkpoint_4" / "target.head.kernel" / "0.0"
    missing.unlink()  # is asked for last: what comes before has been read by then
    placed: list[str] = []

    def sharding(path: Any, leaf: Any) -> Any:
        del leaf
        placed.append(jax.tree_util.keystr(path))
        return jax.sharding.SingleDeviceSharding(jax.devices()[len(placed) % 8])

    with pytest.raises(CheckpointError, match=r"\['head'\]\['kernel'\]"):
        TrainState.from_legacy_checkpoint(
            tmp_path, optimizer_def=legacy_optim.Adam(1e-2), sharding=sharding, allow_nan=True
        )  # else each is read once before, and let go
    assert placed[-1] == "['params']['head']['kernel']" and len(placed) > 8


def test_orbax_commits_no_array_that_the_template_does_not(tmp_path: Path) -> None:
    """A committed key is refused by pmap, and by jit beside arrays on a mesh."""
    everywhere = NamedSharding(jax.make_mesh((2,), ("data",), devices=jax.devices()[:2]), P("data"))
    state = TrainState.create(None, {"w": jnp.ones(4)}, optax.adam(0.1))
    saved = {
        "state": state,
        "rng": jax.random.PRNGKey(3),
        "typed": jax.random.key(0),
        "split": jax.device_put(jnp.ones(4), everywhere),
        "notes": {"a": np.ones(2)},
        "best": 0.5,
    }
    checkpoints.save_checkpoint(tmp_path, saved, 1)
    template: dict[str, Any] = saved | {"notes": None, "best": None}
    restored = restore_checkpoint(tmp_path, template)
    assert restored["best"] == 0.5
    np.testing.assert_array_equal(restored["notes"]["a"], np.ones(2))
    assert restored["split"].sharding == everywhere
    free = jax.tree.leaves((restored["state"], restored["rng"]))
    assert len(free) == 6 and not any(leaf.committed for leaf in free)
    jax.jit(lambda key, x: jax.random.normal(key, x.shape) + x)(restored["rng"], restored["split"])
    without: Any = restore_checkpoint(tmp_path, None)
    assert isinstance(without["rng"], np.ndarray)
    np.testing.assert_array_equal(without["rng"], saved["rng"])


@pytest.mark.parametrize(
    ("level", "within"),
    [("NOTSET", "CRITICAL"), ("WARNING", "CRITICAL"), ("INFO", "INFO"), ("DEBUG", "DEBUG")],
)
def test_orbax_is_quiet_unless_asked_to_speak(
    level: str, within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("absl")
    monkeypatch.setattr(logger, "level", getattr(logging, level))
    with quiet_orbax():
        assert logging.getLevelName(logger.level) == within
    assert logging.getLevelName(logger.level) == level
