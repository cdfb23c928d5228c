import random
import re
import signal
import sys

import jax
import pytest

from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.progress import read_losses
from tools import killing


def test_two_processes_and_a_kill(tmp_path):
    """Two processes, killed once, give the losses of one with two devices, to the bit."""
    cfg = regression.trainer(steps=40, save_every=4, mesh_shape=(-1, 1))
    cfg.set(dir=str(tmp_path / "one")).model.dropout.rate = 0.1
    trainer, losses = cfg.instantiate(parent=None, devices=jax.devices()[:2]), {}
    trainer.add_listener(losses.__setitem__)
    trainer.run(jax.random.PRNGKey(0))
    line = killing.command(tmp_path / "two", devices=1, steps=40, save_every=4)
    _, moments = killing.train_with_kills(tmp_path / "two", line, processes=2, kills=1, seconds=0.2)
    assert len(moments) == 1
    assert read_losses(tmp_path / "two") == [*losses.items()]


# A training in two lines: its first process, if there is a second, does not end.
_PROGRAM = """
import pathlib, time
folder, file = pathlib.Path({folder!r}), pathlib.Path({folder!r}, "losses.csv")
folder.mkdir(exist_ok=True)
is_first = folder.name != "undisturbed" and not file.exists()
time.sleep(0.3 * is_first)
pathlib.Path(folder, "checkpoints", "step_2").mkdir(parents=True, exist_ok=True)
pathlib.Path(folder, "checkpoints", "step_1").mkdir(exist_ok=True)
file.write_text({text})
time.sleep(30 * is_first)
"""


def _line(folder, text="'1'"):
    return [sys.executable, "-c", _PROGRAM.format(folder=str(folder), text=text)]


def test_the_command_is_of_the_smallest_example_with_dropout(tmp_path):
    program, *line = killing.command(tmp_path, steps=7, save_every=2, devices=3)
    sets = ["max_step=7", "model.dropout.rate=0.1", "checkpointer.save_policy.n=2"]
    sets += ["checkpointer.save_policy.max_step=7"]
    assert program == sys.executable and line[2:] == [
        "train", killing.CONFIG, "--dir", str(tmp_path), "--devices", "3",
        *(word for field in sets for word in ("--set", f"trainer.{field}")),
    ]  # fmt: skip


def test_a_training_is_killed_when_it_goes_on_and_one_that_ends_before_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="it ended before kill 2"):
        killing.train_with_kills(tmp_path, _line(tmp_path), 1, 2, 0.1, seed=5)


@pytest.mark.parametrize(("text", "status"), [("'1'", 0), ("folder.name", 1)])
def test_other_losses_end_with_1(text, status, monkeypatch, capsys):
    settings = []

    def command(folder, **values):
        settings.append(values)
        return _line(folder, text)

    monkeypatch.setattr(killing, "command", command)
    monkeypatch.setattr(
        sys, "argv", ["killing", "--kills", "1", "--steps", "7", "--seconds", "0.1"]
    )
    assert killing.main() == status
    assert settings == [{"steps": 7, "save_every": 10, "devices": 4}] * 2
    kill, last = capsys.readouterr().out.splitlines()
    step = re.sub(r"[\d.]+ s", "# s", kill)
    assert step == "kill 1: after # s, at step 0, step_1, step_2"
    assert last == f"1 kills, 7 losses: {'OTHER' if status else 'the same to the bit'}"


def test_all_are_killed_at_once_and_one_that_fails_is_enough():
    waiting = killing.Processes([sys.executable, "-c", "import time; time.sleep(30)"], 2)
    waiting.kill(random.Random(0))
    assert {process.returncode for process in waiting._processes} == {-signal.SIGKILL}
    one_ends = "import sys, time; time.sleep(30 * (sys.argv[-1] == '0'))"
    ending = killing.Processes([sys.executable, "-c", one_ends], 2)
    ending._processes[1].wait()
    assert not ending.running()
    ending.kill(random.Random(0))
    last_fails = "import sys; sys.exit('gone' if sys.argv[-1] == '1' else 0)"
    with pytest.raises(RuntimeError, match="gone"):
        killing.Processes([sys.executable, "-c", last_fails], 2).wait()
