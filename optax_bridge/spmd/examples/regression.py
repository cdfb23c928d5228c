# pyright: strict
"""The smallest trainer: two linear layers learn a sine.

    optax-bridge train optax_bridge.spmd.examples.regression.trainer --dir run

It takes seconds, and shows everything that a trainer's config needs.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import optax_bridge
from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.checkpointer import Checkpointer, every_n_steps_and_last_policy
from optax_bridge.spmd.config import config_class, config_for_function
from optax_bridge.spmd.input import ArrayInput
from optax_bridge.spmd.layer import BaseModel, Dropout, Linear
from optax_bridge.spmd.learner import Learner
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.trainer import SpmdTrainer

FEATURES = 8


class Regression(BaseModel):
    """Two linear layers with a tangent between."""

    @config_class
    class Config(BaseModel.Config):
        """Configures Regression."""

        hidden: int = 16
        dropout: Dropout.Config = Dropout.default_config()

    def __init__(self, cfg: Config, *, parent: Module | None):
        """Makes the layers; their hidden axis is divided over the mesh's axis "model"."""
        super().__init__(cfg, parent=parent)
        first = Linear.default_config().set(input_dim=FEATURES, output_dim=cfg.hidden)
        second = Linear.default_config().set(input_dim=cfg.hidden, output_dim=1)
        self._add_child("first", first.set(param_partition_spec=(None, "model")))
        self._add_child("dropout", cfg.dropout)
        self._add_child("second", second.set(param_partition_spec=("model", None)))

    def forward(self, input_batch: PyTree) -> tuple[jax.Array, dict[str, PyTree]]:
        """The mean squared error."""
        hidden = self.dropout(jnp.tanh(self.first(input_batch["x"])))
        predicted = self.second(hidden)[:, 0]
        return jnp.mean(jnp.square(predicted - input_batch["y"])), {"predicted": predicted}


def samples(count: int = 256) -> dict[str, np.ndarray]:
    """Points, and the sine of the sum of their coordinates."""
    x = np.random.default_rng(0).normal(size=(count, FEATURES)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1))}


def trainer(
    *,
    steps: int = 100,
    save_every: int = 20,
    batch_size: int = 16,
    mesh_shape: Sequence[int] = (-1, 1),
) -> SpmdTrainer.Config:
    """The trainer's config."""
    save = config_for_function(every_n_steps_and_last_policy).set(n=save_every, max_step=steps)
    return SpmdTrainer.default_config().set(
        name="trainer",
        model=Regression.default_config().set(dtype=jnp.float32),
        input=ArrayInput.default_config().set(
            source=config_for_function(samples), global_batch_size=batch_size
        ),
        learner=Learner.default_config().set(
            optimizer=config_for_function(optax_bridge.adam).set(learning_rate=1e-2)
        ),
        mesh_shape=mesh_shape,
        mesh_axis_names=("data", "model"),
        max_step=steps,
        save_input_iterator=True,
        checkpointer=Checkpointer.default_config().set(save_policy=save),
    )
