"""Shared by tests of the trainer: the smallest training, and its losses."""

from pathlib import Path
from typing import Any

import jax

from optax_bridge.spmd.examples import regression

KEY = jax.random.PRNGKey(0)


def config(
    folder: Path,
    *,
    steps: int = 6,
    save_every: int = 2,
    mesh_shape: tuple[int, ...] = (2, 2),
    **kwargs: object,
) -> Any:
    """The config of a training in a folder, with some fields set."""
    cfg = regression.trainer(steps=steps, save_every=save_every, mesh_shape=mesh_shape)
    return cfg.set(dir=str(folder), **kwargs)


def run(cfg: Any, *, devices: int = 4, **kwargs: object) -> tuple[dict[int, float], Any]:
    """The losses of a run by step, and the trainer."""
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:devices])
    losses: dict[int, float] = {}
    trainer.add_listener(losses.__setitem__)
    trainer.run(KEY, **kwargs)
    return losses, trainer
