"""`optax-bridge train`, and what watches a training."""

import errno
import io
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from optax_bridge.cli.app import app
from optax_bridge.recorded_test import assert_recorded, refused
from optax_bridge.spmd.command import _without_resume_from
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.evaler import SpmdEvaler, every_n_steps_policy
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.input import ArrayBatches, IteratorInput
from optax_bridge.spmd.progress import LossLog, _clock, curve, progress_line, read_losses
from optax_bridge.spmd.trainer.loop import is_of_writing
from optax_bridge.spmd.trainer.trainer import all_stacks, forced_evalers, watchdog

EXAMPLE = "optax_bridge.spmd.examples.regression.trainer"


def call(*args):
    return CliRunner().invoke(app, ["train", *map(str, args)])


def printed(name, result, folder):
    """Compares all that the command printed, but for speeds and times, with what is recorded."""
    text = re.sub(r"\d+\.\d steps/s|\d+:\d+ left", "#", result.output.replace(str(folder), "TMP"))
    lines = [f"exit code {result.exit_code}", *text.splitlines()]
    assert_recorded(Path(__file__).with_name("testdata") / "train.json", name, lines)


def interrupted():
    """The program is asked to stop while it reads its third batch."""
    for number, batch in enumerate(ArrayBatches(regression.samples(), global_batch_size=16)):
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        yield batch


def stopping():
    source = IteratorInput.default_config().set(source=interrupted)
    return regression.trainer(steps=9).set(input=source, save_input_iterator=False)


def evaluated():
    cfg = regression.trainer()
    evaler = SpmdEvaler.default_config().set(
        input=cfg.input.clone(num_epochs=1, shuffle=False),
        eval_policy=config_for_function(every_n_steps_policy).set(n=3),
    )
    return cfg.set(evalers={"all": evaler})


def test_a_run_its_curve_and_a_second_one_from_its_file(tmp_path):
    config = "optax_bridge.spmd.command_test:evaluated"
    first = call(config, "--dir", tmp_path / "a", "--set", "trainer.max_step=3")
    assert first.exit_code == 0, first.output
    printed("a run", first, tmp_path)
    assert (tmp_path / "a" / "checkpoints" / "step_00000003").is_dir()  # whatever the policy says
    assert (tmp_path / "a" / "loss.svg").read_text().startswith("<svg")
    again = call(tmp_path / "a" / "trainer_config.txt", "--dir", tmp_path / "b", "--seed", 1)
    assert again.exit_code == 0, again.output
    assert read_losses(tmp_path / "b")[0][1] != read_losses(tmp_path / "a")[0][1]
    done = call(config, "--dir", tmp_path / "a", "--set", "trainer.max_step=3")
    printed("nothing to do", done, tmp_path)
    more = call(config, "--dir", tmp_path / "a", "--set", "trainer.max_step=4")
    printed("the next step", more, tmp_path)


def test_a_config_file_of_a_program_in_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    home = "optax_bridge.spmd.examples.regression"
    program = f"import {home} as example\nclass Own(example.Regression): ..."
    Path("own_model.py").write_text(program)
    text = call(EXAMPLE, "--print-config", "--set", "max_step=7").output
    assert "\nmax_step: 7\n" in text
    own = text.replace(f"{home}.Regression", "own_model.Own")
    Path("trainer_config.txt").write_text(own)
    assert call("trainer_config.txt", "--print-config").output == own


def test_sigterm_saves_and_says_how_to_go_on(tmp_path):
    result = call("optax_bridge.spmd.command_test:stopping", "--dir", tmp_path)
    assert result.exit_code == 143
    assert "Stopped after step 3, which is saved. To go on:" in result.output
    assert (tmp_path / "checkpoints" / "step_00000003").is_dir()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("option", [["--resume-from", "4"], ["--resume-from=4"]])
def test_the_command_that_goes_on_does_not_go_back_again(option):
    assert _without_resume_from(["train", *option, "--dir", "4"]) == ["train", "--dir", "4"]


@pytest.mark.parametrize(
    "args, message",
    [
        ([], "optax-bridge train optax_bridge.spmd.examples.regression.trainer --dir run"),
        (["nowhere.config"], "no module 'nowhere'"),
        (["optax_bridge.spmd.examples.regression.train"], "did you mean: [trainer]"),
        (["config"], "dotted name"),
        (["missing/trainer_config.txt"], "no such file"),
        ([EXAMPLE], "--dir run"),
        ([EXAMPLE, "--dir", "x", "--set", "trainer.max_stepp=3"], "max_step"),
        ([EXAMPLE, "--dir", "x", "--set", "max_step=3", "--set", "max_step=4"], "already"),
        (["optax_bridge.spmd.examples.regression.samples", "--dir", "x"], "config of a trainer"),
        (["os.getpid", "--dir", "x"], "SpmdTrainer.default_config().set(...), found int"),
        (["jax.device_put", "--dir", "x"], "expected a function without arguments"),
        ([EXAMPLE, "--dir", "x", "--set", "trainer.mesh_shape=(64,1)"], "needs 64 devices"),
        ([EXAMPLE, "--dir", "x", "--processes", "2"], "come together"),
        ([EXAMPLE, "--dir", "x", "--seed", "9" * 30], "--seed"),
    ],
)
def test_misuse(args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*args)
    assert result.exit_code == 2 and message in result.output, result.output
    if "--seed" not in args:  # which typer says, in a box of its own
        printed(" ".join(["train", *args]), result, tmp_path)
    assert not list(tmp_path.iterdir())


WRONG = """
import jax.numpy as jnp
from optax_bridge.spmd.examples import regression
def value(): return int('seven')
def key(): return {}['seven']
class Wrong(regression.Regression):
    def forward(self, input_batch): return jnp.dot(input_batch['x'], input_batch['x']), {}
def model():
    return regression.trainer().set(model=Wrong.default_config().set(dtype=jnp.float32))
"""


@pytest.mark.parametrize(
    ("function", "exit_code", "expected"),
    [
        ("value", 2, ["error: invalid literal", "wrong_config.py:4, in value: def value()"]),
        ("key", 2, ["error: KeyError: 'seven' (", "wrong_config.py:5, in key: def key()"]),
        ("model", 1, ["error: TypeError: dot_general", "wrong_config.py:7, in forward: def for"]),
    ],
)
def test_an_error_of_the_users_own_has_its_line(
    function, exit_code, expected, tmp_path, monkeypatch
):
    (tmp_path / "wrong_config.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    result = call(f"wrong_config.{function}", "--dir", "x")
    [line] = (text for text in result.output.splitlines() if text.startswith("error: "))
    assert result.exit_code == exit_code and len(result.output.splitlines()) < 12, result.output
    assert all(text in line for text in [*expected, "; --traceback prints the whole)"])
    assert call(f"wrong_config.{function}", "--dir", "x", "--traceback").exc_info is not None
    monkeypatch.delitem(sys.modules, "wrong_config")


def test_a_config_that_python_cannot_read_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "unreadable.py").write_text("x = 1\ndef trainer(:\n")
    monkeypatch.chdir(tmp_path)
    result = call("unreadable.trainer", "--dir", "x")
    [line] = result.output.splitlines()
    assert result.exit_code == 2 and line.startswith("error: SyntaxError: invalid syntax (")
    assert "unreadable.py:2, in <module>: def trainer(:; --traceback prints" in line


def test_lines_of_steps_that_are_taken_again_are_replaced(tmp_path):
    with LossLog(tmp_path) as log:
        for step in (1, 2, 3):
            log(step, 1.0 * step)
    with (tmp_path / "losses.csv").open("a") as file:
        file.write("4,0.")  # killed in the middle of a line
    assert read_losses(tmp_path) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    with LossLog(tmp_path) as log:
        log(3, 30.0)
    assert read_losses(tmp_path) == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert ">1300</text>" in curve([(step, 1.0) for step in range(1, 1301)])  # more than it shows


def test_pictures_of_losses(recorded):
    losses = {"down": [(1, 9.0), (2, 4.0), (5, 6.5)], "one": [(3, 1.0)], "none": []}
    losses["far apart"] = [(step, 1e6 / step) for step in range(1, 1900)]
    pictures = {name: curve(values).replace(">", ">\n") for name, values in losses.items()}
    recorded("curves.txt", {name: text[:4000] for name, text in pictures.items()})


def hanging_batches():
    batches = ArrayBatches(regression.samples(), global_batch_size=16)
    yield from itertools.islice(batches, 3)
    threading.Event().wait()


def hanging():
    cfg = regression.trainer(steps=9, mesh_shape=(1, 1)).set(save_input_iterator=False)
    cfg.input = IteratorInput.default_config().set(source=hanging_batches)
    cfg.checkpointer.save_policy = config_for_function(at_step_2)
    return cfg.set(watchdog_timeout_seconds=0.5, crash_on_hang_timeout_seconds=3.0)


def at_step_2():
    return lambda *, step, evaler_summaries: step == 2


def test_a_run_that_hangs_says_where_and_ends(tmp_path):
    program = "from optax_bridge.cli.start import main; main()"
    command = [sys.executable, "-c", program, "train", f"{__name__}:hanging", "--dir", tmp_path]
    done = subprocess.run(
        [*map(str, command), "--devices", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
    )
    assert done.returncode == -signal.SIGKILL
    assert "after step 3:" in done.stderr and "Thread MainThread" in done.stderr
    assert "in hanging_batches" in done.stderr
    assert "killed by crash_on_hang_timeout_seconds" in done.stderr
    assert (tmp_path / "checkpoints" / "step_00000002").is_dir()


def test_no_thread_is_left(caplog):
    with watchdog(itertools.count().__next__, timeout_seconds=0.05, crash_seconds=0.05):
        assert "watchdog" in {thread.name for thread in threading.enumerate()}
        threading.Event().wait(0.2)
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
    assert not caplog.text
    begins = itertools.chain([None], itertools.repeat(1))  # and then it compiles, say
    with watchdog(lambda: next(begins), timeout_seconds=0.05, crash_seconds=0.1):
        threading.Event().wait(0.3)
    assert "no step for 0 s, after step 1" in caplog.text
    assert "test_no_thread_is_left" in all_stacks()


@pytest.mark.parametrize("times", [(0, None), (None, -1), (2, 1)])
def test_times_that_cannot_be(times):
    timeout, crash = times
    watched = watchdog(lambda: 1, timeout_seconds=timeout, crash_seconds=crash)
    with refused(ValueError, "_timeout_seconds"), watched:
        pass


@pytest.mark.parametrize("terminal", [False, True], ids=["file", "terminal"])
def test_until_the_time_left_is_known_it_is_measured(terminal: bool):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    with progress_line(console, 3) as step_taken:
        step_taken(1, 0.5)
        assert "step 1 of 3  loss 0.5000  measuring the speed" in file.getvalue()
        time.sleep(0.4)  # all steps' time would show
        step_taken(3, 0.25)
    last = file.getvalue().rpartition("step 3 of 3")[2]
    assert "loss 0.2500" in last and "0:00 left" in last and "measuring" not in last
    with progress_line(console, math.inf) as step_taken:
        step_taken(1, 0.5)
    assert "step 1  loss 0.5000  measuring" in file.getvalue() and _clock(3725) == "1:02:05"


def test_evalers_are_all_none_or_those_that_are_named():
    expected: Any = [(None, set()), (False, set()), (True, {"a", "b"}), (["a"], {"a"})]
    for wanted, names in [*expected, (("b", "a"), {"a", "b"}), (frozenset({"b"}), {"b"})]:
        assert forced_evalers(wanted, ["a", "b"]) == names


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("a", "expected True or a set of names, found str: 'a'"),
        (["b", "d", "c"], r"no evaler \['c', 'd'\]; there are \['a', 'b'\]"),
    ],
    ids=str,
)
def test_what_names_no_evaler_is_refused(wanted: Any, message: str):
    with refused(ValueError, f"^return_evaler_summaries: {message}$"):
        forced_evalers(wanted, ["a", "b"])


def test_which_errors_are_of_writing_files(tmp_path):
    folder, link = tmp_path / "run", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    full = ["x [os_error_code='28']", "OS error 28", "RESOURCE_EXHAUSTED: full"]
    refused = PermissionError(13, "Permission denied", str(folder / "losses.csv"))
    removed = FileNotFoundError(2, "No such file", str(tmp_path / "gone" / "losses.csv"))
    broken = [OSError(5, "Input/output error", 3), OSError(errno.ESTALE, "Stale file handle")]
    errors = [OSError(28, "No space left"), refused, removed, *broken, *map(ValueError, full)]
    folders = [str(link), str(tmp_path / "gone")]
    assert [error for error in errors if not is_of_writing(error, folders)] == []
    inputs = [
        FileNotFoundError(2, "No such file", "batches.npz"),
        FileNotFoundError(2, "No such file", str(folder / "batches.npz")),
        OSError(5, "Input/output error", str(tmp_path / "batches.npz")),
    ]
    others = [OSError("no number"), *inputs, ValueError("other shapes")]
    assert [error for error in others if is_of_writing(error, folders)] == []
