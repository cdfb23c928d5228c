"""`optax-bridge replay` and `recorder`: exit codes, files, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equivalence_tests.recordings.format import read
from equivalence_tests.recordings.recorder import Recorder

Command = Callable[..., Any]
NEW = """
import jax.numpy as jnp, optax
from flax.training.train_state import TrainState

def make_tx(learning_rate=0.5):
    return optax.sgd(learning_rate)

def loss(params, batch):
    return (params["w"] * batch).sum()

def make_state():
    return TrainState.create(apply_fn=None, params={"w": jnp.ones(3)}, tx=make_tx())

batches = [jnp.ones(3)] * 3
slow = optax.sgd(0.25)
"""


@pytest.fixture(autouse=True)
def runs(command: Command) -> None:
    """Two recordings of gradient descent, the second of another start and without batches."""
    Path("new.py").write_text(NEW)
    grads = {"w": np.ones(3, np.float32)}
    for name, start in (("one.rec", 1), ("two.rec", 2)):
        rec, w = Recorder(name), np.full(3, start, np.float32)
        for _ in range(3):
            new = w - np.float32(0.5) * grads["w"]
            batch = grads["w"] if start == 1 else None
            rec.step({"w": w}, grads, {"w": new}, learning_rate=0.5, batch=batch)
            w = new


TX = ("--optimizer", "new.py:make_tx")
RUNS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "all stages": ((*TX, "--loss", "new.py:loss", "--batches", "new.py:batches"), 0, "identical"),
    "a call": (("--optimizer", "optax.sgd(0.5)"), 0, "identical\noptimizer: identical\none.rec: "),
    "another rate": (("--optimizer", "new.py:slow"), 1, "recorded 0.5, here 0.25"),
    "two steps": (("two.rec", "--steps", "2"), 1, "diverges first in parameters: diff"),
    "itself": (("one.rec",), 0, "one.rec against one.rec: identical"),
}


@pytest.mark.parametrize("case", RUNS)
def test_the_exit_code_is_the_outcome(case: str, command: Command):
    arguments, code, text = RUNS[case]
    done = command("replay", "one.rec", *arguments, "--json", "a.json", "--plot", "a.svg")
    assert done.code == code, done
    assert text in done.out
    content = json.loads(Path("a.json").read_text())
    assert content["verdict"] == ("different" if code else "identical")
    assert (content["first"] is None) is (code == 0)
    picture = Path("a.svg").read_text()  # in which the first parting is marked
    assert picture.startswith("<svg") and ('class="bound" d="M0 0V' in picture) is (code == 1)


def test_what_was_asked_for_and_cannot_be_judged_costs_the_exit_code(command: Command):
    done = command("replay", "two.rec", *TX, "--loss", "new.py:loss")
    assert done.code == 1
    assert "loss and gradients: not judged: the recording has no batches" in done.out


def test_a_file_that_cannot_be_written_costs_the_exit_code(command: Command):
    done = command("replay", "one.rec", "one.rec", "--json", "/dev/full")
    assert done.code == 2 and "/dev/full: not written" in done.err


def test_a_recording_is_packed_and_drafts_names(command: Command):
    assert command("replay", "one.rec", "--pack", "one.npz")[:2] == (0, "")
    assert command("replay", "one.npz", *TX).code == 0
    assert command("replay", "one.npz", "--steps", "2", "--pack", "two.npz").code == 0
    assert len(read("two.npz").steps) == 2 < len(read("one.npz").steps)
    done = command("replay", "one.npz", "--draft-names", "new.py:make_state")
    assert done.code == 0 and '"w" = "params/w"' in done.out.replace("w =", '"w" =')
    Path("names.toml").write_text('[names]\nw = "params/v"\n')
    done = command("replay", "one.npz", "two.rec", "--names", "names.toml")
    assert done.code == 2 and "found on one side only params['v'], params['w']" in done.err


def test_the_recorder_is_one_file(command: Command):
    done = command("recorder")
    assert done.code == 0 and "class Recorder" in done.out and "equivalence_tests" not in done.out


MISUSE = {
    (): "give something to compare it with: --optimizer, --loss, --batches, or another recording",
    (*TX, "--steps", "0"): "--steps is 0; it must be at least 1",
    ("two.rec", *TX): "two.rec: with a second recording leave out --optimizer, --loss and --batch",
    ("two.rec", "--loss", "new.py:loss"): "with a second recording leave out --optimizer, --loss",
    ("none.rec",): "none.rec: expected a recording: a folder as",
    ("--optimizer", "new.py:none"): "has no attribute 'none'",
    (*TX, "--plot", "no/a.svg"): "no/a.svg: the folder",
}


@pytest.mark.parametrize("arguments", MISUSE)
def test_misuse_exits_two_and_says_why(arguments: tuple[str, ...], command: Command):
    done = command("replay", "one.rec", *arguments)
    assert done.code == 2 and not done.out
    assert MISUSE[arguments] in done.err
