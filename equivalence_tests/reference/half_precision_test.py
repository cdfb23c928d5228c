"""Every optimizer in bfloat16 and float16, through zero, NaN and infinite gradients.

Each recording is replayed by `legacy_optim`, and by `from_legacy` in a TrainState whose state is
written as a legacy checkpoint after each step.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import pytest

import legacy_optim
import optax_bridge
from equivalence_tests.recordings.format import Recording
from equivalence_tests.reference import load, replay
from equivalence_tests.reference.cases import HALF_PRECISION, Case
from equivalence_tests.reference.reference_test import assert_agrees

pytestmark = pytest.mark.filterwarnings("ignore:flax.optim was removed:DeprecationWarning")


def train_state_steps(case: Case, recording: Recording, folder: Path) -> Iterator[Any]:
    """Yields parameters and legacy state of a TrainState after each step, as `replay` does."""
    definition = replay.define(legacy_optim, case.optimizer)
    params = jax.tree.map(jnp.asarray, load.initial(recording))
    tx = optax_bridge.from_legacy(definition)
    state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)

    def step(state: Any, grads: Any, rates: list[Any]) -> Any:
        rate = {"learning_rate": rates[0]} if rates else {}
        return state.apply_gradients(grads=grads, **rate)

    run = jax.jit(step) if case.jit else step
    for index, (grads, row) in enumerate(load.inputs(recording)):
        rates = [float(rate) if case.rate == "float" else jnp.asarray(rate) for rate in row]
        state = run(state, jax.tree.map(jnp.asarray, grads), rates)
        file = folder / f"checkpoint_{index}"
        state.to_legacy_checkpoint(file, optimizer_def=definition)
        saved = flax.serialization.msgpack_restore(file.read_bytes())
        yield saved["target"], saved["state"]


def _is_quick(case: Case) -> bool:
    """Each optimizer jitted, with decay where it has one; promoted or eagerly two of them."""
    name = case.name.partition("/")[2]
    if not case.jit:
        return name == "adam_decay_bfloat16_eager"
    if "scheduled" in name:
        return name.startswith(("adam_", "adafactor_"))
    return "_decay" in name or name.startswith(("adagrad", "gradient_descent"))


@pytest.mark.parametrize(
    "case", list(filter(_is_quick, HALF_PRECISION)), ids=lambda case: case.name
)
def test_half_precision(case: Case, tmp_path: Path) -> None:
    recording = load.recording(case)
    inputs = load.initial(recording), load.inputs(recording)
    assert_agrees(case, recording, list(replay.trajectory(legacy_optim, case, *inputs)))
    assert_agrees(case, recording, list(train_state_steps(case, recording, tmp_path)))
