"""`optax-bridge inspect`, as a user types it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization

from legacy_optim.older_layout_test import grouped
from optax_bridge.checkpoints import read_checkpoint
from optax_bridge.cli.checkpoints_test import ADAM, AS_ADAM, FILES, bridge

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

def fails():
    raise RuntimeError("no data set here")

def negated():
    return state(tx=optax.lars(0.1, momentum=0.9))
"""


COMMANDS = (
    *("adagrad", "replicated", "replicated --json", "dataclass", "tuple", "pre_linen", "focus"),
    *("params_only", "multi_optimizer", "weight_norm", "odd_names", "values", "state --json"),
    *("no_elements", "bare_array", "list", "hidden", "hidden --json", "layers", "layers --all"),
    *("twenty", "grouped", "run", "damaged", "empty", "no_such", "other_step --json"),
    *("adam --like new.py:state", "lars --like new.py:negated --json"),
    *("adam --like new.py:larger", "lars --like new.py:negated"),
    *(
        "adam --like new.py:fails",
        "adam --names --like new.py:state",
        "no_such --like new.py:state",
    ),
)


def test_inspect_prints_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in FILES.glob("*.msgpack"):
        (tmp_path / file.stem).write_bytes(file.read_bytes())
    adam = Path("adam").read_bytes()
    trees: dict[str, Any] = {
        "hidden": {"n": 1, "payload": adam},
        "layers": {f"layer{i:03}": i for i in range(25)},
        "twenty": {f"layer{i:03}": i for i in range(20)},
        "other_step": {"step": np.arange(3), "params": {"w": np.ones(3)}, "opt_state": {}},
        "grouped": grouped()[1],
        "state": {"step": 70, "params": {"w": 1.0}, "opt_state": {}, "text": "x" * 100},
    }
    for name, tree in trees.items():
        Path(name).write_bytes(serialization.msgpack_serialize(tree))
    Path("damaged").write_bytes(adam[:-9])
    Path("run").mkdir()
    for step in (9, 10):
        Path(f"run/checkpoint_{step}").write_bytes(adam)
    Path("empty").mkdir()
    Path("new.py").write_text(STATE)
    pages = {}
    for command in COMMANDS:
        done = bridge("inspect", *command.split())
        text = f"{done.stdout}{done.stderr}exit code {done.exit_code}"
        lines = text.replace(f"{tmp_path}/", "").splitlines()
        pages[command] = "\n".join(line.rstrip() for line in lines)
    recorded("inspect.txt", pages)


def test_what_convert_wrote_is_inspected_and_known_to_be_new(tmp_path: Path) -> None:
    assert bridge("convert", ADAM, tmp_path / "new", *AS_ADAM).exit_code == 0
    done = bridge("inspect", tmp_path / "new")
    assert done.exit_code == 0, done.stderr
    assert "Orbax, a TrainState" in done.stdout and "\nstep 4\n" in done.stdout
    assert "float32[4, 3] 48 bytes" in done.stdout
    assert json.loads(bridge("inspect", tmp_path / "new", "--json").stdout)["step"] == 4
    again = bridge("convert", tmp_path / "new", tmp_path / "newer", *AS_ADAM)
    assert again.exit_code == 1 and "--to legacy" in again.stderr


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
