"""`optax-bridge inspect`, as a user types it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization

from optax_bridge.checkpoints import read_checkpoint
from optax_bridge.cli.checkpoints_test import ADAM, AS_ADAM, FILES, bridge
from optax_bridge.metadata.paths import leaves


@pytest.mark.parametrize("name", ["chunked", "odd_names", "tuple"])
def test_inspect_lists_every_leaf(name: str) -> None:
    path = FILES / f"{name}.msgpack"
    done = bridge("inspect", path)
    assert done.exit_code == 0 and done.stderr == ""
    assert "Flax msgpack" in done.stdout
    for names, leaf in leaves(read_checkpoint(path).tree):
        if hasattr(leaf, "nbytes"):
            assert (
                f"{names[-1]} {leaf.dtype}{list(leaf.shape)} {leaf.nbytes:,} bytes" in done.stdout
            )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("adam", ["AdaBelief or Adam or LAMB", "step 4"]),
        ("momentum", ["LARS or Momentum"]),
        ("adagrad", ["Adagrad"]),
        (
            "multi_optimizer",
            ["MultiOptimizer of AdaBelief or Adam", "some parameters have no state"],
        ),
        ("weight_norm", ["WeightNorm"]),
        ("replicated", ["replicated 2 times"]),
        ("dataclass", ["optimizer generator", "optimizer discriminator"]),
        ("tuple", ["optimizer 0"]),
        ("pre_linen", ["before Linen"]),
        ("params_only", ["no optimizer in it"]),
    ],
)
def test_inspect_says_what_it_is(name: str, said: list[str]) -> None:
    done = bridge("inspect", FILES / f"{name}.msgpack")
    for text in said:
        assert text in done.stdout


def test_inspect_says_where_an_optimizer_may_be_hidden(tmp_path: Path) -> None:
    inner = (FILES / "adam.msgpack").read_bytes()
    (tmp_path / "outer").write_bytes(serialization.msgpack_serialize({"n": 1, "payload": inner}))
    done = bridge("inspect", tmp_path / "outer")
    assert "['payload'] is bytes, in which one may be" in done.stdout
    assert f"payload bytes, {len(inner):,} of them" in done.stdout


def test_inspect_in_json() -> None:
    done = bridge("inspect", FILES / "dataclass.msgpack", "--json")
    found = json.loads(done.stdout)
    assert [part["part"] for part in found["optimizers"]] == ["generator", "discriminator"]
    assert found["optimizers"][0]["candidates"] == ["Adafactor"]
    replicated = json.loads(bridge("inspect", FILES / "replicated.msgpack", "--json").stdout)
    assert replicated["optimizers"][0]["copies"] == 2
    kernel = next(
        leaf for leaf in found["leaves"]
        if leaf["path"] == ["generator", "target", "dense", "kernel"]
    )  # fmt: skip
    assert kernel == {"path": kernel["path"], "dtype": "float32", "shape": [4, 3], "bytes": 48}


def test_what_convert_wrote_is_inspected_and_known_to_be_new(tmp_path: Path) -> None:
    assert bridge("convert", ADAM, tmp_path / "new", *AS_ADAM).exit_code == 0
    done = bridge("inspect", tmp_path / "new")
    assert done.exit_code == 0, done.stderr
    assert "Orbax, a TrainState" in done.stdout and "\nstep 4\n" in done.stdout
    assert "float32[4, 3] 48 bytes" in done.stdout
    assert json.loads(bridge("inspect", tmp_path / "new", "--json").stdout)["step"] == 4
    again = bridge("convert", tmp_path / "new", tmp_path / "newer", *AS_ADAM)
    assert again.exit_code == 1 and "--to legacy" in again.stderr


def test_inspect_of_damage_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_1").write_bytes(Path(ADAM).read_bytes()[:-9])
    done = bridge("inspect", tmp_path)
    assert done.exit_code == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "expected" in done.stderr


@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=["text", "json"])
def test_inspect_of_a_state_that_is_no_optimizers_lists_it_and_says_so(
    json_too: list[str], tmp_path: Path
) -> None:
    tree: Any = read_checkpoint(ADAM).tree
    del tree["state"]["param_states"]["scale"]
    (tmp_path / "checkpoint_1").write_bytes(serialization.msgpack_serialize(tree))
    done = bridge("inspect", tmp_path, *json_too)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1 and "['param_states']" in done.stderr
    if json_too:
        found = json.loads(done.stdout)
        assert found["optimizers"] == [] and len(found["leaves"]) == 11
    else:
        assert "grad_ema float32[4, 3] 48 bytes" in done.stdout


@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=["text", "json"])
def test_inspect_of_a_step_that_cannot_be_read_lists_the_rest(
    json_too: list[str], tmp_path: Path
) -> None:
    tree = {"step": np.arange(3), "params": {"w": np.ones(3)}, "opt_state": {}}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        save: Any = ocp.args.PyTreeSave
        checkpointer.save(tmp_path / "x", args=save(tree | {"step": np.asarray(3)}))
    (tmp_path / "x" / "step" / "0").unlink()
    done = bridge("inspect", tmp_path / "x", *json_too)
    assert done.exit_code == 1 and "['step']" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and "float64" in done.stdout
    (tmp_path / "y").write_bytes(serialization.msgpack_serialize(tree))
    done = bridge("inspect", tmp_path / "y", *json_too)
    assert done.exit_code == 0 and "int64[3]" in done.stdout


def test_inspect_folds_long_levels_and_says_how_many_more(tmp_path: Path) -> None:
    tree = {f"layer{i:03}": {"w": i} for i in range(700)}
    (tmp_path / "x").write_bytes(serialization.msgpack_serialize(tree))
    done = bridge("inspect", tmp_path / "x")
    assert done.exit_code == 0
    assert "layer019" in done.stdout and "layer020" not in done.stdout
    assert "and 680 more: --all shows them" in done.stdout.splitlines()[-1]
    every = bridge("inspect", tmp_path / "x", "--all").stdout
    assert "layer699" in every and "more" not in every


STATE = """
import jax.numpy as jnp, optax
from optax_bridge import TrainState

def state(scale=3, tx=optax.adam(0.1)):
    params = {
        "dense": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)},
        "head": {"kernel": jnp.ones((3, 5))}, "scale": jnp.ones(scale),
    }
    return TrainState.create(apply_fn=None, params=params, tx=tx)

def larger():
    return state(4)

def negated():
    return state(tx=optax.lars(0.1, momentum=0.9))
"""


def test_inspect_prints_where_each_leaf_goes_and_what_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(STATE)
    done = bridge("inspect", ADAM, "--like", f"{tmp_path}/new.py:state")
    assert done.exit_code == 0, done.stderr
    assert "['target']['scale'] -> ['params']['scale']" in done.stdout.splitlines()
    assert "['state']['step'] -> ['opt_state']['0']['count']" in done.stdout.splitlines()
    facts = json.loads(
        bridge("inspect", ADAM, "--like", f"{tmp_path}/new.py:state", "--json").stdout
    )
    assert len(facts["moves"]) == len(done.stdout.splitlines())
    done = bridge("inspect", ADAM, "--like", f"{tmp_path}/new.py:larger")
    assert done.exit_code == 1
    assert "['target']['scale']: expected float32[4], found float32[3]" in done.stderr
    done = bridge("inspect", FILES / "lars.msgpack", "--like", f"{tmp_path}/new.py:negated")
    assert done.exit_code == 0 and "['trace']['scale'] (negated)" in done.stdout
