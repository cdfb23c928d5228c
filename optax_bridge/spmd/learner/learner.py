"""The learner: gradients, the optimizer's step, in-place updates, the average of parameters."""

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
from optax_bridge.spmd.learner.data import (
    BackwardOutputs,
    ForwardBackwardOutputs,
    ForwardFn,
    ForwardOutputs,
    ForwardPass,
    Updates,
    mask_tree,
)
from optax_bridge.spmd.learner.transformations import LearnerModule, Optimizer, as_learner_config
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.optimizers.averages import param_ema
from optax_bridge.spmd.optimizers.data import global_norm, opt_param_values
from optax_bridge.spmd.optimizers.scaling import rms
from optax_bridge.spmd.trees import (
    expand_vdicts,
    flatten_items,
    is_none,
    match_regex_rules,
    prune_empty,
    register_per_param_settings,
    tree_paths,
    vectorized_tree_map,
)


class UpdateType(enum.Enum):
    """What may change a parameter.

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
    """Whether the optimizer changes parameters of this type."""
    return update_type in (UpdateType.OPTIMIZERS, UpdateType.ALL_UPDATES)


def should_apply_state_updates(update_type: UpdateType) -> bool:
    """Whether state updates of the forward pass change parameters of this type."""
    return update_type in (UpdateType.STATE_UPDATES, UpdateType.ALL_UPDATES)


class Learner(LearnerModule):
    """Takes steps: forward, backward, optimizer, state updates, average of the parameters.

    Its state is {"optimizer": ...}, and "ema" if an average is kept.
    """

    @config_class
    class Config(LearnerModule.Config):
        """Configures Learner.

        Attributes:
          optimizer: a config of a `LearnerModule`, a transformation, one of Optax, or a config of
            one: `config_for_function(optax_bridge.adam).set(learning_rate=1e-3)`.
          update_rules: pairs of a regular expression for whole '/'-joined paths and what may
            change the parameter; the first that fits, `UpdateType.ALL_UPDATES` if none does.
          ema: the average of the parameters, none while its `decay` is None.
          enable_per_variable_summaries: True: root mean squares of parameters and gradients, one
            by one; or paths: the norm of the gradients at and below each.
          forward_fn_transformation: applied to the forward function, or a config of it;
            `with_minibatch_steps(...)`, say.
          ignore_undefined_loss: whether training goes on when the loss is not finite.
          norm_summaries: adds `gradient_norm` and `update_norm` over all parameters; None is yes
            in a trainer, no elsewhere.
        """

        optimizer: Required[ConfigOr[Optimizer]] = REQUIRED
        update_rules: Sequence[tuple[str, UpdateType]] = []
        ema: InstantiableConfig = config_for_function(param_ema)
        enable_per_variable_summaries: bool | Sequence[str] = False
        forward_fn_transformation: ConfigOr[Callable[[ForwardFn], ForwardFn]] | None = None
        ignore_undefined_loss: bool = False
        norm_summaries: bool | None = None

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._rules = [(rule, UpdateType(update_type)) for rule, update_type in cfg.update_rules]
        self._add_child("optimizer", as_learner_config(cfg.optimizer))
        self.ema = None if cfg.ema.decay is None else maybe_instantiate(cfg.ema)
        self._transform_forward_fn = maybe_instantiate(cfg.forward_fn_transformation)

    def handles_undefined_loss(self) -> bool:
        """Whether training goes on when the loss is not finite."""
        return self._config.ignore_undefined_loss

    def create_state_partition_specs(self, model_param_specs: PyTree) -> OptState:
        """Specs of the state; what the optimizer does not update is None for it."""
        keep = self.should_update_with_optimizers(model_param_specs)
        optimized = mask_tree(model_param_specs, keep=keep, mask_value=None)
        specs = {"optimizer": self.optimizer.create_state_partition_specs(optimized)}
        if self.ema is not None:
            specs["ema"] = self.ema.partition(model_param_specs)
        return specs

    def init(self, model_params: Params) -> OptState:
        """The state at the start; what the optimizer does not update is None for it."""
        keep = self.should_update_with_optimizers(model_params)
        optimized = mask_tree(model_params, keep=keep, mask_value=None)
        state = {"optimizer": self.optimizer.init(optimized)}
        if self.ema is not None:
            state["ema"] = self.ema.init(model_params)
        return state

    def should_update_with_optimizers(self, model_params: Params) -> PyTree:
        """For each parameter whether the optimizer changes it."""
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
        own = updates.replace(
            opt_params=mask_tree(updates.opt_params, keep=keep, mask_value=None),
            delta_updates=mask_tree(updates.delta_updates, keep=keep, mask_value=None),
        )
        self._add_variable_summaries(values, own.delta_updates)
        transformed = self.optimizer(own)
        new_params = _stepped(values, transformed)
        in_place = self._permitted(transformed.inplace_updates or {})
        new_params = _apply_updates(new_params, in_place)
        if self._config.norm_summaries:
            self.add_summary("gradient_norm", global_norm(own.delta_updates))
            self.add_summary("update_norm", global_norm(transformed.delta_updates))
        if self.ema is not None:
            _, ema_state = self.ema.update({}, self.state["ema"], new_params)
            self.add_state_update("ema", ema_state)
        return new_params

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
        updates = _value_and_grad(
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

    def _permitted(self, in_place: PyTree) -> PyTree:
        """The in-place updates that rules permit."""
        in_place = prune_empty(in_place)
        kept = jax.tree.map(should_apply_state_updates, self._update_types(in_place))
        return prune_empty(jax.tree.map(lambda keep, value: value if keep else {}, kept, in_place))

    def _add_variable_summaries(self, values: Params, grads: PyTree) -> None:
        wanted = self._config.enable_per_variable_summaries
        if wanted is False:
            return
        if wanted is not True:
            items = flatten_items(grads)
            for prefix in wanted:
                folder = prefix.rstrip("/")
                below = [leaf for path, leaf in items if f"{path}/".startswith(f"{folder}/")]
                self.add_summary(f"grad_norm/{prefix}", global_norm(below))
            return
        for name, tree in {"param_rms": values, "grad_rms": grads}.items():
            norms = vectorized_tree_map(lambda x: jnp.maximum(rms(x), 1e-3), tree)
            for path, norm in flatten_items(expand_vdicts(norms)):
                self.add_summary(f"{name}/{path}", norm)


def _stepped(values: Params, updates: Updates) -> Params:
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


def _apply_updates(base: PyTree, updates: PyTree) -> PyTree:
    """Puts updates into nested dicts.

    Args:
      base: nested dicts; changed in place.
      updates: nested dicts of some of the same keys, or of new ones. Where either side has an
        `optax.MaskedNode()`, nothing changes.

    Returns:
      `base`.
    """
    if isinstance(base, optax.MaskedNode) or isinstance(updates, optax.MaskedNode):
        return base
    if not isinstance(base, dict) or not isinstance(updates, dict):
        return updates
    for key, value in updates.items():
        base[key] = _apply_updates(base[key], value) if key in base else value
    return base


def _split_gradients(
    fun: ForwardFn, *, should_compute_gradients: PyTree
) -> tuple[ForwardFn, Callable[[Params], tuple[Params, Params]]]:
    """Separates the parameters that are differentiated from the others.

    Args:
      fun: a forward function.
      should_compute_gradients: a tree of bools like the parameters.

    Returns:
      A forward function of the former, whose inputs are (the latter, the inputs of `fun`); and the
      function that makes both of the parameters, None standing for what the other one has.
    """

    def split(params: Params) -> tuple[PyTree, PyTree]:
        others = jax.tree.map(lambda keep: not keep, should_compute_gradients)
        return (
            mask_tree(params, keep=should_compute_gradients, mask_value=None),
            mask_tree(params, keep=others, mask_value=None),
        )

    def split_fun(*, model_params: Params, inputs: PyTree) -> ForwardOutputs:
        rest, inputs = inputs
        whole = jax.tree.map(
            lambda one, other: other if one is None else one,
            model_params,
            rest,
            is_leaf=is_none,
        )
        return fun(model_params=whole, inputs=inputs)

    return split_fun, split


def _value_and_grad(
    fun: ForwardFn, *, opt_params: Params, inputs: PyTree, should_compute_gradients: PyTree = None
) -> Updates:
    """Runs a forward function and its gradient.

    Args:
      fun: the forward function.
      opt_params: `OptParam`s.
      inputs: inputs of `fun`.
      should_compute_gradients: a tree of bools like the parameters, None for all.

    Returns:
      Updates with the gradients, None where there are none, the forward pass's state updates
      in place, and the forward pass itself as "default".
    """
    if should_compute_gradients is None:
        should_compute_gradients = jax.tree.map(lambda _: True, opt_params)
    split_fun, split = _split_gradients(fun, should_compute_gradients=should_compute_gradients)
    model_params, others = split(opt_param_values(opt_params))
    split_inputs = (others, inputs)

    def loss_and_outputs(model_params: Params, inputs: PyTree) -> tuple[jax.Array, ForwardOutputs]:
        outputs = split_fun(model_params=model_params, inputs=inputs)
        return outputs.loss, outputs

    (_, outputs), grads = jax.value_and_grad(loss_and_outputs, has_aux=True)(
        model_params, split_inputs
    )
    return Updates(
        opt_params=opt_params,
        delta_updates=grads,
        inplace_updates=outputs.output_collection.state_updates,
        forward_pass={
            "default": ForwardPass(
                forward_fn=split_fun,
                inputs=split_inputs,
                model_params=model_params,
                outputs=outputs,
            )
        },
    )
