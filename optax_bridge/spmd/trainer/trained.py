# pyright: strict
"""What the loop of a training asks of a trainer."""

from typing import Any, Protocol

import jax

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.checkpointer import BaseCheckpointer
from optax_bridge.spmd.evaler import SpmdEvaler
from optax_bridge.spmd.input import Input
from optax_bridge.spmd.learner import Learner
from optax_bridge.spmd.summaries import BaseWriter
from optax_bridge.spmd.trainer.state import TrainerState


class Trained(Protocol):
    """A state that takes steps, and what is run between these; see `SpmdTrainer`."""

    @property
    def config(self) -> Any:
        """A copy of the trainer's config."""
        ...

    @property
    def input(self) -> Input:
        """Batches of the training."""
        ...

    @property
    def learner(self) -> Learner:
        """The learner."""
        ...

    @property
    def checkpointer(self) -> BaseCheckpointer:
        """What saves the state."""
        ...

    @property
    def summary_writer(self) -> BaseWriter:
        """What writes summaries of the training."""
        ...

    @property
    def evalers(self) -> dict[str, SpmdEvaler]:
        """The evalers by name."""
        ...

    @property
    def step(self) -> int | None:
        """Steps taken; None before there is a state."""
        ...

    @property
    def trainer_state(self) -> TrainerState | None:
        """The state as it is saved; None before there is one."""
        ...

    def begin(self, prng_key: jax.Array) -> None:
        """Makes the first state."""
        ...

    def restore_checkpoint(self, restore_step: int | None = None) -> int | None:
        """Restores the newest checkpoint, or that of a step."""
        ...

    def input_iterator(self) -> Any:
        """The iterator of the input; the same one throughout a run."""
        ...

    def take_step(self, host_batch: PyTree) -> dict[str, Any]:
        """Begins the next step with this process's part of a batch."""
        ...

    def saved_state(self) -> dict[str, Any]:
        """What a checkpoint of now would have."""
        ...

    def model_params_for_eval(self) -> Params:
        """The parameters that evalers see."""
        ...
