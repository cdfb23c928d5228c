# pyright: strict
"""Checkpoints of a training: when they are saved, their content, which of them stay."""

from optax_bridge.spmd.checkpointer.checkpointer import BaseCheckpointer as BaseCheckpointer
from optax_bridge.spmd.checkpointer.checkpointer import Checkpointer as Checkpointer
from optax_bridge.spmd.checkpointer.checkpointer import parse_step as parse_step
from optax_bridge.spmd.checkpointer.checkpointer import read_index as read_index
from optax_bridge.spmd.checkpointer.checkpointer import read_state_spec as read_state_spec
from optax_bridge.spmd.checkpointer.handlers import (
    DamagedCheckpointError as DamagedCheckpointError,
)
from optax_bridge.spmd.checkpointer.handlers import MissingPositionError as MissingPositionError
from optax_bridge.spmd.checkpointer.policies import BestMetricPolicy as BestMetricPolicy
from optax_bridge.spmd.checkpointer.policies import CheckpointPolicy as CheckpointPolicy
from optax_bridge.spmd.checkpointer.policies import EvalMetric as EvalMetric
from optax_bridge.spmd.checkpointer.policies import (
    every_n_steps_and_last_policy as every_n_steps_and_last_policy,
)
from optax_bridge.spmd.checkpointer.policies import every_n_steps_policy as every_n_steps_policy
from optax_bridge.spmd.checkpointer.structure import (
    CheckpointValidationType as CheckpointValidationType,
)
from optax_bridge.spmd.checkpointer.structure import check_state_structure as check_state_structure
