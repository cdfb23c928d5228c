"""Checkpoints: those that `flax.optim` wrote come along, with moments and step, and go back."""

from optax_bridge.checkpoints.api import convert_state as convert_state
from optax_bridge.checkpoints.errors import CheckpointError as CheckpointError
from optax_bridge.checkpoints.read import Read as Read
from optax_bridge.checkpoints.read import read_checkpoint as read_checkpoint
from optax_bridge.checkpoints.transfer import convert_file as convert_file
