"""Learners: gradients, the optimizer's step, in-place updates, the average of parameters."""

import enum
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from optax_bridge.metadata.trees import OptState, Params, PyTree
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigOr,
    InstantiableConfig,
    Required,
    config_class,
    config_for_function,
    maybe_instantiate,
)
from optax_bridge.spmd.learner.gradients import (
    BackwardOutputs,
    ForwardBackwardOutputs,
    ForwardFn,
    Updates,
    _apply_updates,
    mask_tree,
    value_and_grad,
)
from optax_bridge.spmd.learner.transformations import LearnerModule, Optimizer, as_learner_config
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.optimizers.scaling import rms
from optax_bridge.spmd.optimizers.statistics import param_ema
from optax_bridge.spmd.trees import (
    expand_vdicts,
    flatten_items,
    is_none,
    match_regex_rules,
    prune_empty,
    register_per_param_settings,
    tree_paths,
    vectorized_tree_map,
    warn_of_unused_rules,
)


class UpdateType(enum.Enum):
    """The changes that are allowed for a parameter.

    Attributes:
      NO_UPDATE: nothing.
      OPTIMIZERS: the optimizer.
      STATE_UPDATES: state updates of the forward pass.
      ALL_UPDATES: both.
    """

    NO_UPDATE = "no_update"
    OPTIMIZERS = "optimizers"
    STATE_UPDATES = "state_updates"
    ALL_UPDATES = "all_updates"


def should_update_with_optimizers(update_type: UpdateType) -> bool:
    """True if the optimizer changes parameters of this type."""
    return update_type in (UpdateType.OPTIMIZERS, UpdateType.ALL_UPDATES)


def should_apply_state_updates(update_type: UpdateType) -> bool:
    """True if state updates of the forward pass change parameters of this type."""
    return update_type in (UpdateType.STATE_UPDATES, UpdateType.ALL_UPDATES)


class BaseLearner(LearnerModule):
    """The base of learners: forward, backward, and the average of the parameters."""

    @config_class
    class Config(LearnerModule.Config):
        """Configures BaseLearner."""

        ema: InstantiableConfig = config_for_function(param_ema)
        forward_fn_transformation: ConfigOr[Callable[[ForwardFn], ForwardFn]] | None = None
        norm_summaries: bool | None = None

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self.ema = None if cfg.ema.decay is None else maybe_instantiate(cfg.ema)
        self._transform_forward_fn = maybe_instantiate(cfg.forward_fn_transformation)

    def create_state_partition_specs(self, model_param_specs: PyTree) -> OptState:
        """Specs of the state: of its parts by name, and of the average."""
        specs = self._by_part("create_state_partition_specs", model_param_specs)
        return (
            specs if self.ema is None else {**specs, "ema": self.ema.partition(model_param_specs)}
        )

    def init(self, model_params: Params) -> OptState:
        """The state at the start: of its parts by name, and of the average."""
        state = self._by_part("init", model_params)
        return state if self.ema is None else {**state, "ema": self.ema.init(model_params)}

    def _by_part(self, method: str, tree: PyTree) -> dict[str, PyTree]:
        """Returns the result of a method for each part's own parameters, by name."""
        raise NotImplementedError(f"{type(self).__name__}._by_part")

    def handles_undefined_loss(self) -> bool:
        """True if training continues when the loss is not finite."""
        raise NotImplementedError(f"{type(self).__name__}.handles_undefined_loss")

    def should_update_with_optimizers(self, model_params: Params) -> PyTree:
        """Returns for each parameter True if an optimizer changes it."""
        raise NotImplementedError(f"{type(self).__name__}.should_update_with_optimizers")

    def update(self, updates: Updates) -> Params:
        """Takes a step; the new state goes out as state updates."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def forward_and_backward(
        self, *, fn: ForwardFn, inputs: PyTree, opt_params: Params
    ) -> ForwardBackwardOutputs:
        """Computes loss and gradients, and takes a step.

        Args:
          fn: the forward function.
          inputs: its inputs.
          opt_params: `OptParam`s; gradients are computed only for those that are to be updated.

        Returns:
          Outputs of the forward pass, and the new parameters.
        """
        if self._transform_forward_fn is not None:
            fn = self._transform_forward_fn(fn)
        updates = value_and_grad(
            fn,
            opt_params=opt_params,
            inputs=inputs,
            should_compute_gradients=self.should_update_with_optimizers(opt_params),
        )
        updated_params = self.update(updates)
        return ForwardBackwardOutputs(
            forward_outputs=updates.forward_pass["default"].outputs,
            backward_outputs=BackwardOutputs(updated_params=updated_params),
        )

    def _add_norms(self, grads: PyTree, deltas: PyTree) -> None:
        if self._config.norm_summaries:
            self.add_summary("gradient_norm", optax.tree.norm(grads))
            self.add_summary("update_norm", optax.tree.norm(deltas))

    def _update_ema(self, new_params: Params) -> None:
        if self.ema is not None:
            _, ema_state = self.ema.update({}, self.state["ema"], new_params)
            self.add_state_update("ema", ema_state)


class Learner(BaseLearner):
    """Takes steps: forward, backward, optimizer, state updates, average of the parameters.

    Its state is {"optimizer": ...}, and "ema" if an average is kept.
    """

    @config_class
    class Config(BaseLearner.Config):
        """Configures Learner."""

        optimizer: Required[ConfigOr[Optimizer]] = REQUIRED
        update_rules: Sequence[tuple[str, UpdateType]] = []
        enable_per_variable_summaries: bool | Sequence[str] = False
        ignore_undefined_loss: bool = False

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._rules = [(rule, UpdateType(update_type)) for rule, update_type in cfg.update_rules]
        self._add_child("optimizer", as_learner_config(cfg.optimizer))

    def handles_undefined_loss(self) -> bool:
        """True if training continues when the loss is not finite."""
        return self._config.ignore_undefined_loss

    def _by_part(self, method: str, tree: PyTree) -> dict[str, PyTree]:
        """Returns the optimizer's; a parameter that it does not update is None for it."""
        warn_of_unused_rules(self._config.update_rules, tree, f"{self.path()}.update_rules")
        keep = self.should_update_with_optimizers(tree)
        optimized = mask_tree(tree, keep=keep, mask_value=None)
        return {"optimizer": getattr(self.optimizer, method)(optimized)}

    def should_update_with_optimizers(self, model_params: Params) -> PyTree:
        """Returns for each parameter True if the optimizer changes it."""
        return jax.tree.map(should_update_with_optimizers, self._update_types(model_params))

    def update(self, updates: Updates) -> Params:
        """Takes a step.

        Args:
          updates: parameters, gradients and in-place updates.

        Returns:
          The new parameters; the new state goes out as state updates.
        """
        keep = self.should_update_with_optimizers(updates.opt_params)
        values = updates.param_values()
        optimizer_updates = updates.replace(
            opt_params=mask_tree(updates.opt_params, keep=keep, mask_value=None),
            delta_updates=mask_tree(updates.delta_updates, keep=keep, mask_value=None),
        )
        self._add_variable_summaries(values, optimizer_updates.delta_updates)
        transformed = self.optimizer(optimizer_updates)
        new_params = _step(values, transformed)
        in_place = self._permit(transformed.inplace_updates or {})
        new_params = _apply_updates(new_params, in_place)
        self._add_norms(optimizer_updates.delta_updates, transformed.delta_updates)
        self._update_ema(new_params)
        return new_params

    def _update_types(self, tree: PyTree) -> PyTree:
        types = jax.tree.map(
            lambda path: match_regex_rules(
                path, rules=self._rules, default_value=UpdateType.ALL_UPDATES
            ),
            tree_paths(tree),
        )
        return register_per_param_settings(
            types, description="learner_update_type", path=self.path()
        )

    def _permit(self, in_place: PyTree) -> PyTree:
        """The in-place updates that rules permit."""
        in_place = prune_empty(in_place)
        permitted = jax.tree.map(should_apply_state_updates, self._update_types(in_place))
        return prune_empty(
            jax.tree.map(lambda keep, value: value if keep else {}, permitted, in_place)
        )

    def _add_variable_summaries(self, values: Params, grads: PyTree) -> None:
        wanted = self._config.enable_per_variable_summaries
        if wanted is False:
            return
        if wanted is not True:
            items = flatten_items(grads)
            for prefix in wanted:
                folder = prefix.rstrip("/")
                below = [leaf for path, leaf in items if f"{path}/".startswith(f"{folder}/")]
                self.add_summary(f"grad_norm/{prefix}", optax.tree.norm(below))
            return
        for name, tree in {"param_rms": values, "grad_rms": grads}.items():
            norms = vectorized_tree_map(lambda x: jnp.maximum(rms(x), 1e-3), tree)
            for path, norm in flatten_items(expand_vdicts(norms)):
                self.add_summary(f"{name}/{path}", norm)


def _step(values: Params, updates: Updates) -> Params:
    """Parameters after the optimizer's step; those it does not update are as they were."""
    if updates.new_values is not None:
        return jax.tree.map(
            lambda new, old: old if new is None else new,
            updates.new_values,
            values,
            is_leaf=is_none,
        )
    deltas = jax.tree.map(
        lambda delta, value: jnp.zeros_like(value) if delta is None else delta,
        updates.delta_updates,
        values,
        is_leaf=is_none,
    )
    return optax.apply_updates(values, deltas)


class CompositeLearner(BaseLearner):
    """Gives each parameter to the learner that the rules name, all in one step.

    Its state has the state of each learner by name, and "ema" if an average is kept. A learner
    sees the whole tree, with `optax.MaskedNode()` for parameters of the others.
    """

    @config_class
    class Config(BaseLearner.Config):
        """Configures CompositeLearner."""

        learners: Required[dict[str, Learner.Config]] = REQUIRED
        rules: Required[Sequence[tuple[str, str]]] = REQUIRED

    def __init__(self, cfg: Config, *, parent: Module | None):
        """Makes the learners.

        Raises:
          ValueError: a rule names no learner, or a learner has a field of the whole.
        """
        super().__init__(cfg, parent=parent)
        for pattern, name in cfg.rules:
            if name not in cfg.learners:
                raise ValueError(
                    f"{self.path()}: rule {pattern!r}: {name!r} is not found in the known learners "
                    f"{sorted(cfg.learners)}"
                )
        for name, learner in cfg.learners.items():
            if name == "ema":
                raise ValueError(
                    f"{self.path()}: Sublearner name cannot be ema, a part of the state"
                )
            for field, value in (
                ("ema.decay", learner.ema.decay),
                ("forward_fn_transformation", learner.forward_fn_transformation),
            ):
                if value is not None:
                    raise ValueError(
                        f"{self.path()}: learner {name!r} has {field}, which is of all parameters: "
                        f"set it on {self.path()} itself"
                    )
            self._add_child(name, learner)

    def handles_undefined_loss(self) -> bool:
        """True if training continues when the loss is not finite, which takes all learners."""
        return all(learner.handles_undefined_loss() for learner in self._learners().values())

    def should_update_with_optimizers(self, model_params: Params) -> PyTree:
        """Returns for each parameter True if its learner's optimizer changes it."""
        by_learner = self._by_part("should_update_with_optimizers", model_params)
        items = {path: keep for tree in by_learner.values() for path, keep in flatten_items(tree)}
        return jax.tree.map(items.__getitem__, tree_paths(model_params))

    def update(self, updates: Updates) -> Params:
        """Takes a step of each learner.

        Args:
          updates: parameters, gradients and in-place updates.

        Returns:
          The new parameters; the new states go out as state updates.
        """
        owners = self._owners(updates.opt_params)
        values = updates.param_values()
        new_params = jax.tree.map(lambda value: value, values)  # other containers
        for name, learner in self._learners().items():
            is_owned = jax.tree.map(lambda owner, name=name: owner == name, owners)
            part = updates.mask(
                lambda _, mask=is_owned: mask, fields=("opt_params", "delta_updates")
            )
            part = part.mask(
                lambda tree, name=name: jax.tree.map(
                    lambda path: self._owner(path) == name, tree_paths(tree)
                ),
                fields=("inplace_updates",),
            )
            _apply_updates(new_params, learner.update(part))
        deltas = jax.tree.map(lambda new, old: new - old, new_params, values)
        self._add_norms(updates.delta_updates, deltas)
        self._update_ema(new_params)
        return new_params

    def _learners(self) -> dict[str, Learner]:
        return {name: getattr(self, name) for name in self._config.learners}

    def _owner(self, path: str) -> str:
        return match_regex_rules(path, rules=self._config.rules) or ""

    def _owners(self, tree: PyTree) -> PyTree:
        """Returns the name of the learner of each parameter."""
        owners = jax.tree.map(self._owner, tree_paths(tree))
        missing = [path for path, name in flatten_items(owners) if not name]
        if missing:
            raise ValueError(
                f"{self.path()}: Composite learner rules do not update all model params: none fits "
                f"{', '.join(missing)}. Add a rule; ('.*', name) fits all."
            )
        return register_per_param_settings(owners, description="learner_rule", path=self.path())

    def _by_part(self, method: str, tree: PyTree) -> dict[str, PyTree]:
        """Returns the result of a method for each learner's own parameters, by name."""
        warn_of_unused_rules(self._config.rules, tree, f"{self.path()}.rules")
        owners = self._owners(tree)
        results = {}
        for name, learner in self._learners().items():
            masked = jax.tree.map(
                lambda owner, leaf, name=name: leaf if owner == name else optax.MaskedNode(),
                owners,
                tree,
            )
            # Of the class, as a context of the learner can be entered only once, by `update`.
            results[name] = getattr(type(learner), method)(learner, masked)
        return results
