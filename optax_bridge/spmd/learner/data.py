"""The inputs and outputs of a learner's step, and its gradients."""

from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import optax
from flax import struct

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.layer import ParameterSpec
from optax_bridge.spmd.optimizers.data import opt_param_values
from optax_bridge.spmd.trees import is_none


class ForwardOutputs(struct.PyTreeNode):
    """The outputs of a forward function.

    Attributes:
      loss: a scalar.
      aux: what else the model returns.
      output_collection: summaries, state updates and module outputs of the forward pass.
    """

    loss: PyTree
    aux: PyTree
    output_collection: PyTree


class ForwardFn(Protocol):
    """A forward function, called by keywords."""

    def __call__(self, *, model_params: Params, inputs: PyTree) -> ForwardOutputs:
        """Computes the loss of inputs under parameters."""
        ...


class ForwardPass(struct.PyTreeNode):
    """A forward pass that was made, so that it can be made again.

    Attributes:
      forward_fn: the forward function; static.
      inputs: its inputs.
      model_params: its parameters.
      outputs: what it returned.
    """

    forward_fn: ForwardFn = struct.field(pytree_node=False)
    inputs: PyTree
    model_params: Params
    outputs: ForwardOutputs


class BackwardOutputs(struct.PyTreeNode):
    """The outputs of the backward pass and the update.

    Attributes:
      updated_params: the new parameters.
    """

    updated_params: Params


class ForwardBackwardOutputs(struct.PyTreeNode):
    """The outputs of `Learner.forward_and_backward`.

    Attributes:
      forward_outputs: of the forward function.
      backward_outputs: of the update.
    """

    forward_outputs: ForwardOutputs
    backward_outputs: BackwardOutputs


class Updates(struct.PyTreeNode):
    """The trees that a learner's update works on; None or `optax.MaskedNode()` is no parameter.

    Attributes:
      opt_params: `OptParam`s, the values before the step.
      delta_updates: gradients at first; what is added to the values at last.
      inplace_updates: new values that replace parameters, by nested dicts like theirs.
      forward_pass: name -> a forward pass of this step.
      new_values: the values after the step, where the transformation computes them itself; then
        `delta_updates` is the difference.
    """

    opt_params: Params
    delta_updates: PyTree = None
    inplace_updates: PyTree = None
    forward_pass: dict[str, ForwardPass] = struct.field(default_factory=dict)
    new_values: Params = None

    def param_values(self) -> Params:
        """The values of `opt_params`."""
        return opt_param_values(self.opt_params)

    def param_specs(self) -> PyTree:
        """`ParameterSpec`s of `opt_params`."""
        return jax.tree.map(
            lambda param: ParameterSpec(
                shape=param.shape,
                dtype=param.dtype,
                factorization=param.factorization_spec,
                weight_decay_scale=param.weight_decay_scale,
            ),
            self.opt_params,
        )

    def mask(
        self,
        keep: Callable[[PyTree], PyTree],
        *,
        fields: Sequence[str] = ("opt_params", "delta_updates", "inplace_updates"),
    ) -> "Updates":
        """The updates with `optax.MaskedNode()` for what is not kept.

        Args:
          keep: a function from a field's tree to a prefix of it, of bools.
          fields: the fields to mask; those that are None stay so.
        """
        masked = {}
        for name in fields:
            tree = getattr(self, name)
            if tree is not None:
                masked[name] = jax.tree.map(
                    lambda keep_subtree, subtree: subtree if keep_subtree else optax.MaskedNode(),
                    keep(tree),
                    tree,
                )
        return self.replace(**masked)


def merge_dicts(base: PyTree, updates: PyTree) -> PyTree:
    """Two trees of nested dicts as one: what is in both is of the updates."""
    if not isinstance(base, dict) or not isinstance(updates, dict):
        return updates
    new = dict(base)
    for key, value in updates.items():
        new[key] = merge_dicts(base[key], value) if key in base else value
    return type(base)(new)


def mask_tree(tree: PyTree, *, keep: PyTree, mask_value: PyTree) -> PyTree:
    """A tree with another value where it is not kept.

    Args:
      tree: a tree; None is a leaf of it.
      keep: a tree like it, of bools; None is taken for False.
      mask_value: the other value.
    """
    return jax.tree.map(
        lambda leaf, keep_leaf: leaf if keep_leaf else mask_value, tree, keep, is_leaf=is_none
    )


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
        all_params = jax.tree.map(
            lambda one, other: other if one is None else one,
            model_params,
            rest,
            is_leaf=is_none,
        )
        return fun(model_params=all_params, inputs=inputs)

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
      Updates with the gradients, None in place of missing ones, the forward pass's state updates
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
