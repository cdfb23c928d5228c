"""Transformations of updates, as modules: the optimizer of a learner is one."""

import logging
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

import legacy_optim
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigOr,
    InstantiableConfig,
    Required,
    config_class,
    maybe_instantiate,
)
from optax_bridge.spmd.learner.gradients import Updates, mask_tree, merge_dicts
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    count_spec,
    map_updates,
)
from optax_bridge.spmd.optimizers.from_optax import (
    ExactPartitionedTransformation,
    Transformation,
    as_partitioned,
    climbs,
)
from optax_bridge.spmd.trees import prune_empty, tree_paths

_log = logging.getLogger(__name__)


class LearnerModule(Module):
    """A part of a learner: it has a state, and specs for it."""

    def create_state_partition_specs(self, model_param_specs: PyTree) -> OptState:
        """The specs of the state, from those of the parameters."""
        raise NotImplementedError(f"{type(self).__name__}.create_state_partition_specs")

    def init(self, model_params: Params) -> OptState:
        """The state at the start, from `OptParam`s."""
        raise NotImplementedError(f"{type(self).__name__}.init")


class UpdateTransformation(LearnerModule):
    """A module that transforms updates; calling it is `transform_update`."""

    def forward(self, updates: Updates) -> Updates:
        """The same as `transform_update`."""
        return self.transform_update(updates)

    def transform_update(self, updates: Updates) -> Updates:
        """The transformed updates; the new state goes out as a state update."""
        raise NotImplementedError(f"{type(self).__name__}.transform_update")


# A learner's optimizer: its config is wrapped where it makes no `LearnerModule`.
Optimizer = (
    LearnerModule
    | PartitionedGradientTransformation
    | optax.GradientTransformation
    | legacy_optim.OptimizerDef
)


class WrappedPartitionedGradientTransformation(UpdateTransformation):
    """A transformation of gradients as a module: its state is the transformation's own."""

    @config_class
    class Config(UpdateTransformation.Config):
        """Configures WrappedPartitionedGradientTransformation."""

        transformation: Required[Transformation] = REQUIRED

    def __init__(self, cfg: Config, *, parent: Module | None):
        """Makes the transformation.

        Raises:
          ValueError: it is no transformation, or has no learning rate.
        """
        super().__init__(cfg, parent=parent)
        self.transformation = as_partitioned(cfg.transformation, self.path())
        self._climbs: bool | None = None  # not known before the parameters are

    def create_state_partition_specs(self, model_param_specs: PyTree) -> OptState:
        """The transformation's own specs."""
        if self._climbs is None:
            self._climbs = climbs(self.transformation, model_param_specs)
            if self._climbs:
                _log.warning(
                    "%s: its steps have the gradient's sign, so the loss will climb. With "
                    "learning_rate=None Optax's optimizers have neither rate nor sign, like "
                    "scale_by_adam and its other parts: set a learning rate, or chain "
                    "optax.scale_by_learning_rate after it.",
                    self.path(),
                )
        return self.transformation.partition(model_param_specs)

    def init(self, model_params: Params) -> OptState:
        """The transformation's own state."""
        return self.transformation.init(model_params)

    def transform_update(self, updates: Updates) -> Updates:
        """Updates with the transformation, by its own step if it has one."""
        grads, params = updates.delta_updates, updates.opt_params
        if isinstance(self.transformation, ExactPartitionedTransformation):
            values, state = self.transformation.step(grads, self.state, params)
            deltas = jax.tree.map(jnp.subtract, values, updates.param_values())
            new = updates.replace(delta_updates=deltas, new_values=values)
        else:
            deltas, state = self.transformation.update(grads, self.state, params)
            new = updates.replace(delta_updates=deltas, new_values=None)
        self.get_invocation_context().set_state_update(state)
        return new


class OverrideInplaceUpdateTransformation(WrappedPartitionedGradientTransformation):
    """Uses some gradients as new values, such as those of quantisation scales.

    They become in-place updates, and the transformation keeps no state for them.
    """

    @config_class
    class Config(WrappedPartitionedGradientTransformation.Config):
        """Configures OverrideInplaceUpdateTransformation."""

        rules: Required[Sequence[str]] = REQUIRED

    def create_state_partition_specs(self, model_param_specs: PyTree) -> OptState:
        """The transformation's specs, without those of parameters that are overridden."""
        return super().create_state_partition_specs(self._without_overridden(model_param_specs))

    def init(self, model_params: Params) -> OptState:
        """The transformation's state, without that of overridden parameters."""
        return super().init(self._without_overridden(model_params))

    def transform_update(self, updates: Updates) -> Updates:
        """Updates by the transformation; an overridden one is an in-place update as well."""
        overridden = self._is_overridden(updates.opt_params)
        gradients = updates.delta_updates
        new = super().transform_update(
            updates.mask(
                lambda tree: jax.tree.map(lambda o: not o, overridden),
                fields=("opt_params", "delta_updates"),
            )
        )

        def pick(is_overridden: bool, gradient: Leaf, transformed: Leaf) -> Leaf:
            return gradient if is_overridden else transformed

        in_place = merge_dicts(
            new.inplace_updates or {},
            prune_empty(mask_tree(gradients, keep=overridden, mask_value={})),
        )
        deltas = jax.tree.map(pick, overridden, gradients, new.delta_updates)
        values = new.new_values
        if values is not None:
            values = jax.tree.map(pick, overridden, updates.param_values(), values)
        return new.replace(delta_updates=deltas, inplace_updates=in_place, new_values=values)

    def _is_overridden(self, params: Params) -> PyTree:
        rules = [re.compile(rule) for rule in self.config.rules]
        return jax.tree.map(lambda path: any(r.fullmatch(path) for r in rules), tree_paths(params))

    def _without_overridden(self, params: Params) -> Params:
        return jax.tree.map(
            lambda is_overridden, param: optax.MaskedNode() if is_overridden else param,
            self._is_overridden(params),
            params,
        )


class UpdateScheduleState(NamedTuple):
    """Part of the state of `ConditionalUpdateTransformation`."""

    count: Leaf


class ConditionalUpdateTransformation(UpdateTransformation):
    """Updates at some steps only; at the others nothing moves, the inner state neither."""

    @config_class
    class Config(UpdateTransformation.Config):
        """Configures ConditionalUpdateTransformation."""

        inner: Required[ConfigOr[Optimizer]] = REQUIRED
        update_schedule: ConfigOr[Callable[[jax.Array], ArrayLike]] | None = None

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._add_child("inner", as_learner_config(cfg.inner))
        self._schedule = maybe_instantiate(cfg.update_schedule)

    def create_state_partition_specs(self, model_param_specs: PyTree) -> OptState:
        """Specs of the count and of the inner state."""
        return {
            "should_update": UpdateScheduleState(count=count_spec()),
            "inner": self.inner.create_state_partition_specs(model_param_specs),
        }

    def init(self, model_params: Params) -> OptState:
        """The count and the inner state."""
        return {
            "should_update": UpdateScheduleState(count=jnp.zeros([], jnp.int32)),
            "inner": self.inner.init(model_params),
        }

    def transform_update(self, updates: Updates) -> Updates:
        """The inner updates, or zeros.

        Raises:
          NotImplementedError: there are in-place updates.
        """
        old = self.state
        count = old["should_update"].count
        new = self.inner(updates)
        if prune_empty(new.inplace_updates or {}):
            raise NotImplementedError(
                f"{self.path()}: in-place updates cannot be held back: {new.inplace_updates.keys()}"
            )
        state_updates = self.get_invocation_context().get_state_updates()
        now = True if self._schedule is None else self._schedule(count)

        def pick(taken: PyTree, not_taken: PyTree) -> PyTree:
            return jax.lax.cond(now, lambda: taken, lambda: not_taken)

        zeros = map_updates(jnp.zeros_like, new.delta_updates)
        values = new.new_values
        if values is not None:
            values = pick(values, updates.param_values())
        self.add_state_update("inner", pick(state_updates["inner"], old["inner"]))
        self.add_state_update("should_update", UpdateScheduleState(optax.safe_increment(count)))
        return new.replace(delta_updates=pick(new.delta_updates, zeros), new_values=values)


def as_learner_config(cfg: ConfigOr[Optimizer]) -> InstantiableConfig:
    """The config of a `LearnerModule`; around anything else the wrapper's config."""
    if isinstance(cfg, InstantiableConfig) and issubclass(
        getattr(cfg, "klass", None) or object, LearnerModule
    ):
        return cfg
    wrapper = WrappedPartitionedGradientTransformation.default_config()
    return wrapper.set(transformation=cfg)
