"""The inputs and outputs of a learner's step, and its gradients, in one pass or several."""

from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.config import ConfigOr, maybe_instantiate
from optax_bridge.spmd.layer import ParameterSpec
from optax_bridge.spmd.metrics import MetricAccumulator, is_summary
from optax_bridge.spmd.optimizers.data import opt_param_values
from optax_bridge.spmd.trees import flatten_items, is_none


class ForwardOutputs(struct.PyTreeNode):
    """The outputs of a forward function.

    Attributes:
      loss: a scalar.
      aux: anything else that the model returns.
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
      outputs: its outputs.
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
      delta_updates: gradients at first; at last the differences to add to the values.
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
        """The updates with `optax.MaskedNode()` in place of all others.

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


def _apply_updates(base: PyTree, updates: PyTree) -> PyTree:
    """Puts updates into nested dicts."""
    if isinstance(base, optax.MaskedNode) or isinstance(updates, optax.MaskedNode):
        return base
    if not isinstance(base, dict) or not isinstance(updates, dict):
        return updates
    for key, value in updates.items():
        base[key] = _apply_updates(base[key], value) if key in base else value
    return base


def merge_dicts(base: PyTree, updates: PyTree) -> PyTree:
    """A copy of a tree of nested dicts with updates in it, as `_apply_updates` puts them there."""
    return _apply_updates(jax.tree.map(lambda leaf: leaf, base), updates)


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


def value_and_grad(
    fun: ForwardFn, *, opt_params: Params, inputs: PyTree, should_compute_gradients: PyTree
) -> Updates:
    """Runs a forward function, and its gradient by the parameters that are to have one."""
    params = opt_param_values(opt_params)
    fixed = jax.tree.map(lambda keep: not keep, should_compute_gradients)
    model_params = mask_tree(params, keep=should_compute_gradients, mask_value=None)
    split_inputs = (mask_tree(params, keep=fixed, mask_value=None), inputs)

    def split_fun(*, model_params: Params, inputs: PyTree) -> ForwardOutputs:
        others, inputs = inputs
        all_params = jax.tree.map(
            lambda value, constant: constant if value is None else value,
            model_params,
            others,
            is_leaf=is_none,
        )
        return fun(model_params=all_params, inputs=inputs)

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


_KEYS = ("forward_key", "param_noise_key")


def with_minibatch_steps(
    steps: int,
    metric_accumulator: ConfigOr[MetricAccumulator] = MetricAccumulator.default_config(),  # noqa: B008
    grad_dtype: DTypeLike | None = None,
) -> Callable[[ForwardFn], ForwardFn]:
    """A decorator of forward functions, for a learner's `forward_fn_transformation`.

    Memory is that of one minibatch. Example i of the batch is in minibatch `i % steps`, so that
    each device keeps its part of every minibatch.

    Args:
      steps: how many minibatches a batch is cut into.
      metric_accumulator: accumulates `Summary`s; all other outputs are averaged.
      grad_dtype: in which gradients are summed, None for float32.

    Returns:
      The decorator; inputs of the function are {"input_batch", "forward_key", "param_noise_key"},
      and both keys are split for the minibatches.

    Raises:
      ValueError: `steps` is not above 0. When called: the batch is empty, its arrays differ in
        their first axis, or `steps` does not divide it.
    """
    if steps <= 0:
        raise ValueError(f"with_minibatch_steps: steps must be above 0, found {steps}")
    sum_dtype = jnp.float32 if grad_dtype is None else grad_dtype

    def decorator(fn: ForwardFn) -> ForwardFn:
        def accumulate(*, model_params: Params, inputs: PyTree) -> ForwardOutputs:
            minibatches = _cut(inputs, steps)

            run = _with_summed_gradients(fn, minibatches, steps, sum_dtype)
            means, stacked = run(model_params)
            return _with_summaries(means, stacked, steps, metric_accumulator)

        return accumulate

    return decorator


def _with_summed_gradients(
    fn: ForwardFn, minibatches: PyTree, steps: int, sum_dtype: DTypeLike
) -> Callable[[Params], tuple[PyTree, PyTree]]:
    """Returns a function of the parameters whose gradient is that of its forward scan."""

    def loss_of(params: Params, minibatch: PyTree) -> tuple[jax.Array, ForwardOutputs]:
        outputs = fn(model_params=params, inputs=minibatch)
        return outputs.loss, outputs

    @jax.custom_vjp
    def run(params: Params) -> tuple[PyTree, PyTree]:
        return _scan(lambda m: (loss_of(params, m)[1], ()), minibatches, ())[0]

    def forward(params: Params) -> tuple[PyTree, PyTree]:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, sum_dtype), params)
        grad = jax.value_and_grad(loss_of, has_aux=True)

        def step(minibatch: PyTree) -> tuple[ForwardOutputs, PyTree]:
            (_, outputs), grads = grad(params, minibatch)
            return outputs, grads

        outputs, total = _scan(step, minibatches, zeros)
        return outputs, jax.tree.map(lambda g, p: (g / steps).astype(p.dtype), total, params)

    def backward(grads: PyTree, cotangents: PyTree) -> tuple[PyTree]:
        return (jax.tree.map(lambda g: (g * cotangents[0].loss).astype(g.dtype), grads),)

    run.defvjp(forward, backward)
    return run


def _scan(
    step: Callable[[PyTree], tuple[ForwardOutputs, PyTree]], minibatches: PyTree, zeros: PyTree
) -> tuple[tuple[PyTree, PyTree], PyTree]:
    """Runs all minibatches: ((means of the outputs, stacked summaries), sums of the gradients)."""
    first = jax.tree.map(lambda x: x[0], minibatches)
    count = len(jax.tree.leaves(minibatches)[0])
    shapes = jax.eval_shape(lambda m: _without_summaries(step(m)[0])[0], first)
    sums = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def body(carry: PyTree, minibatch: PyTree) -> tuple[PyTree, PyTree]:
        sums, grads = carry
        outputs, new = step(minibatch)
        values, summaries = _without_summaries(outputs)
        sums = jax.tree.map(jnp.add, sums, values)
        grads = jax.tree.map(lambda total, g: total + g.astype(total.dtype), grads, new)
        return (sums, grads), summaries

    (sums, grads), stacked = jax.lax.scan(body, (sums, zeros), minibatches)
    means = jax.tree.map(lambda total: (total / count).astype(total.dtype), sums)
    return (means, stacked), grads


def _without_summaries(outputs: PyTree) -> tuple[PyTree, PyTree]:
    """Outputs without `Summary`s, and these alone; None for the others."""
    values = jax.tree.map(lambda x: None if is_summary(x) else x, outputs, is_leaf=is_summary)
    summaries = jax.tree.map(lambda x: x if is_summary(x) else None, outputs, is_leaf=is_summary)
    return values, summaries


def _with_summaries(
    means: PyTree, stacked: PyTree, steps: int, config: ConfigOr[MetricAccumulator]
) -> ForwardOutputs:
    accumulator = maybe_instantiate(config)
    for index in range(steps):
        accumulator.update(jax.tree.map(lambda x, i=index: x[i], stacked))
    return jax.tree.map(
        lambda mean, summary: mean if summary is None else summary,
        means,
        accumulator.summaries(),
        is_leaf=lambda x: x is None or is_summary(x),
    )


def _cut(inputs: dict[str, PyTree], steps: int) -> dict[str, PyTree]:
    """The inputs of all minibatches, stacked."""
    items = flatten_items(inputs["input_batch"])
    if not items:
        raise ValueError("with_minibatch_steps: the input batch is empty")
    sizes = {path: jnp.shape(leaf)[:1] for path, leaf in items}
    if len(set(sizes.values())) != 1 or () in sizes.values():
        raise ValueError(
            f"with_minibatch_steps: arrays with the same first axis expected, found {sizes}"
        )
    ((size,),) = set(sizes.values())
    if size == 0 or size % steps:
        raise ValueError(
            f"with_minibatch_steps: a batch of {size} examples cannot be cut into {steps} "
            f"minibatches ({items[0][0]!r}). Make the batch a multiple of {steps}."
        )
    keys = {name: jax.random.split(inputs[name], steps) for name in _KEYS if name in inputs}
    batch = optax.microbatching.reshape_batch_axis(inputs["input_batch"], size // steps)
    return {"input_batch": batch, **keys}
