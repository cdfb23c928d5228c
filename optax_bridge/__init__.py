"""Legacy `flax.optim` optimizers on Optax, with the training unchanged."""

import importlib
from typing import TYPE_CHECKING, Any

from optax_bridge.arguments import accepted_arguments as accepted_arguments
from optax_bridge.axis_metadata import add_axis as add_axis
from optax_bridge.axis_metadata import remove_axis as remove_axis
from optax_bridge.boxed import with_axis_metadata as with_axis_metadata
from optax_bridge.conversion import from_legacy as from_legacy
from optax_bridge.conversion import wrap_definition as wrap_definition
from optax_bridge.factorization import FactoredPartitioned as FactoredPartitioned
from optax_bridge.factorization import Role as Role
from optax_bridge.factorization import with_roles as with_roles
from optax_bridge.masks import path_mask as path_mask
from optax_bridge.masks import traversal_mask as traversal_mask
from optax_bridge.multi_optimizer import MultiOptimizerState as MultiOptimizerState
from optax_bridge.multi_optimizer import frozen as frozen
from optax_bridge.multi_optimizer import group_counts as group_counts
from optax_bridge.multi_optimizer import multi_optimizer as multi_optimizer
from optax_bridge.optimizers.adabelief import AdaBeliefState as AdaBeliefState
from optax_bridge.optimizers.adabelief import adabelief as adabelief
from optax_bridge.optimizers.adabelief import scale_by_adabelief as scale_by_adabelief
from optax_bridge.optimizers.adadelta import AdadeltaState as AdadeltaState
from optax_bridge.optimizers.adadelta import adadelta as adadelta
from optax_bridge.optimizers.adadelta import scale_by_adadelta as scale_by_adadelta
from optax_bridge.optimizers.adafactor import AdafactorState as AdafactorState
from optax_bridge.optimizers.adafactor import adafactor as adafactor
from optax_bridge.optimizers.adagrad import AdagradState as AdagradState
from optax_bridge.optimizers.adagrad import adagrad as adagrad
from optax_bridge.optimizers.adagrad import scale_by_adagrad as scale_by_adagrad
from optax_bridge.optimizers.adam import AdamState as AdamState
from optax_bridge.optimizers.adam import adam as adam
from optax_bridge.optimizers.adam import scale_by_adam as scale_by_adam
from optax_bridge.optimizers.lamb import LambState as LambState
from optax_bridge.optimizers.lamb import lamb as lamb
from optax_bridge.optimizers.lamb import scale_by_lamb as scale_by_lamb
from optax_bridge.optimizers.lars import LarsState as LarsState
from optax_bridge.optimizers.lars import lars as lars
from optax_bridge.optimizers.momentum import MomentumState as MomentumState
from optax_bridge.optimizers.momentum import momentum as momentum
from optax_bridge.optimizers.rmsprop import RMSPropState as RMSPropState
from optax_bridge.optimizers.rmsprop import rmsprop as rmsprop
from optax_bridge.optimizers.rmsprop import scale_by_rmsprop as scale_by_rmsprop
from optax_bridge.optimizers.sgd import SgdState as SgdState
from optax_bridge.optimizers.sgd import sgd as sgd
from optax_bridge.optimizers.weight_norm import WeightNormState as WeightNormState
from optax_bridge.optimizers.weight_norm import weight_norm as weight_norm
from optax_bridge.restoring import restored_into as restored_into
from optax_bridge.train_state import TrainState as TrainState
from optax_bridge.transformation import ExactTransformation as ExactTransformation

if TYPE_CHECKING:
    from optax_bridge.checkpoints import CheckpointError as CheckpointError
    from optax_bridge.checkpoints import convert_state as convert_state
    from optax_bridge.entry import UnsupportedSetting as UnsupportedSetting
    from optax_bridge.full_train_state import FullTrainState as FullTrainState
    from optax_bridge.sharding import opt_state_shardings as opt_state_shardings
    from optax_bridge.sharding import param_shardings as param_shardings
    from optax_bridge.sharding import state_shardings as state_shardings

# Imported when first asked for: importing the package costs little more than importing Optax.
_LATER = {
    "CheckpointError": "checkpoints",
    "FullTrainState": "full_train_state",
    "UnsupportedSetting": "entry",
    "convert_state": "checkpoints",
    "opt_state_shardings": "sharding",
    "param_shardings": "sharding",
    "state_shardings": "sharding",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"optax_bridge.{_LATER[name]}"), name)
    if name == "correspondence":
        return importlib.import_module("optax_bridge.correspondence")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
