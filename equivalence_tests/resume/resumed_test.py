"""Resuming: old checkpoints, restored both ways, go on alike; what is lost is found."""

import functools
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
from flax.training import checkpoints as flax_checkpoints

import legacy_optim
from equivalence_tests.pair.equivalence import check_equivalence
from equivalence_tests.resume.restored import each_pair, old_checkpoint, restored_by_flax
from equivalence_tests.resume.resumed import Resumed, _compare_others, _left_over, resume
from equivalence_tests.sides.adapt import EquivalenceError
from optax_bridge.checkpoints import LeftOverWarning
from optax_bridge.cli.programs import load_object
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
ON_OPTAX = "optax.adamw(0.01, weight_decay=0.1)"
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


def test_a_migrated_program_goes_on(checkpoint: Path):
    old = f"{checkpoint.parent / 'old.py'}:make_state"
    resumed = resume(checkpoint, program(checkpoint.parent, EXACT), old=old, steps=6)
    assert resumed.verdict is Verdict.IDENTICAL, resumed
    assert resumed.steps == {"optimizer": 5}
    assert (resumed.others, resumed.unequal) == (2, [])
    assert resumed.reports["optimizer"].state_compared


INNER = {
    "state": (
        "optax.sgd(0.1, momentum=0.9).init(params)",
        "found tuple with TraceState, EmptyState",
    ),
    "parameters": ("params", "found dict with kernel, bias"),
    "state of one": ("optax.scale_by_adam().init(params)", "found ScaleByAdamState"),
    "transformation": ("optax.sgd(0.1)", "found GradientTransformationExtraArgs"),
}


@pytest.mark.parametrize("case", INNER)
def test_a_part_of_a_state_says_what_is_asked_for(case: str, checkpoint: Path):
    made, found = INNER[case]
    file = checkpoint.parent / "inner.py"
    file.write_text(f"import optax\nparams = {{'kernel': 1.0, 'bias': 1.0}}\nmade = {made}\n")
    with pytest.raises(EquivalenceError, match=f"{found}.*by TrainState.create"):
        resume(checkpoint, f"{file}:made", optimizers=[ADAM])


def on_optax(folder: Path, tx: str) -> str:
    """A program as `migrate --recipe optax` writes it, with Flax's own TrainState."""
    own = NEW.replace("optax_bridge.TrainState", "TrainState").replace(
        "import optax_bridge\n", "from flax.training.train_state import TrainState\n"
    )
    file = folder / "on_optax.py"
    file.write_text(own.replace("TX", tx))
    return f"{file}:make_state"


INJECTED = (
    "optax.inject_hyperparams(lambda learning_rate: "
    "optax.adamw(learning_rate, weight_decay=0.1), hyperparam_dtype=jnp.float32)(learning_rate=0.5)"
)


@pytest.mark.parametrize(
    ("tx", "rate"), [(ON_OPTAX, None), (INJECTED, 0.01)], ids=["optax", "injected"]
)
def test_a_program_without_this_package_is_asked_as_well(
    checkpoint: Path, tx: str, rate: float | None
):
    new = on_optax(checkpoint.parent, tx)
    resumed = resume(checkpoint, new, optimizers=[ADAM], learning_rate=rate, steps=6)
    assert resumed.verdict is Verdict.ROUNDING, resumed


def test_a_rate_that_a_program_without_this_package_cannot_take_is_said(checkpoint: Path):
    new = on_optax(checkpoint.parent, ON_OPTAX)
    with pytest.raises(EquivalenceError, match="--learning-rate: expected a state that takes"):
        resume(checkpoint, new, optimizers=[ADAM], learning_rate=0.1)


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
    resumed = resume(checkpoint, new, old=f"{old}:make_state", steps=2)
    assert resumed.verdict is Verdict.IDENTICAL, resumed


def test_what_was_saved_replicated_is_compared_once(checkpoint: Path):
    saved = serialization.msgpack_restore(checkpoint.read_bytes())
    twice = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), saved)
    checkpoint.write_bytes(serialization.msgpack_serialize(twice))
    new = program(checkpoint.parent, EXACT)
    resumed = resume(checkpoint, new, optimizers=[ADAM], steps=2)
    assert resumed.verdict is Verdict.IDENTICAL, resumed
    assert (resumed.others, resumed.unequal) == (2, [])


POPULATION = """
import jax, jax.numpy as jnp
import IMPORT

def make_state():
    create = lambda w: CREATE
    return jax.vmap(create)(jnp.zeros((2, 3)))
"""


def test_each_member_of_a_population_is_compared(tmp_path: Path):
    """`jax.vmap` gives as many steps as there are members, as copies for devices have."""
    definition = legacy_optim.Momentum(0.1)
    old = jax.vmap(definition.create)({"w": np.arange(6.0).reshape(2, 3)})
    old = jax.vmap(lambda member: member.apply_gradient(member.target))(old)
    (tmp_path / "checkpoint_1").write_bytes(serialization.to_bytes(old))
    creates = {
        "optax_bridge": "optax_bridge.TrainState.create("
        "None, {'w': w}, optax_bridge.momentum(0.1))",
        "legacy_optim": "legacy_optim.Momentum(0.1).create({'w': w})",
    }
    for name, create in creates.items():
        text = POPULATION.replace("IMPORT", name).replace("CREATE", create)
        (tmp_path / f"with_{name}.py").write_text(text)
    sides = [f"{tmp_path / f'with_{name}.py'}:make_state" for name in creates]
    resumed = resume(tmp_path / "checkpoint_1", sides[0], old=sides[1], steps=2)
    assert list(resumed.reports) == ["[0]", "[1]"]
    assert resumed.verdict is Verdict.IDENTICAL, resumed
    # Members that are alike on one side alone are no copies for devices.
    alike, state = jax.tree.map(lambda leaf: leaf[jnp.array([0, 0])], old), load_object(sides[0])()
    state = state.replace(params={"w": old.target["w"]})
    assert [path for path, *_ in each_pair({"": alike}, {"": state}, "")] == ["[0]", "[1]"]


def test_replicated_leaves_are_equal_only_where_every_copy_is():
    one, other = np.asarray([1.0, 2.0]), np.asarray([[1.0, 2.0], [1.0, 3.0]])
    compare = functools.partial(_compare_others, {"x": other}, {"x": one})
    assert compare((2, None)).unequal == compare((None, None)).unequal == ["x"]
    assert _compare_others({"x": np.stack([one, one])}, {"x": one}, (2, None)).unequal == []
    assert _compare_others({"x": one}, {"x": np.stack([one, one])}, (None, 2)).unequal == []
    assert _compare_others({"x": one * np.nan}, {"x": one * np.nan}, (None, None)).unequal == []


NOWHERE = {
    "an empty folder": ([], "found an empty folder"),
    "another prefix": ([f"model_{n}" for n in range(7)], "found it holds .*, model_4 and 2 more"),
    "one folder too high": (["run1/checkpoint_72"], "found it holds run1"),
}


@pytest.mark.parametrize("case", NOWHERE)
def test_a_folder_without_a_checkpoint_is_no_verdict(case: str, checkpoint: Path):
    """Restoring returns the template there, on both sides, and the two are equal."""
    files, found = NOWHERE[case]
    folder = checkpoint.parent / "up"
    folder.mkdir()
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(checkpoint.read_bytes())
    new = program(checkpoint.parent, EXACT)
    with pytest.raises(EquivalenceError, match=f"no checkpoint found in .*{found}.*inspect PATH"):
        resume(folder, new, optimizers=[ADAM])


def as_t5x(checkpoint: Path) -> Path:
    """The same optimizer as T5X stored it: a folder with an index."""
    optimizer = serialization.msgpack_restore(checkpoint.read_bytes())["optimizer"]
    folder = checkpoint.parent / "t5x" / "checkpoint_5"
    folder.mkdir(parents=True)
    tree = {"version": 3, "optimizer": optimizer}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    return folder


@pytest.mark.parametrize("named", ["checkpoint", "folder of it", "file of Flax"])
def test_what_flax_does_not_read_is_read_for_the_old_side_as_well(checkpoint: Path, named: str):
    folder = as_t5x(checkpoint)
    program(checkpoint.parent, EXACT)
    alone = checkpoint.parent / "new.py"
    alone.write_text(
        alone.read_text().replace('State(optimizer, {"mean": jnp.zeros(2)}, 0)', "optimizer")
    )
    file = folder if named == "checkpoint" else folder.parent
    if named == "file of Flax":
        optimizer = serialization.msgpack_restore(checkpoint.read_bytes())["optimizer"]
        checkpoint.write_bytes(serialization.msgpack_serialize({"optimizer": optimizer}))
        file = checkpoint
    resumed = resume(file, f"{alone}:make_state", optimizers=[ADAM], steps=2)
    assert resumed.verdict is Verdict.IDENTICAL, resumed
    assert resumed.steps == {"": 5}


def test_what_the_migrated_program_wrote_is_not_compared(checkpoint: Path):
    new = program(checkpoint.parent, EXACT)
    state = load_object(new, make=True)
    for step, save in ((6, _save_orbax), (7, _save_msgpack), (8, _save_params)):
        save(str(checkpoint.parent), state, step)
        with pytest.raises(EquivalenceError, match=f"checkpoint_{step}.*of the migrated program"):
            resume(checkpoint.parent, new, optimizers=[ADAM])
    assert resume(checkpoint, new, optimizers=[ADAM], steps=1).steps == {"optimizer": 5}


def _save_orbax(folder: str, state: Any, step: int) -> None:
    flax_checkpoints.save_checkpoint(folder, state, step, keep=9)


def _save_params(folder: str, state: Any, step: int) -> None:
    _save_orbax(folder, {"params": state.optimizer.params}, step)


def _save_msgpack(folder: str, state: Any, step: int) -> None:
    (Path(folder) / f"checkpoint_{step}").write_bytes(serialization.to_bytes(state))


def lacking(folder: Path, by: str) -> str:
    """A migrated program that does not restore all that the old one saved."""
    text = NEW.replace("TX", EXACT).replace("    model_state: Any\n", "")
    made = "State(optimizer, 0)" if by == "old program" else "optimizer"
    (folder / "new.py").write_text(
        text.replace('State(optimizer, {"mean": jnp.zeros(2)}, 0)', made)
    )
    return f"{folder / 'new.py'}:make_state"


@pytest.mark.parametrize("by", ["old program", "the state alone"])
def test_what_the_migrated_program_drops_is_said(by: str, checkpoint: Path):
    """And the verdict is not identical, though the optimizers are."""
    old = f"{checkpoint.parent / 'old.py'}:make_state"
    resumed = resume(checkpoint, lacking(checkpoint.parent, by), old=old, steps=2)
    assert "only in the checkpoint: " in str(resumed) and "does NOT continue" in resumed.closing
    assert "First fix" in resumed.closing
    content = resumed.as_dict()
    assert content["verdict"] == "different"
    left = [] if by == "old program" else ["epoch"]
    assert content["others_only_in_checkpoint"] == [*left, "model_state/mean"]
    assert next(iter(content["optimizers"].values()))["verdict"] == "identical"


# An old program that restores something else than what was saved, here twice the parameters, or
# twice the moments of an optimizer whose parameters stand still.
RESTORING = """

from flax import serialization
import jax

def restored(state, saved):
    optimizer = serialization.from_state_dict(state.optimizer, saved["optimizer"])
    twice = lambda tree: jax.tree_util.tree_map(lambda leaf: 2 * leaf, tree)
    return state.replace(optimizer=optimizer.replace(CHANGE), epoch=saved["epoch"],
                         model_state=saved["model_state"])

serialization.register_serialization_state(
    State, lambda state: {"optimizer": serialization.to_state_dict(state.optimizer)}, restored,
    override=True)
"""
CHANGES = {
    "parameters": "target=twice(optimizer.target)",
    "state": "state=optimizer.state.replace(param_states=twice(optimizer.state.param_states))",
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_is_restored_is_compared_and_not_its_steps_alone(case: str, tmp_path: Path):
    still = "Momentum(learning_rate=0.0)"
    params = {"kernel": np.ones((3, 2), np.float32), "bias": np.ones(2, np.float32)}
    optimizer = legacy_optim.Momentum(0.0).create(params).apply_gradient(params)
    state = {"optimizer": optimizer, "model_state": {"mean": np.ones(2, np.float32)}, "epoch": 7}
    (tmp_path / "checkpoint_1").write_bytes(serialization.to_bytes(state))
    old = OLD.replace("Adam(learning_rate=0.01, weight_decay=0.1)", still)
    (tmp_path / "old.py").write_text(old + RESTORING.replace("CHANGE", CHANGES[case]))
    resumed = resume(
        tmp_path / "checkpoint_1",
        program(tmp_path, "optax_bridge.momentum(0.0)"),
        old=f"{tmp_path / 'old.py'}:make_state",
        steps=2,
    )
    report = resumed.reports["optimizer"]
    assert resumed.unequal == (["optimizer/params"] if case == "parameters" else [])
    assert report.state_compared and report.parameters is not None and report.parameters.identical
    assert (report.verdict is Verdict.DIFFERENT) is (case == "state"), report
    assert resumed.verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("given", ["old program", "expression"])
def test_what_the_old_program_does_not_restore_either_is_no_loss(checkpoint: Path, given: str):
    """Of the expression alone nobody knows that: it counts as lost."""
    folder = checkpoint.parent
    new, old = NEW.replace("TX", EXACT), OLD
    for name, text in (("new.py", new), ("old.py", old)):
        alone = text.replace('State(optimizer, {"mean": jnp.zeros(2)}, 0)', "optimizer")
        (folder / name).write_text(alone)
    source: dict[str, Any] = {"old": f"{folder / 'old.py'}:make_state"}
    if given == "expression":
        source = {"optimizers": [ADAM]}
    resumed = resume(checkpoint, f"{folder / 'new.py'}:make_state", **source, steps=2)
    names = ["epoch", "model_state/mean"]
    if given == "expression":
        assert (resumed.verdict, resumed.dropped) == (Verdict.DIFFERENT, names)
    else:
        assert (resumed.verdict, resumed.neither) == (Verdict.IDENTICAL, names)
        assert "restored by neither program: epoch, model_state/mean" in str(resumed)


def test_what_only_the_migrated_program_has_is_said():
    resumed = _compare_others({"a": 1}, {"a": 1, "b": 2, "c": {"d": [3, 4]}}, (None, None))
    assert resumed.verdict is Verdict.DIFFERENT
    assert "only in the migrated program: b, c/d (2 leaves); the old one" in str(resumed)


def test_warnings_of_the_program_are_given_on_while_it_restores():
    with pytest.warns(RuntimeWarning, match="its own"), _left_over() as paths:
        warnings.warn("its own", RuntimeWarning, stacklevel=1)
        warnings.warn(LeftOverWarning("left", [("a", "b")]), stacklevel=1)
    assert paths == ["a/b"]


def test_a_rate_per_call(checkpoint: Path):
    new = program(checkpoint.parent, "optax_bridge.adam(weight_decay=0.1)")
    given: Any = {"optimizers": ["Adam(weight_decay=0.1)"], "learning_rate": 0.01}
    resumed = resume(checkpoint, new, **given, steps=4)
    assert resumed.verdict is Verdict.IDENTICAL


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
    resumed = resume(checkpoint, made, optimizers=expressions, steps=4)
    assert (resumed.verdict, resumed.steps) == (Verdict.IDENTICAL, {"critic": 5, "policy": 5})
    assert "critic, restored at step 5:" in str(resumed)
    bare = legacy_optim.Adam(0.1).create({"w": np.ones(1)})
    with pytest.raises(EquivalenceError, match="expected one legacy optimizer, found critic, po"):
        restored_by_flax(old_checkpoint(checkpoint), bare)
    old = OLD.replace(
        'return State(optimizer, {"mean": jnp.zeros(2)}, 0)',
        "return {'policy': optimizer, 'critic': 0}",
    )
    (checkpoint.parent / "old.py").write_text(old)
    with pytest.raises(
        EquivalenceError, match=r"expected optimizers at critic, policy.*found policy"
    ):
        resume(checkpoint, made, old=f"{checkpoint.parent / 'old.py'}:make_state")


def test_what_is_restored_differently_is_different():
    found = Resumed({}, {}, others=2, unequal=["mean", "epoch"])
    assert found.verdict is Verdict.DIFFERENT
    assert str(found).splitlines() == [
        "outside the optimizers, restored equally by both: 2 leaves",
        "restored differently: mean, epoch",
    ]
    assert found.as_dict()["others_unequal"] == ["mean", "epoch"]


def test_the_containers_of_the_parameters_do_not_matter(checkpoint: Path):
    """Modules made FrozenDicts of parameters once, and make dicts now."""
    old = checkpoint.parent / "old.py"
    frozen = OLD.replace(
        "import jax.numpy as jnp\n", "import jax.numpy as jnp\nfrom flax.core import freeze\n"
    )
    old.write_text(frozen.replace(".create(params)", ".create(freeze(params))"))
    new = program(checkpoint.parent, EXACT)
    resumed = resume(checkpoint, new, old=f"{old}:make_state", steps=4)
    assert resumed.verdict is Verdict.IDENTICAL, resumed


def test_the_verdict_is_that_of_the_optimizer_that_is_farthest_apart():
    params = {"w": np.ones(3, np.float32)}
    same, other = (
        check_equivalence(optax.sgd(0.1), optax.sgd(rate), params, steps=8) for rate in (0.1, 0.2)
    )
    for reports in ({"a": same, "b": other}, {"a": other, "b": same}):
        assert Resumed(reports, {"a": 1, "b": 1}, 0, []).verdict is Verdict.DIFFERENT
    assert Resumed({"a": same}, {"a": 1}, 0, []).verdict is Verdict.IDENTICAL
    assert Resumed({"a": same}, {"a": 1}, 0, ["params"]).verdict is Verdict.DIFFERENT
