# pyright: strict
"""The trainer, its state, its mesh."""

from optax_bridge.spmd.launch import setup as setup
from optax_bridge.spmd.mesh import HybridMeshShape as HybridMeshShape
from optax_bridge.spmd.mesh import create_device_mesh as create_device_mesh
from optax_bridge.spmd.mesh import infer_mesh_shape as infer_mesh_shape
from optax_bridge.spmd.mesh import select_mesh_config as select_mesh_config
from optax_bridge.spmd.trainer.base import BaseTrainer as BaseTrainer
from optax_bridge.spmd.trainer.legacy import legacy_checkpoint as legacy_checkpoint
from optax_bridge.spmd.trainer.loop import SavingError as SavingError
from optax_bridge.spmd.trainer.loop import UndefinedLossException as UndefinedLossException
from optax_bridge.spmd.trainer.state import SpmdTrainState as SpmdTrainState
from optax_bridge.spmd.trainer.state import TrainerState as TrainerState
from optax_bridge.spmd.trainer.state import learner_transformation as learner_transformation
from optax_bridge.spmd.trainer.trainer import SpmdTrainer as SpmdTrainer
