"""The joined loops give the bits of the single ones; each program under its own flags of XLA."""

import copy
import os
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization

import legacy_optim
import optax_bridge
from optax_bridge.exact import one_loop

# Prints, for each case of each optimizer, a digest of parameters and state after five steps of
# hostile gradients, and what XLA counts that the compiled step reads and writes.
_PROGRAM = """
import hashlib, sys
import jax, numpy as np
import optax_bridge
from optax_bridge.correspondence import ENTRIES

JOINED, ALL = sys.argv[1] == "joined", sys.argv[2] == "all"

def narrowed(values):
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)  # cut off, so that NaN keeps its bits
    return upper.view(jax.numpy.bfloat16)

def hostile(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * np.exp(rng.uniform(-25, 12, shape))
    values.flat[:6] = 0, 1e-39, -1e-41, 1e30, np.inf if seed == 5 else 1, np.nan if seed == 5 else 1
    values = values.astype(np.float32)
    if seed == 5:  # NaNs of other bits than those that arithmetic makes
        values.view(np.uint32).flat[-3:] = 0x7FA50000, 0xFF810000, 0xFFFF0000
    return jax.numpy.asarray(values if dtype == "float32" else narrowed(values))

def one_step(state, grads):
    # bfloat16 as a model's last operation: its rounding must not be undone.
    if grads["bias"].dtype != np.float32:
        grads = jax.tree.map(lambda g: (1.1 * g.astype(np.float32)).astype(g.dtype), grads)
    return state.apply_gradients(grads=grads)

made = {}
for name in ("adagrad", "adam", "lamb", "momentum", "rmsprop", "sgd"):
    for number, case in enumerate(ENTRIES[name].cases):
        if number and not ALL:
            continue
        tx = optax_bridge.from_legacy(ENTRIES[name].definition(case, case.learning_rate))
        made[f"{name} {number}"] = optax_bridge.one_loop(tx) if JOINED else tx
for name, tx in made.items():
    both = ALL or name in ("adam 0", "momentum 0")  # one of each order
    for dtype in ("float32", "bfloat16") if both else ("float32",):
        # XLA orders the loops of several leaves otherwise than those of one.
        shapes = {"kernel": (48, 64), "bias": (7,)}
        params = {key: hostile(shape, dtype, 0) for key, shape in shapes.items()}
        state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
        step = jax.jit(one_step)
        step = step.lower(state, params).compile()
        for seed in range(1, 6):
            state = step(state, {key: hostile(shape, dtype, seed) for key, shape in shapes.items()})
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves((state.params, tuple(state.opt_state))):
            digest.update(np.asarray(leaf).tobytes())
        moved = step.cost_analysis()["bytes accessed"]
        print(name, dtype, digest.hexdigest(), int(moved), sep=",")
"""


knows_all_bits = pytest.mark.skipif(
    not one_loop.keeps_bits(), reason="this JAX joins other loops: one_loop is the plain step"
)


def printed(*arguments: str) -> dict[tuple[str, str], tuple[str, int]]:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [line.split(",") for line in done.stdout.splitlines()]
    return {(name, dtype): (digest, int(moved)) for name, dtype, digest, moved in rows}


@knows_all_bits
def test_every_case_of_every_optimizer_keeps_its_bits_and_moves_less(
    request: pytest.FixtureRequest,
):
    # By default each optimizer's first case, and bfloat16 for one of each order.
    cases = "all" if request.config.getoption("--equivalence-full") else "few"
    plain, joined = printed("plain", cases), printed("joined", cases)
    assert plain.keys() == joined.keys() and len(plain) >= 8
    other = [key for key in plain if plain[key][0] != joined[key][0]]
    assert not other
    assert joined["adam 0", "float32"][1] < 0.72 * plain["adam 0", "float32"][1]


@knows_all_bits
def test_too_late_it_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    jnp.ones(1)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with pytest.raises(
        RuntimeError, match=r"before the first array is made, or start .*XLA_FLAGS="
    ):
        optax_bridge.one_loop(optax_bridge.adam(1e-3))


def test_what_would_round_differently_is_refused():
    with pytest.raises(
        ValueError, match=r"nothing is known to be gained .* state is AdaBeliefState;"
    ):
        optax_bridge.one_loop(optax_bridge.adabelief(1e-3))
    with pytest.raises(TypeError, match="expected an exact transformation"):
        optax_bridge.one_loop(lambda: None)  # type: ignore[arg-type]


@knows_all_bits
def test_a_rate_per_call_and_the_plain_protocol_go_through(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", one_loop.FLAG)
    tx = optax_bridge.adam(1e-3)
    joined = optax_bridge.one_loop(tx)
    params: Any = {"w": jnp.arange(4.0)}
    state = joined.init(params)
    new: Any
    expected: Any
    new, after = joined.step(params, state, params, learning_rate=0.5)
    expected, expected_after = tx.step(params, tx.init(params), params, learning_rate=0.5)
    np.testing.assert_array_equal(new["w"], expected["w"])
    np.testing.assert_array_equal(after.nu["w"], expected_after.nu["w"])
    update: Any = joined.update(params, state, params)[0]
    plain: Any = tx.update(params, tx.init(params), params)[0]
    np.testing.assert_array_equal(update["w"], plain["w"])


@knows_all_bits
@pytest.mark.parametrize("name", ["Adam", "LAMB"])
def test_checkpoints_with_and_without_it_are_alike(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    monkeypatch.setenv("XLA_FLAGS", one_loop.FLAG)
    definition = getattr(legacy_optim, name)(1e-3, weight_decay=0.1)
    tx: Any = optax_bridge.from_legacy(definition)
    params: Any = {"w": jnp.arange(1.0, 4.0, dtype=jnp.bfloat16)}

    def created(tx: Any) -> Any:
        return optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)

    plain = created(tx).apply_gradients(grads=params)
    empty = created(optax_bridge.one_loop(tx))

    def assert_restored(state: Any) -> None:
        assert type(state.opt_state) is type(empty.opt_state)
        assert state.opt_state.count == 1
        np.testing.assert_array_equal(state.opt_state.mu["w"], plain.opt_state.mu["w"])
        np.testing.assert_array_equal(state.opt_state.nu["w"], plain.opt_state.nu["w"])

    saved = serialization.to_bytes(plain)
    one: Any = serialization.from_bytes(empty, saved)
    assert_restored(one)
    assert serialization.to_bytes(one) == saved
    plain.to_legacy_checkpoint(tmp_path / "old", optimizer_def=definition)
    one.to_legacy_checkpoint(tmp_path / "old_of_one", optimizer_def=definition)
    legacy = (tmp_path / "old").read_bytes()
    assert (tmp_path / "old_of_one").read_bytes() == legacy
    assert_restored(optax_bridge.checkpoints.from_bytes(empty, legacy))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax" / "plain", plain)
        checkpointer.save(tmp_path / "orbax" / "one", one)
        checkpointer.wait_until_finished()
        assert_restored(checkpointer.restore(tmp_path / "orbax" / "plain", empty))
        back = checkpointer.restore(tmp_path / "orbax" / "one", created(tx))
    assert type(back.opt_state) is type(plain.opt_state)
    np.testing.assert_array_equal(back.opt_state.mu["w"], plain.opt_state.mu["w"])
    assert_restored(pickle.loads(pickle.dumps(copy.deepcopy(one).replace(apply_fn=None, tx=None))))
    again = one.replace(opt_state=type(one.opt_state)(*plain.opt_state))
    assert_restored(again)
    assert_restored(jax.device_get(jax.jit(lambda state: state)(again)))


@pytest.mark.parametrize("version", [(0, 9, 2), (0, 11, 1), (0, 12, 0), (1, 0, 0)], ids=str)
def test_on_a_jax_that_nobody_has_seen_to_keep_bits_it_warns_and_is_the_plain_step(
    version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    tx = optax_bridge.adam(1e-3)
    with pytest.warns(RuntimeWarning, match=r"expected 0\.10 to 0\.11\.0, .* the plain step"):
        assert optax_bridge.one_loop(tx) is tx
    assert "XLA_FLAGS" not in os.environ
