"""Gradients of a forward function, with respect to some of its parameters."""

from collections.abc import Callable

import jax

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.learner.data import (
    ForwardFn,
    ForwardOutputs,
    ForwardPass,
    Updates,
    mask_tree,
)
from optax_bridge.spmd.optimizers.data import opt_param_values
from optax_bridge.spmd.trees import is_none


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
