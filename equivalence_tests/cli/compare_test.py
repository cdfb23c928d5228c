"""`optax-bridge compare`: sides, verdicts, files, exit codes."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import flax
import pytest

MODULE = """
import jax
import numpy as np
import optax
import legacy_optim

PARAMS = {"w": np.linspace(-1, 1, 5, dtype=np.float32)}
adam = optax.adam(0.1)
other = optax.adam(0.1, eps=1e-2)
number = 3

def legacy():
    return legacy_optim.Adam(0.1)

def broken():
    raise RuntimeError("not today")

def ended():
    raise SystemExit(0)

def mistyped():
    return 1 + "one"

def stop(gradients, state, params=None):
    raise RuntimeError("not this step")

stopping = optax.GradientTransformation(lambda params: (), stop)

def late(gradients, state, params=None):
    rate = np.float32(0.1) * (1 + (state >= 3000))
    return {"w": -rate * gradients["w"]}, state + 1

patient = optax.GradientTransformation(lambda params: np.zeros([], np.int32), late)
plain = optax.sgd(0.1)

def by_size(gradient, param):
    return -(0.2 if gradient.size > 1000 else 0.1) * gradient

sized = optax.stateless(lambda updates, params: jax.tree.map(by_size, updates, updates))

def noisy_step(gradients, state, params):
    rows = {name: np.asarray(g) for name, g in gradients.items()}
    new = {name: p - np.float32(0.1) * rows[name] ** 3 / rows[name] for name, p in params.items()}
    return new, state

noisy = (lambda params: (), noisy_step)

def old_of(hp):
    return legacy_optim.Adam(hp["rate"])

def new_of(hp):
    return optax.adam(hp["rate"])
"""

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, command: Command) -> None:
    (tmp_path / "my_pair.py").write_text(MODULE)
    (tmp_path / "my_old.py").write_text("from flax import optim\nmade = optim.Adam(0.1)\n")
    (tmp_path / "my_import.py").write_text("raise ValueError('too early')")
    (tmp_path / "my_exit.py").write_text("raise SystemExit(0)")


SHORT = ("--params", "my_pair:PARAMS", "--steps", "5")


@pytest.mark.parametrize(
    ("right", "code", "verdicts"),
    [
        ("legacy", 0, ("rounding only", "rounding only", "equal over the reals")),
        ("adam", 0, ("identical", "identical", "identical")),
        ("other", 1, ("different", "different", "different")),
    ],
)
def test_the_exit_code_is_the_verdict_of_runs_and_proof(
    right: str, code: int, verdicts: Any, tmp_path: Path, command: Command, recorded: Any
):
    files = ("--json", "pair.json", "--junit", "pair.xml", "--report", "report")
    done = command("compare", "my_pair:adam", f"my_pair:{right}", *SHORT, *files)
    recorded("compare.txt", {right: done.text}, some=True, rounded=True)
    content = json.loads((tmp_path / "pair.json").read_text())
    found = (content["verdict"], content["runs"]["verdict"], content["proof"]["verdict"])
    assert found == verdicts
    assert content["runs"]["shapes"] == {"params['w']": "float32[5]"}
    assert content["names"] == ["my_pair:adam", f"my_pair:{right}"]
    suite = ElementTree.parse(tmp_path / "pair.xml").getroot()[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors")}
    assert counts == {"tests": "1", "failures": str(code), "errors": "0"}
    page = (tmp_path / "report" / "index.html").read_text()
    assert done.out.splitlines()[0] in page and f"proof: {verdicts[2]}" in page


def test_what_the_proof_alone_shows_is_different(tmp_path: Path, command: Command, recorded: Any):
    """The runs end long before; and JUnit's XML has the failure as well."""
    done = command("compare", "my_pair:plain", "my_pair:patient", *SHORT, "--junit", "pair.xml")
    recorded("compare.txt", {"after steps that were not run": done.text}, some=True, rounded=True)
    assert 'failures="1"' in (tmp_path / "pair.xml").read_text()


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ("adam", r"'adam' is a name, not a call: write Adam\(\)"),
        ("Adm", r"'Adm' is not a call.*; is Adam meant\?.* name anything else as module:name"),
        ("nowhere:adam", "nowhere:adam: No module named"),
        ("my_pair:missing", "my_pair has no attribute 'missing'"),
        ("my_pair:number", "my_pair:number: expected a legacy definition"),
        ("my_import:adam", "my_import:adam: importing my_import raised ValueError: too early"),
        ("my_pair:broken", r"my_pair:broken\(\): raised RuntimeError: not today \(my_pair.py:16\)"),
        ("my_pair:mistyped", r"raised TypeError: unsupported.*'str' \(my_pair.py:22\)$"),
        ("my_exit:adam", r"importing my_exit ended with sys.exit\(0\): put the code that"),
        ("my_pair:ended", r"my_pair:ended\(\): raised SystemExit: 0"),
        ("optax:adam", r"missing 1 required .* give its arguments with --args LEFT RIGHT"),
        ("adam(1e-3)", r"expected Adam\(...\) of flax.optim, or .* e.g. optax.adam\("),
        ("Adan(1e-3)", "is not a call of a legacy optimizer.*is Adam meant"),
        ("os.system('true')", "is not a call of a legacy optimizer"),
        ("optax.adam(rate)", "rate is not a literal, and nothing is evaluated"),
        ("optax.adam(1e-3", r"expected module:name, or a constructor call such as Adam\(1e-3\)"),
        ("my_pair:stopping", r"not this step \(my_pair.py:25\).*--params w=4x3,b=3"),
    ],
)
def test_misuse_is_said(right: str, message: str, command: Command):
    done = command("compare", "my_pair:adam", right, "--steps", "2")
    assert done.code == 2
    assert re.search(message, done.err), done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--platform", "quantum"), "--platform quantum: expected one of cpu"),
        (("--params", "w=ax"), "expected shapes as w=4x3"),
        (("--params", "w=3,w=4"), "each name once"),
        (("--hyper-params", "rate"), "expected name=number"),
        (("--hyper-params", "rate=1", "--args", "1", "2"), "sides take those settings alone"),
        (("--gradients", "wild"), "expected one of normal, hostile, poisoned, all"),
        (("--steps", "0"), "expected at least 1"),
        (("--bound", "3"), "No such option: --bound"),
        (("third:side",), "Got unexpected extra argument"),
    ],
)
def test_options_are_refused_by_name(arguments: tuple[str, ...], message: str, command: Command):
    done = command("compare", "my_pair:adam", "my_pair:other", *arguments)
    assert done.code == 2
    assert message in " ".join(done.err.replace("│", " ").split())


def test_a_program_may_import_the_old_api(command: Command):
    done = command("compare", "my_old.py:made", "Adam(0.1)", *SHORT)
    assert done.code == 0, done.err
    assert not hasattr(flax, "optim")


def test_a_side_that_raises_is_in_every_file(tmp_path: Path, command: Command):
    files = ("--json", "pair.json", "--junit", "pair.xml", "--report", "report")
    done = command("compare", "my_pair:adam", "my_pair:stopping", *SHORT, *files)
    assert done.code == 2
    assert "not this step" in done.err
    content = json.loads((tmp_path / "pair.json").read_text())
    assert content["verdict"] == "error" and "not this step" in content["error"]
    assert 'errors="1"' in (tmp_path / "pair.xml").read_text()
    assert "not this step" in (tmp_path / "report" / "index.html").read_text()


def test_hyper_parameters_are_proved_for_all_numbers(command: Command, recorded: Any):
    sides = ("my_pair:old_of", "my_pair:new_of")
    done = command("compare", *sides, *SHORT, "--hyper-params", "rate=1e-3")
    recorded("compare.txt", {"all numbers": done.text}, some=True, rounded=True)


def test_a_device_that_is_not_there_is_not_compared_on(command: Command):
    done = command("compare", "my_pair:adam", "my_pair:other", "--platform", "tpu")
    assert done == (3, "tpu: not run, this machine has no such device\n", "")


def test_a_rate_that_one_side_needs_is_that_of_the_other(command: Command, recorded: Any):
    done = command("compare", "optax_bridge.torch:SGD", "optax:sgd", *SHORT, "--histogram")
    recorded("compare.txt", {"a rate of the other": done.text}, some=True, rounded=True)


def test_without_pytorch_a_side_of_it_is_an_error(
    command: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = command("compare", "torch.optim:LBFGS", "my_pair:adam")
    assert done.code == 2
    assert done.err.startswith("torch.optim:LBFGS: ")


def test_what_computes_with_numpy_is_silent_and_not_proved(command: Command, recorded: Any):
    done = command("compare", "my_pair:noisy", "optax.sgd(0.1)", *SHORT)
    recorded(
        "compare.txt", {"NumPy": done.text.partition(" (The numpy")[0]}, some=True, rounded=True
    )
    assert done.err == ""


def test_runs_and_proof_are_of_the_usual_shapes_which_are_printed(command: Command, recorded: Any):
    """A leaf has one name in the runs and in the proof, which lists no numbers of a large one."""
    done = command("compare", "my_pair:plain", "my_pair:sized", "--steps", "3")
    recorded("compare.txt", {"the usual shapes": done.text}, some=True, rounded=True)
    done = command("compare", "my_pair:plain", "my_pair:sized", "--steps", "3", "--histogram")
    assert "\ndistances (ULP): same bits: " in done.out


@pytest.mark.parametrize("installed", [True, False])
def test_an_optimizer_of_pytorch_has_one_answer_with_pytorch_and_without(
    installed: bool, monkeypatch: pytest.MonkeyPatch, command: Command
):
    if installed:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    else:
        monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    sides = ("torch.optim:AdamW", "optax:adamw", "--params", "k=4x3,b=3", "--args")
    done = command("compare", *sides, "lr=1e-3", "1e-3")
    assert (done.code, done.err) == (1, "")
    assert ("PyTorch is not installed, so this project's port ran" in done.out) is not installed
    assert (
        "with optax.adamw(learning_rate=0.001, weight_decay=0.01) the verdict is rounding only; "
        "the difference is weight_decay=0.01 (as weight_decay=0.01 of torch.optim:AdamW)"
    ) in done.out
    done = command("compare", *sides, "lr=1e-3, weight_decay=0.01", "1e-3, weight_decay=0.01")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("rounding only: ")
    assert "disagree" not in done.out


def test_a_file_that_is_refused_is_not_written_with_the_error(tmp_path: Path, command: Command):
    done = command("compare", "my_pair:adam", "my_pair:adam", *SHORT, "--json", "nowhere/pair.json")
    folder = (tmp_path / "nowhere").resolve()
    assert done.err == f"--json nowhere/pair.json: the folder {folder} does not exist\n"
    assert (done.code, folder.exists()) == (2, False)


def test_what_cannot_be_written_after_all_costs_the_exit_code(command: Command):
    """The device is there, and full."""
    done = command("compare", "my_pair:adam", "my_pair:adam", *SHORT, "--json", "/dev/full")
    assert done.code == 2
    assert "/dev/full: not written: No space left on device" in done.err
    assert done.out.startswith("identical: ")


FLAGS = """
from absl import flags
import jax
flags.DEFINE_float("rate", RATE, "The rate.")
FLAGS = flags.FLAGS

def step(grads, state, params):
    return jax.tree.map(lambda p, g: p - FLAGS.rate * g, params, grads), state

functions = (lambda params: (), step)

def make():
    return functions
"""


@pytest.mark.parametrize("name", ["functions", "make"])
def test_a_step_reads_the_flags_of_its_own_program(name: str, tmp_path: Path, command: Command):
    for file, rate in (("old.py", "0.25"), ("new.py", "0.5")):
        (tmp_path / file).write_text(FLAGS.replace("RATE", rate))
    done = command("compare", f"old.py:{name}", "optax.sgd(0.25)", *SHORT)
    assert done.code == 0, done
    done = command("compare", f"old.py:{name}", f"new.py:{name}", *SHORT)
    assert done.code == 1, done
    done = command("compare", f"old.py:{name}", f"new.py:{name}", *SHORT, "--", "--rate=0.125")
    assert done.code == 0, done


@pytest.mark.filterwarnings("ignore:multi_optimizer, group 0. none of")
def test_groups_may_be_written_out_and_those_that_hold_nothing_are_said(
    command: Command, recorded: Any
):
    for pattern in ("*/bias", "*/none"):
        old = f'MultiOptimizer(("{pattern}", Adam(0.1)))'
        new = f'optax_bridge.multi_optimizer(("{pattern}", optax_bridge.adam(0.1)))'
        done = command("compare", old, new, "--params", "bias=3,kernel=4x3", "--steps", "3")
        recorded("compare.txt", {pattern: done.text}, some=True, rounded=True)


@pytest.mark.parametrize("left", ["LAMB(0.1)", "torch.optim.SGD(lr=0.1)", "optax.sgd(0.1)"])
def test_where_no_setting_explains_it_the_recipe_is_named(
    command: Command, left: str, recorded: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    done = command("compare", left, "optax.lamb(0.1)", "--params", "w=2", "--steps", "2")
    recorded("compare.txt", {left: done.text}, some=True, rounded=True)
