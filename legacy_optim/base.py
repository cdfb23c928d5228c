"""Definitions, optimizers and their states: `flax.optim.base` on today's JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import jax_utils, serialization, struct

from legacy_optim.deprecation import say_once
from legacy_optim.new_names import ATTRIBUTES
from legacy_optim.older_layout import grouped_states, merge_groups, refuse_older_weight_norm
from legacy_optim.structure import flattened_like, leaves_by_path
from legacy_optim.traverse_util import ModelParamTraversal as ModelParamTraversal
from legacy_optim.traverse_util import Traversal, check_disjoint, leaf_indices
from legacy_optim.typing import (
    Array,
    LossFunction,
    Override,
    Params,
    PyTree,
    Scalar,
    StateDict,
    Updates,
)


@struct.dataclass
class OptimizerState:
    """State of an optimizer.

    Attributes:
      step: steps taken, int32 scalar.
      param_states: a tree like the parameters with the optimizer's own state in place of each;
        `None` where a `MultiOptimizer` leaves a parameter alone.
    """

    step: Any
    param_states: PyTree


class OptimizerDef:
    """An optimizer apart from the parameters: its rule and its hyper-parameters.

    A subclass defines `init_param_state` and `apply_param_gradient`, both for a single parameter.

    Attributes:
      hyper_params: a flax dataclass (something with `replace`) of the hyper-parameters.
    """

    def __init__(self, hyper_params: Any):
        _check_no_text(type(self).__name__, hyper_params)
        self.hyper_params = hyper_params
        say_once(
            "flax.optim was removed in flax 0.6 (FLIP 1009); legacy_optim keeps it running. To "
            "move on, optax_bridge.from_legacy(definition) returns the same optimizer on Optax, "
            "with the same numbers, as `optax-bridge check` shows."
        )

    def init_param_state(self, param: jax.Array) -> Any:
        """The initial state for one parameter."""
        raise NotImplementedError(f"{type(self).__name__} must define init_param_state(param)")

    def apply_param_gradient(
        self, step: Scalar, hyper_params: Any, param: Array, state: Any, grad: Array
    ) -> tuple[Array, Any]:
        """Takes a step for one parameter.

        Args:
          step: steps taken so far, int32 scalar.
          hyper_params: the hyper-parameters of this step.
          param: the parameter.
          state: its state.
          grad: its gradient.

        Returns:
          The new parameter and its new state.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define apply_param_gradient(step, hyper_params, param, "
            "state, grad)"
        )

    def init_state(self, params: Params) -> OptimizerState:
        """The state at step 0 for a tree of parameters."""
        return OptimizerState(
            jnp.asarray(0, jnp.int32), jax.tree.map(self.init_param_state, params)
        )

    def apply_gradient(
        self, hyper_params: Any, params: Params, state: OptimizerState, grads: Updates
    ) -> tuple[Params, OptimizerState]:
        """Takes a step for a tree of parameters.

        Args:
          hyper_params: the hyper-parameters of this step.
          params: the parameters.
          state: their state.
          grads: gradients, a tree like `params`.

        Returns:
          The new parameters and the new state.

        Raises:
          ValueError: `grads` or the state is not a tree like `params`.
        """
        leaves, treedef = jax.tree.flatten(params)
        states = flattened_like(treedef, state.param_states, "optimizer.state.param_states")
        gradients = flattened_like(treedef, grads, "grads")
        stepped = [
            self.apply_param_gradient(state.step, hyper_params, *row)
            for row in zip(leaves, states, gradients, strict=True)
        ]
        new_params = treedef.unflatten([param for param, _ in stepped])
        new_states = treedef.unflatten([param_state for _, param_state in stepped])
        return new_params, OptimizerState(state.step + 1, new_states)

    def update_hyper_params(self, **hyper_param_overrides: Override) -> Any:
        """The hyper-parameters of one step.

        Args:
          **hyper_param_overrides: values that replace those of the definition; `hyper_params=`
            replaces all of them first.

        Raises:
          TypeError: an override that is not a hyper-parameter.
        """
        hyper_params = hyper_param_overrides.pop("hyper_params", self.hyper_params)
        return self._override(hyper_params, hyper_param_overrides)

    def _override(self, hyper_params: Any, overrides: Mapping[str, Override]) -> Any:
        """Hyper-parameters with some of them replaced."""
        if not overrides:
            return hyper_params
        names = getattr(hyper_params, "__dataclass_fields__", overrides)
        unknown = sorted(set(overrides) - set(names))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no hyper-parameter {', '.join(unknown)}; it has "
                f"{', '.join(names)}"
            )
        replaced = hyper_params.replace(**overrides)
        _check_no_text(type(self).__name__, replaced)
        return replaced

    def create(self, target: Params, focus: Traversal | None = None) -> "Optimizer":
        """An optimizer for a target.

        Args:
          target: the parameters, any pytree.
          focus: a traversal of the parameters to optimize; all of them if None.
        """
        definition = MultiOptimizer((focus, self)) if focus else self
        return Optimizer(definition, definition.init_state(target), target)

    def state_dict(self, target: Params, state: OptimizerState) -> StateDict:
        """Target and state as nested dicts, the layout of checkpoints."""
        return {
            "target": serialization.to_state_dict(target),
            "state": serialization.to_state_dict(state),
        }

    def restore_state(
        self, opt_target: Params, opt_state: OptimizerState, state_dict: StateDict
    ) -> tuple[Params, PyTree]:
        """Returns target and state from a dict of `state_dict`.

        Args:
          opt_target: a target of the right structure.
          opt_state: a state of the right structure.
          state_dict: nested dicts with `target` and `state`.

        Raises:
          ValueError: a state of an older release that no later one can continue.
        """
        refuse_older_weight_norm(state_dict["state"])
        return (
            serialization.from_state_dict(opt_target, state_dict["target"]),
            serialization.from_state_dict(opt_state, state_dict["state"]),
        )


class _NoAux:
    """Marks a loss function without auxiliary output."""


class Optimizer(struct.PyTreeNode):
    """A target together with the optimizer that improves it.

        >>> definition = legacy_optim.GradientDescent(learning_rate=0.5)
        >>> optimizer = definition.create(jnp.array([2.0, 4.0]))
        >>> grads = jax.grad(lambda w: jnp.sum(w**2) / 2)(optimizer.target)
        >>> optimizer.apply_gradient(grads).target.tolist()
        [1.0, 2.0]

    Attributes:
      optimizer_def: the definition; static.
      state: the optimizer's state.
      target: the parameters.
    """

    optimizer_def: OptimizerDef = struct.field(pytree_node=False)
    state: Any = struct.field(pytree_node=True)
    target: Params = struct.field(pytree_node=True)

    def __getattr__(self, name: str) -> Any:
        """Raises an error that names flax.optim's equivalent of a TrainState's attribute."""
        if name in ATTRIBUTES and not hasattr(type(self), name):
            message = (
                f"{type(self).__name__!r} object has no attribute {name!r}, which a TrainState "
                f"has: {ATTRIBUTES[name]}"
            )
            raise AttributeError(message, name=name, obj=self)
        return object.__getattribute__(self, name)  # raises as ever

    def apply_gradient(self, grads: Updates, **hyper_param_overrides: Override) -> "Optimizer":
        """Takes a step.

        Args:
          grads: gradients, a tree like `target`.
          **hyper_param_overrides: hyper-parameters for this step alone, e.g. `learning_rate=`;
            `hyper_params=` replaces all of them.

        Returns:
          The optimizer after the step.
        """
        hyper_params = self.optimizer_def.update_hyper_params(**hyper_param_overrides)
        target, state = self.optimizer_def.apply_gradient(
            hyper_params, self.target, self.state, grads
        )
        return self.replace(target=target, state=state)

    def compute_gradient(self, loss_fn: LossFunction) -> tuple[PyTree, ...]:
        """Loss and gradient at the target.

        Args:
          loss_fn: from the target to a loss, or to a loss and auxiliary output.

        Returns:
          Loss, auxiliary output if there is any, gradient.
        """
        say_once(
            "compute_gradient is deprecated: use jax.value_and_grad(loss_fn)(optimizer.target)."
        )

        def with_aux(target: Params) -> tuple[Array, PyTree]:
            out = loss_fn(target)
            return (out, _NoAux) if isinstance(out, jax.Array) else out

        (loss, aux), grad = jax.value_and_grad(with_aux, has_aux=True)(self.target)
        return (loss, grad) if aux is _NoAux else (loss, aux, grad)

    compute_gradients = compute_gradient

    def optimize(
        self, loss_fn: LossFunction, **hyper_param_overrides: Override
    ) -> tuple[PyTree, ...]:
        """Takes a step down a loss function.

        Args:
          loss_fn: as for `compute_gradient`.
          **hyper_param_overrides: as for `apply_gradient`.

        Returns:
          The optimizer after the step, the loss, auxiliary output if there is any.
        """
        say_once(
            "optimize is deprecated: use jax.value_and_grad and then "
            "optimizer.apply_gradient(grads)."
        )
        *loss_and_aux, grad = self.compute_gradient(loss_fn)
        return (self.apply_gradient(grad, **hyper_param_overrides), *loss_and_aux)

    def replicate(
        self, devices: Sequence[Any] | None = None, axis_name: str = "batch"
    ) -> "Optimizer":
        """Copies the optimizer to several devices, for use under `jax.pmap`.

        Args:
          devices: the devices; all local ones if None.
          axis_name: axis of the pmap over which `apply_gradient` will average the gradients.
        """
        say_once(
            "Optimizer.replicate is deprecated: use flax.jax_utils.replicate(optimizer), and "
            "average the gradients in the step with jax.lax.pmean."
        )
        devices = jax.local_devices() if devices is None else devices
        definition = ReplicatedOptimizer(self.optimizer_def, devices, axis_name)
        return jax_utils.replicate(self, devices=devices).replace(optimizer_def=definition)

    def unreplicate(self) -> "Optimizer":
        """The first device's copy of a replicated optimizer.

        Raises:
          ValueError: it was not replicated.
        """
        if not isinstance(self.optimizer_def, ReplicatedOptimizer):
            raise ValueError(
                f"Cannot unreplicate an optimizer that is not replicated: its definition is a "
                f"{type(self.optimizer_def).__name__}. For one from flax.jax_utils.replicate, use "
                "flax.jax_utils.unreplicate"
            )
        return jax_utils.unreplicate(self).replace(optimizer_def=self.optimizer_def.optimizer_def)

    def state_dict(self) -> StateDict:
        """The optimizer as nested dicts, the layout of checkpoints."""
        return self.optimizer_def.state_dict(self.target, self.state)

    def restore_state(self, state: StateDict) -> "Optimizer":
        """Returns this optimizer with target and state from a dict of `state_dict`."""
        target, new_state = self.optimizer_def.restore_state(self.target, self.state, state)
        return self.replace(target=target, state=new_state)


# Checkpoints go through the definition, which knows e.g. that a replicated optimizer is saved once.
serialization.register_serialization_state(
    Optimizer, Optimizer.state_dict, Optimizer.restore_state, override=True
)


class ReplicatedOptimizer(OptimizerDef):
    """A definition whose gradients are averaged over the devices of a `jax.pmap` first."""

    def __init__(
        self,
        optimizer_def: OptimizerDef,
        devices: Sequence[Any] | None = None,
        axis_name: str = "batch",
    ):
        super().__init__(optimizer_def.hyper_params)
        self.optimizer_def = optimizer_def
        self.devices = jax.local_devices() if devices is None else devices
        self.axis_name = axis_name

    def init_state(self, params: Params) -> OptimizerState:
        return self.optimizer_def.init_state(params)

    def apply_gradient(
        self, hyper_params: Any, params: Params, state: OptimizerState, grads: Updates
    ) -> tuple[Params, OptimizerState]:
        copies = jax.lax.psum(1, self.axis_name)
        grads = jax.tree.map(lambda g: jax.lax.psum(g, self.axis_name) / copies, grads)
        return self.optimizer_def.apply_gradient(hyper_params, params, state, grads)

    def update_hyper_params(self, **hyper_param_overrides: Override) -> Any:
        return self.optimizer_def.update_hyper_params(**hyper_param_overrides)

    def state_dict(self, target: Params, state: OptimizerState) -> StateDict:
        return jax.tree.map(lambda x: x[0], self.optimizer_def.state_dict(target, state))

    def restore_state(
        self, opt_target: Params, opt_state: OptimizerState, state_dict: StateDict
    ) -> tuple[Params, PyTree]:
        copies = jax_utils.replicate(dict(state_dict), devices=self.devices)
        return self.optimizer_def.restore_state(opt_target, opt_state, copies)


class MultiOptimizer(OptimizerDef):
    """Gives each group of parameters its own optimizer.

        >>> kernels = legacy_optim.ModelParamTraversal(lambda path, _: path.endswith("kernel"))
        >>> definition = MultiOptimizer((kernels, legacy_optim.GradientDescent(0.5)))
        >>> optimizer = definition.create({"kernel": jnp.ones(2), "bias": jnp.ones(2)})
        >>> optimizer = optimizer.apply_gradient(optimizer.target)
        >>> {name: leaf.tolist() for name, leaf in optimizer.target.items()}
        {'bias': [1.0, 1.0], 'kernel': [0.5, 0.5]}

    Parameters that no traversal selects keep their value, and have `None` as their state.

    Attributes:
      traversals: one for each group.
      sub_optimizers: the definition of each group.
      hyper_params: the list of their hyper-parameters.
    """

    def __init__(self, *traversals_and_optimizers: tuple[Traversal, OptimizerDef]):
        if not traversals_and_optimizers:
            raise ValueError("MultiOptimizer needs at least one pair (traversal, optimizer)")
        self.traversals, self.sub_optimizers = zip(*traversals_and_optimizers, strict=True)
        super().__init__([definition.hyper_params for definition in self.sub_optimizers])

    def init_state(self, params: Params) -> OptimizerState:
        leaves, treedef = jax.tree.flatten(params)
        states: list[Any] = [None] * len(leaves)
        groups = self._groups(params)
        check_disjoint(params, groups)
        for group, definition in zip(groups, self.sub_optimizers, strict=True):
            part = definition.init_state(tuple(leaves[i] for i in group))
            for index, state in zip(group, part.param_states, strict=True):
                states[index] = state
        return OptimizerState(jnp.asarray(0, jnp.int32), treedef.unflatten(states))

    def restore_state(
        self, opt_target: Params, opt_state: OptimizerState, state_dict: StateDict
    ) -> tuple[Params, PyTree]:
        """Target and state, also from the layout of up to flax 0.3.2: one state for each group."""
        groups = grouped_states(state_dict["state"])
        if groups is not None:
            state = merge_groups(groups, self._groups(opt_target), opt_target)
            state_dict = {**state_dict, "state": state}
        return super().restore_state(opt_target, opt_state, state_dict)

    def apply_gradient(
        self,
        hyper_params: Sequence[Any],
        params: Params,
        state: OptimizerState,
        grads: Updates,
    ) -> tuple[Params, OptimizerState]:
        self._check_count(hyper_params)
        leaves, treedef = jax.tree.flatten(params)
        groups = self._groups(params)
        gradients = leaves_by_path(params, grads, {i for group in groups for i in group}, "grads")
        old = flattened_like(treedef, state.param_states, "optimizer.state.param_states")
        new_leaves, states = list(leaves), [None] * len(leaves)
        parts = zip(groups, self.sub_optimizers, hyper_params, strict=True)
        for group, definition, hyper_param in parts:
            chosen, chosen_states, chosen_grads = (
                tuple(column[i] for i in group) for column in (leaves, old, gradients)
            )
            part = OptimizerState(state.step, chosen_states)
            stepped, part = definition.apply_gradient(hyper_param, chosen, part, chosen_grads)
            for index, leaf, param_state in zip(group, stepped, part.param_states, strict=True):
                new_leaves[index], states[index] = leaf, param_state
        new_state = OptimizerState(state.step + 1, treedef.unflatten(states))
        return treedef.unflatten(new_leaves), new_state

    def _override(self, hyper_params: Any, overrides: Mapping[str, Override]) -> list[Any]:
        """Overrides go to every group; `hyper_params=[...]` gives each group its own."""
        self._check_count(hyper_params)
        pairs = zip(self.sub_optimizers, hyper_params, strict=True)
        return [definition._override(group, overrides) for definition, group in pairs]

    def _check_count(self, hyper_params: Any) -> None:
        expected = len(self.sub_optimizers)
        if isinstance(hyper_params, Sequence) and len(hyper_params) == expected:
            return
        problem = (
            f"has {len(hyper_params)} entries"
            if isinstance(hyper_params, Sequence)
            else f"is a {type(hyper_params).__name__}"
        )
        raise ValueError(
            f"hyper_params {problem} for {expected} optimizers: give a list with one for each, "
            "e.g. [hp.replace(learning_rate=lr) for hp in optimizer.optimizer_def.hyper_params]"
        )

    def _groups(self, params: Params) -> list[list[int]]:
        return [leaf_indices(traversal, params) for traversal in self.traversals]


def require_learning_rate(definition: OptimizerDef, hyper_params: Any) -> Scalar:
    """The learning rate of a step."""
    if hyper_params.learning_rate is None:
        name = type(definition).__name__
        raise ValueError(
            f"{name}: no learning rate provided. Give it to the constructor, "
            f"{name}(learning_rate=...), or to each step, optimizer.apply_gradient(grads, "
            "learning_rate=...)"
        )
    if callable(hyper_params.learning_rate):
        raise TypeError(
            f"{type(definition).__name__}(learning_rate=...): expected a number, found a function; "
            "flax.optim has no schedules, so pass the rate to each step: "
            "optimizer.apply_gradient(grads, learning_rate=schedule(step))"
        )
    return hyper_params.learning_rate


def _check_no_text(definition: str, hyper_params: Any) -> None:
    """Refuses a string where this package's hyper-parameters are numbers."""
    fields = getattr(hyper_params, "__dataclass_fields__", {}).values()
    for field in fields:
        value = getattr(hyper_params, field.name, None)
        if field.type in (Scalar, Scalar | None) and isinstance(value, str):
            raise TypeError(
                f"{definition}({field.name}={value!r}): expected a number, found a string; write "
                f"{definition}({field.name}=float({value!r})), or the number itself"
            )
