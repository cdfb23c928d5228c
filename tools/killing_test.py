import random
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


def test_a_training_that_ends_before_its_kills_is_told(tmp_path):
    program = f"import pathlib, time; file = pathlib.Path({str(tmp_path)!r}, 'losses.csv'); "
    program += "first = not file.exists(); file.write_text('1\\n'); time.sleep(30 * first)"
    with pytest.raises(RuntimeError, match="it ended before kill 2"):
        killing.train_with_kills(tmp_path, [sys.executable, "-c", program], 1, 2, seconds=0.1)


def test_all_are_killed_at_once_and_one_that_fails_is_enough():
    waiting = killing.Processes([sys.executable, "-c", "import time; time.sleep(30)"], 2)
    waiting.kill(random.Random(0))
    assert {process.returncode for process in waiting._processes} == {-signal.SIGKILL}
    last_fails = "import sys; sys.exit('gone' if sys.argv[-1] == '1' else 0)"
    with pytest.raises(RuntimeError, match="gone"):
        killing.Processes([sys.executable, "-c", last_fails], 2).wait()
