"""Where Orbax's arrays come to, and what it says of itself meanwhile."""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax.training import checkpoints

from optax_bridge import TrainState
from optax_bridge.checkpoints import restore_checkpoint
from optax_bridge.checkpoints.devices import quiet_orbax
from optax_bridge.checkpoints.restore_test import assert_taken_over, fresh, trained


@pytest.mark.parametrize(
    ("level", "within"),
    [
        (logging.NOTSET, logging.CRITICAL),
        (logging.WARNING, logging.CRITICAL),
        (logging.INFO, logging.INFO),
        (logging.DEBUG, logging.DEBUG),
    ],
)
def test_orbax_is_quiet_unless_asked_to_speak(level: int, within: int) -> None:
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(level)
    try:
        with quiet_orbax():
            assert logger.level == within
        assert logger.level == level
    finally:
        logger.setLevel(before)


def test_of_orbax_arrays_come_to_where_the_template_has_them(tmp_path: Path) -> None:
    state = TrainState.from_legacy(trained(), exact=False)
    whole: Any = jax.tree.map(lambda x: jnp.stack([x] * 2), state)
    checkpoints.save_checkpoint(tmp_path, whole, 2)
    restored: Any = restore_checkpoint(tmp_path, fresh())
    assert_taken_over(restored)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(restored))
