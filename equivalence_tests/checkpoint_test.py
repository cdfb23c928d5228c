"""`check --checkpoint`: old checkpoints, restored both ways, go on alike; what is lost is found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import serialization

import legacy_optim
from equivalence_tests.checkpoint import Resumed, _closing, check_checkpoint, check_resume
from equivalence_tests.sides.adapt import EquivalenceError
from optax_bridge.correspondence import Verdict

OLD = """
import jax.numpy as jnp
from flax import optim, struct

@struct.dataclass
class State:
    optimizer: optim.Optimizer
    model_state: dict
    epoch: int

def make_state():
    params = {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}
    optimizer = optim.Adam(learning_rate=0.01, weight_decay=0.1).create(params)
    return State(optimizer, {"mean": jnp.zeros(2)}, 0)
"""

NEW = """
from typing import Any

import jax.numpy as jnp
import optax
import optax_bridge
from flax import struct

@struct.dataclass
class State:
    optimizer: optax_bridge.TrainState
    model_state: Any
    epoch: int

def make_state():
    params = {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}
    tx = TX
    optimizer = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
    return State(optimizer, {"mean": jnp.zeros(2)}, 0)
"""

EXACT = "optax_bridge.adam(0.01, weight_decay=0.1)"
STOCK = "optax.adamw(0.01, weight_decay=0.1)"
WRONG = "optax.adamw(0.01, weight_decay=0.2)"
ADAM = "Adam(learning_rate=0.01, weight_decay=0.1)"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What the old program wrote after five steps."""
    params = {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2, np.float32)}
    optimizer = legacy_optim.Adam(learning_rate=0.01, weight_decay=0.1).create(params)
    rng = np.random.default_rng(0)
    for _ in range(5):
        grads = jax.tree.map(lambda p: rng.standard_normal(p.shape).astype(p.dtype), params)
        optimizer = optimizer.apply_gradient(grads)
    state = {"optimizer": optimizer, "model_state": {"mean": np.ones(2, np.float32)}, "epoch": 7}
    (tmp_path / "old.py").write_text(OLD)
    file = tmp_path / "checkpoint_5"
    file.write_bytes(serialization.to_bytes(state))
    return file


def program(folder: Path, tx: str) -> str:
    (folder / "new.py").write_text(NEW.replace("TX", tx))
    return f"{folder / 'new.py'}:make_state"


@pytest.mark.parametrize("by", ["old program", "expression"])
@pytest.mark.parametrize(
    ("tx", "verdict"),
    [(EXACT, Verdict.IDENTICAL), (STOCK, Verdict.ROUNDING), (WRONG, Verdict.DIFFERENT)],
)
def test_a_migrated_program_goes_on(checkpoint: Path, tx: str, verdict: Verdict, by: str):
    source: dict[str, Any] = {"old": f"{checkpoint.parent / 'old.py'}:make_state"}
    if by == "expression":
        source = {"optimizers": [ADAM]}
    resumed = check_resume(checkpoint, program(checkpoint.parent, tx), **source)
    assert resumed.verdict is verdict, resumed
    assert resumed.steps == {"optimizer": 5}
    assert (resumed.others, resumed.unequal) == (2, [])
    assert resumed.reports["optimizer"].state_compared


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected either --old train.py:make_state"),
        ({"optimizers": ["Adan(1)"]}, "is no call of a legacy optimizer"),
        (
            {"optimizers": ["other=Adam(1.0)", "more=Adam(1.0)"]},
            "expected one for each of optimizer",
        ),
        ({"old": "nowhere.py:make"}, "there is no file nowhere.py"),
        ({"optimizers": ["Momentum(0.1)"]}, "restoring raised"),
        ({"optimizers": ["Adam()"]}, "no learning rate"),
    ],
)
def test_misuse_says_why(checkpoint: Path, arguments: dict[str, Any], message: str):
    with pytest.raises(EquivalenceError, match=message.replace("(", r"\(").replace(".", r"\.")):
        check_resume(checkpoint, program(checkpoint.parent, EXACT), **arguments)


INNER = {
    "state": ("optax.sgd(0.1, momentum=0.9).init(params)", "a tuple of TraceState, EmptyState"),
    "parameters": ("params", "a dict without one, with kernel, bias"),
    "state of one": ("optax.scale_by_adam().init(params)", "found ScaleByAdamState, the state of"),
    "transformation": ("optax.sgd(0.1)", "found GradientTransformationExtraArgs"),
}


@pytest.mark.parametrize("case", INNER)
def test_a_part_of_a_state_says_what_is_asked_for(case: str, checkpoint: Path):
    made, found = INNER[case]
    file = checkpoint.parent / "inner.py"
    file.write_text(f"import optax\nparams = {{'kernel': 1.0, 'bias': 1.0}}\nmade = {made}\n")
    with pytest.raises(EquivalenceError, match=f"{found}.*what TrainState.create makes"):
        check_resume(checkpoint, f"{file}:made", optimizers=[ADAM])


def standalone(folder: Path, tx: str) -> str:
    """A program as `migrate --standalone` writes it, with Flax's own TrainState."""
    own = NEW.replace("optax_bridge.TrainState", "TrainState").replace(
        "import optax_bridge\n", "from flax.training.train_state import TrainState\n"
    )
    file = folder / "standalone.py"
    file.write_text(own.replace("TX", tx))
    return f"{file}:make_state"


INJECTED = (
    "optax.inject_hyperparams(lambda learning_rate: "
    "optax.adamw(learning_rate, weight_decay=0.1), hyperparam_dtype=jnp.float32)(learning_rate=0.5)"
)


@pytest.mark.parametrize(
    ("tx", "rate"), [(STOCK, None), (INJECTED, 0.01)], ids=["stock", "injected"]
)
def test_a_program_without_this_package_is_asked_as_well(
    checkpoint: Path, tx: str, rate: float | None
):
    new = standalone(checkpoint.parent, tx)
    resumed = check_resume(checkpoint, new, optimizers=[ADAM], learning_rate=rate, steps=6)
    assert resumed.verdict is Verdict.ROUNDING, resumed


@pytest.mark.parametrize(("rate", "by_a_constant"), [(0.01, True), (0.0101, False)], ids=str)
def test_a_constant_in_float32_is_told_from_what_is_lost(
    checkpoint: Path, rate: float, by_a_constant: bool
):
    tx = f"optax.adamw({rate} * (1 + 1e-7), weight_decay=0.1)"
    new = standalone(checkpoint.parent, tx)
    resumed = check_resume(checkpoint, new, optimizers=[ADAM], steps=6)
    assert resumed.verdict is Verdict.DIFFERENT
    assert resumed.differs_by_a_constant is by_a_constant
    assert ("goes on with all that was saved" in _closing(resumed)) is by_a_constant


def test_a_rate_that_a_program_without_this_package_cannot_take_is_said(checkpoint: Path):
    new = standalone(checkpoint.parent, STOCK)
    with pytest.raises(EquivalenceError, match="--learning-rate: expected a state that takes"):
        check_resume(checkpoint, new, optimizers=[ADAM], learning_rate=0.1)


def test_an_old_definition_may_use_what_jax_has_lost(checkpoint: Path):
    old = checkpoint.parent / "lost.py"
    lost = OLD.replace("optim.Adam(", "Own(").replace(
        "@struct.dataclass",
        "import jax\nclass Own(optim.Adam):\n    def apply_gradient(self, h, p, s, g):\n"
        "        return super().apply_gradient(h, p, s, jax.tree_map(lambda x: x, g))\n\n"
        "@struct.dataclass",
    )
    old.write_text(lost)
    new = program(checkpoint.parent, EXACT)
    resumed = check_resume(checkpoint, new, old=f"{old}:make_state", steps=2)
    assert resumed.verdict is Verdict.IDENTICAL, resumed


def test_what_was_saved_replicated_is_compared_once(checkpoint: Path):
    saved = serialization.msgpack_restore(checkpoint.read_bytes())
    twice = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), saved)
    checkpoint.write_bytes(serialization.msgpack_serialize(twice))
    new = program(checkpoint.parent, EXACT)
    resumed = check_resume(checkpoint, new, optimizers=[ADAM])
    assert resumed.reports["optimizer"].verdict is Verdict.IDENTICAL


def test_a_rate_per_call(checkpoint: Path):
    new = program(checkpoint.parent, "optax_bridge.adam(weight_decay=0.1)")
    resumed = check_resume(
        checkpoint, new, optimizers=["Adam(weight_decay=0.1)"], learning_rate=0.01
    )
    assert resumed.verdict is Verdict.IDENTICAL


def test_the_command_prints_the_verdict_and_writes_json(checkpoint: Path):
    folder = checkpoint.parent
    arguments = ["--checkpoint", checkpoint.name, "--program", "new.py:make_state"]
    command = [sys.executable, "-m", "optax_bridge", "check", *arguments, "--optimizer", ADAM]
    program(folder, EXACT)
    done = subprocess.run(
        [*command, "--json", "found.json"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "identical: the migrated program goes on as the old one would have, to the bit"
    )
    assert json.loads((folder / "found.json").read_text())["verdict"] == "identical"
    program(folder, WRONG)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "does NOT go on" in done.stdout


@pytest.mark.parametrize("case", ["program", "checkpoint", "shape"])
def test_the_command_says_what_is_wrong_and_exits_two(
    case: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
):
    new: str | None = program(checkpoint.parent, EXACT)
    file, said = checkpoint, "--checkpoint needs --program"
    if case == "program":
        new = None
    elif case == "checkpoint":
        file, said = checkpoint.with_name("none"), "there is no such file or folder"
    else:
        (checkpoint.parent / "new.py").write_text(
            NEW.replace("TX", EXACT).replace("(3, 2)", "(3, 4)")
        )
        said = "new.py:make_state: "
    to = checkpoint.parent / "found.json"
    assert check_checkpoint(file, new, None, [ADAM], 3, "normal", None, json_file=to) == 2
    printed = capsys.readouterr()
    assert said in printed.err and not printed.out
    found = json.loads(to.read_text())
    assert found["verdict"] == "error" and said in found["error"]


def test_several_optimizers_are_compared_by_their_names(checkpoint: Path):
    """And the old program must have them at the same paths."""
    saved = serialization.msgpack_restore(checkpoint.read_bytes())["optimizer"]
    both = {"policy": saved, "critic": saved}
    checkpoint.write_bytes(serialization.msgpack_serialize(both))
    new = NEW.replace("TX", EXACT).replace(
        'return State(optimizer, {"mean": jnp.zeros(2)}, 0)',
        "return {'policy': optimizer, 'critic': optimizer}",
    )
    (checkpoint.parent / "new.py").write_text(new)
    made, expressions = f"{checkpoint.parent / 'new.py'}:make_state", [f"{n}={ADAM}" for n in both]
    resumed = check_resume(checkpoint, made, optimizers=expressions, steps=4)
    assert (resumed.verdict, resumed.steps) == (Verdict.IDENTICAL, {"critic": 5, "policy": 5})
    assert "critic, restored at step 5:" in str(resumed)
    old = OLD.replace(
        'return State(optimizer, {"mean": jnp.zeros(2)}, 0)',
        "return {'policy': optimizer, 'critic': 0}",
    )
    (checkpoint.parent / "old.py").write_text(old)
    with pytest.raises(
        EquivalenceError, match=r"expected optimizers at critic, policy.*found policy"
    ):
        check_resume(checkpoint, made, old=f"{checkpoint.parent / 'old.py'}:make_state")


def test_what_is_restored_differently_is_different():
    found = Resumed({}, {}, others=2, unequal=["mean", "epoch"])
    assert found.verdict is Verdict.DIFFERENT
    assert str(found).splitlines() == [
        "2 leaves beside the optimizers are the same both ways",
        "restored differently: mean, epoch",
    ]
    assert json.loads(found.to_json())["others_unequal"] == ["mean", "epoch"]


def test_the_containers_of_the_parameters_do_not_matter(checkpoint: Path):
    """Modules made FrozenDicts of parameters once, and make dicts now."""
    old = checkpoint.parent / "old.py"
    frozen = OLD.replace(
        "import jax.numpy as jnp\n", "import jax.numpy as jnp\nfrom flax.core import freeze\n"
    )
    old.write_text(frozen.replace(".create(params)", ".create(freeze(params))"))
    resumed = check_resume(checkpoint, program(checkpoint.parent, EXACT), old=f"{old}:make_state")
    assert resumed.verdict is Verdict.IDENTICAL, resumed
