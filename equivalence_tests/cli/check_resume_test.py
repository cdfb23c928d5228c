"""`optax-bridge check-resume`: exit codes, files, and programs with flags of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equivalence_tests.resume.resumed_test import (
    ADAM,
    EXACT,
    NEW,
    OLD,
    ON_OPTAX,
    WRONG,
    lacking,
    program,
)
from equivalence_tests.resume.resumed_test import checkpoint as checkpoint

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("tx", "verdict"), [(EXACT, "identical"), (ON_OPTAX, "rounding only"), (WRONG, "different")]
)
def test_the_exit_code_is_the_verdict(
    tx: str, verdict: str, checkpoint: Path, command: Command, recorded: Any
):
    new = program(checkpoint.parent, tx)
    arguments = (str(checkpoint), "--program", new, "--optimizer", ADAM, "--json", "a.json")
    done = command("check-resume", *arguments, "--steps", "6")
    recorded(
        "check_resume.txt",
        {tx: done.text.replace(f"{checkpoint.parent}/", "")},
        some=True,
        rounded=True,
    )
    assert json.loads(Path("a.json").read_text())["verdict"] == verdict


def test_what_is_lost_is_a_failure_in_every_file(checkpoint: Path, command: Command, recorded: Any):
    new, old = lacking(checkpoint.parent, "old program"), f"{checkpoint.parent}/old.py:make_state"
    files = ("--json", "a.json", "--junit", "a.xml", "--report", "page")
    arguments = ("--program", new, "--old", old, "--steps", "2")
    done = command("check-resume", str(checkpoint), *arguments, *files)
    text = done.text.replace(f"{checkpoint.parent}/", "")
    recorded("check_resume.txt", {"what is lost": text}, some=True, rounded=True)
    junit = Path("a.xml").read_text()
    assert 'failures="1"' in junit and "model_state/mean" in junit
    assert "model_state/mean" in Path("page", "index.html").read_text()


MISUSE = {
    "no checkpoint": (("none",), "none: there is no such file or folder"),
    "no program": (("checkpoint_5",), "Missing option '--program'"),
    "a function with arguments": (
        ("checkpoint_5", "--program", "wide.py:Of", "--optimizer", ADAM),
        "It is called without arguments: name a function that needs none, such as def make(): "
        "return Of(...)",
    ),
    "neither": (("checkpoint_5", "--program", "new.py:make_state"), "expected either --old"),
    "another shape": (
        ("checkpoint_5", "--program", "wide.py:make_state", "--optimizer", ADAM),
        "wide.py:make_state: ",
    ),
    "no rate": (
        ("checkpoint_5", "--program", "new.py:make_state", "--optimizer", "Adam()"),
        "Here --learning-rate RATE gives it to each step",
    ),
    "no call": (
        ("checkpoint_5", "--program", "new.py:make_state", "--optimizer", "Adan(1)"),
        "is not a call of a legacy optimizer",
    ),
    "another name": (
        ("checkpoint_5", "--program", "new.py:make_state", "--optimizer", "a=Adam(1.0)",
         "--optimizer", "b=Adam(1.0)"),
        "expected one for each of optimizer",
    ),
    "no old program": (
        ("checkpoint_5", "--program", "new.py:make_state", "--old", "nowhere.py:make"),
        "there is no file nowhere.py",
    ),
    "another optimizer": (
        ("checkpoint_5", "--program", "new.py:make_state", "--optimizer", "Momentum(0.1)"),
        "restoring raised",
    ),
    "a file": (
        ("checkpoint_5", "--program", "new.py:make_state", "--json", "no/a.json"),
        "--json no/a.json: the folder",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_exits_two_and_is_said(case: str, checkpoint: Path, command: Command):
    arguments, message = MISUSE[case]
    program(checkpoint.parent, EXACT)
    wide = (checkpoint.parent / "new.py").read_text().replace("(3, 2)", "(3, 4)")
    (checkpoint.parent / "wide.py").write_text(f"{wide}\nclass Of(State): ...\n")
    if case == "no checkpoint":
        arguments = (*arguments, "--program", "new.py:make_state")
    done = command("check-resume", *arguments)
    assert done.code == 2 and not done.out
    assert message in " ".join(done.err.replace("│", " ").split())


FLAGS = """
from absl import app, flags
flags.DEFINE_float("learning_rate", 0.5, "The rate.")
flags.DEFINE_string("workdir", None, "Where to write.")
flags.mark_flag_as_required("workdir")
FLAGS = flags.FLAGS
"""


@pytest.mark.parametrize("same_name", [False, True], ids=["two files", "train.py twice"])
def test_programs_with_the_same_flags_are_loaded_each_as_its_own(
    same_name: bool, checkpoint: Path, command: Command
):
    """Their functions read unparsed flags; helpers beside them are their own."""
    folder = checkpoint.parent
    files = [folder / "old.py", folder / "new.py"]
    if same_name:
        files = [folder / "before" / "train.py", folder / "after" / "train.py"]
    texts = [
        FLAGS + OLD.replace("learning_rate=0.01", "learning_rate=FLAGS.learning_rate * helper.ONE"),
        FLAGS
        + NEW.replace(
            "TX", "optax_bridge.adam(FLAGS.learning_rate / helper.ONE, weight_decay=0.1)"
        ),
    ]
    for file, text, one in zip(files, texts, (2.0, 0.5), strict=True):
        file.parent.mkdir(exist_ok=True)
        helper = "helper" if same_name else f"helper_of_{file.stem}"
        file.write_text(text.replace("helper", helper) + f"\nimport {helper}\n")
        (file.parent / f"{helper}.py").write_text(f"ONE = {one}\n")
    sides = ("--program", f"{files[1]}:make_state", "--old", f"{files[0]}:make_state")
    own = ("--", "--learning_rate=0.01")
    for arguments, rate in (((), 1.0), (own, 0.02)):  # by each one's own helper
        options = ("--steps", "3", "--json", "a.json")
        done = command("check-resume", str(checkpoint), *sides, *options, *arguments)
        assert done.out.splitlines()[-1].startswith("identical"), done
        (report,) = json.loads(Path("a.json").read_text())["optimizers"].values()
        assert f"learning_rate={rate}" in report["sources"][0]
    for argument, message in (
        ("--learning_rat=0.01", "-- --learning_rat=0.01: expected arguments that one of the pro"),
        ("--learning_rate=fast", "Put the programs' own arguments after --"),
    ):
        done = command("check-resume", str(checkpoint), *sides, "--", argument)
        assert done.code == 2 and message in done.err, done
