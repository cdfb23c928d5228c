"""Learners: they take a model's parameters from one step to the next."""

from optax_bridge.spmd.learner.gradients import BackwardOutputs as BackwardOutputs
from optax_bridge.spmd.learner.gradients import ForwardBackwardOutputs as ForwardBackwardOutputs
from optax_bridge.spmd.learner.gradients import ForwardFn as ForwardFn
from optax_bridge.spmd.learner.gradients import ForwardOutputs as ForwardOutputs
from optax_bridge.spmd.learner.gradients import ForwardPass as ForwardPass
from optax_bridge.spmd.learner.gradients import Updates as Updates
from optax_bridge.spmd.learner.gradients import _apply_updates as _apply_updates
from optax_bridge.spmd.learner.gradients import mask_tree as mask_tree
from optax_bridge.spmd.learner.gradients import with_minibatch_steps as with_minibatch_steps
from optax_bridge.spmd.learner.learner import BaseLearner as BaseLearner
from optax_bridge.spmd.learner.learner import CompositeLearner as CompositeLearner
from optax_bridge.spmd.learner.learner import Learner as Learner
from optax_bridge.spmd.learner.learner import UpdateType as UpdateType
from optax_bridge.spmd.learner.learner import (
    should_update_with_optimizers as should_update_with_optimizers,
)
from optax_bridge.spmd.learner.transformations import (
    ConditionalUpdateTransformation as ConditionalUpdateTransformation,
)
from optax_bridge.spmd.learner.transformations import LearnerModule as LearnerModule
from optax_bridge.spmd.learner.transformations import (
    OverrideInplaceUpdateTransformation as OverrideInplaceUpdateTransformation,
)
from optax_bridge.spmd.learner.transformations import UpdateTransformation as UpdateTransformation
from optax_bridge.spmd.learner.transformations import (
    WrappedPartitionedGradientTransformation as WrappedPartitionedGradientTransformation,
)
