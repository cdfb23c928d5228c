"""Transformations of plain arrays from configs, which can be compared and proved."""

from typing import Any

import jax
import optax

from optax_bridge import ExactTransformation
from optax_bridge.metadata.trees import OptState, Params, Updates
from optax_bridge.spmd.config import ConfigBase, maybe_instantiate
from optax_bridge.spmd.layer import ParameterSpec
from optax_bridge.spmd.learner import BaseLearner
from optax_bridge.spmd.optimizers.data import OptParam, PartitionedGradientTransformation
from optax_bridge.spmd.optimizers.from_optax import ExactPartitionedTransformation
from optax_bridge.spmd.trainer.state import learner_transformation


def transformation_of(config: object) -> Any:
    """Returns what takes the steps of a config: of a trainer's its learner.

    Args:
      config: of a trainer, a learner or an optimizer; or a `PartitionedGradientTransformation`.

    Returns:
      A transformation of Optax, exact where the optimizer is; anything else that the config makes,
      such as a definition of `legacy_optim`, unchanged.
    """
    if isinstance(config, ConfigBase) and isinstance(getattr(config, "learner", None), ConfigBase):
        config = config.learner
    if isinstance(config, BaseLearner.Config):
        return _of_learner(config.clone(name="learner").instantiate(parent=None))
    optimizer: Any = maybe_instantiate(config)
    if isinstance(optimizer, PartitionedGradientTransformation):
        return _of_partitioned(optimizer)
    return optimizer


def _of_learner(learner: BaseLearner) -> ExactTransformation:
    def of(params: Params) -> ExactTransformation:
        specs = jax.tree.map(
            lambda x: ParameterSpec(shape=x.shape, dtype=x.dtype, mesh_axes=(None,) * x.ndim),
            params,
        )
        return learner_transformation(learner, specs)

    def update(grads: Updates, state: OptState, params: Params = None) -> tuple[Updates, OptState]:
        return of(params).update(grads, state, params)

    def step(grads: Updates, state: OptState, params: Params) -> tuple[Params, OptState]:
        return of(params).step(grads, state, params)

    return ExactTransformation(lambda params: of(params).init(params), update, step)


def _of_partitioned(tx: PartitionedGradientTransformation) -> optax.GradientTransformation:
    def with_no_roles(params: Params) -> Params:
        return jax.tree.map(lambda value: OptParam(value, None, None), params)

    def init(params: Params) -> OptState:
        return tx.init(with_no_roles(params))

    def update(
        updates: Updates, state: OptState, params: Params = None
    ) -> tuple[Updates, OptState]:
        return tx.update(updates, state, with_no_roles(params))

    if not isinstance(tx, ExactPartitionedTransformation):
        return optax.GradientTransformation(init, update)
    exact = tx.step

    def step(grads: Updates, state: OptState, params: Params) -> tuple[Params, OptState]:
        return exact(grads, state, with_no_roles(params))

    return ExactTransformation(init, update, step)
