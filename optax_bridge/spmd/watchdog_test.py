"""A training that hangs: it reads its input for ever."""

import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest

from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.input import ArrayBatches, IteratorInput
from optax_bridge.spmd.trainer.watchdog import all_stacks, watchdog


def hanging_batches():
    batches = ArrayBatches(regression.samples(), global_batch_size=16)
    yield from itertools.islice(batches, 3)
    threading.Event().wait()


def trainer():
    cfg = regression.trainer(steps=9, mesh_shape=(1, 1)).set(save_input_iterator=False)
    cfg.input = IteratorInput.default_config().set(source=hanging_batches)
    cfg.checkpointer.save_policy = config_for_function(at_step_2)
    return cfg.set(watchdog_timeout_seconds=0.5, crash_on_hang_timeout_seconds=1.2)


def at_step_2():
    return lambda *, step, evaler_summaries: step == 2


def test_a_run_that_hangs_says_where_and_ends(tmp_path):
    program = "from optax_bridge.cli.start import main; main()"
    command = [sys.executable, "-c", program, "train", f"{__name__}:trainer", "--dir", tmp_path]
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
    with pytest.raises(ValueError, match="_timeout_seconds"), watched:
        pass
