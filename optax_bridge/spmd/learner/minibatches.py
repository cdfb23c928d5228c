"""Gradient accumulation: a batch in several parts, one after another, and one step."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr, maybe_instantiate
from optax_bridge.spmd.learner.data import ForwardFn, ForwardOutputs
from optax_bridge.spmd.metrics import MetricAccumulator, is_summary
from optax_bridge.spmd.trees import flatten_items

_KEYS = ("forward_key", "param_noise_key")


def with_minibatch_steps(
    *,
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

    def one(params: Params, minibatch: PyTree) -> tuple[jax.Array, ForwardOutputs]:
        outputs = fn(model_params=params, inputs=minibatch)
        return outputs.loss, outputs

    @jax.custom_vjp
    def run(params: Params) -> tuple[PyTree, PyTree]:
        return _scan(lambda m: (one(params, m)[1], ()), minibatches, ())[0]

    def forward(params: Params) -> tuple[PyTree, Updates]:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, sum_dtype), params)
        grad = jax.value_and_grad(one, has_aux=True)

        def step(minibatch: PyTree) -> tuple[ForwardOutputs, Updates]:
            (_, outputs), grads = grad(params, minibatch)
            return outputs, grads

        outputs, total = _scan(step, minibatches, zeros)
        return outputs, jax.tree.map(lambda g, p: (g / steps).astype(p.dtype), total, params)

    def backward(grads: Updates, cotangents: PyTree) -> tuple[Updates]:
        return (jax.tree.map(lambda g: (g * cotangents[0].loss).astype(g.dtype), grads),)

    run.defvjp(forward, backward)
    return run


def _scan(
    step: Callable[[PyTree], tuple[ForwardOutputs, Updates]], minibatches: PyTree, zeros: PyTree
) -> tuple[tuple[PyTree, PyTree], Updates]:
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

    def cut(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(size // steps, steps, *x.shape[1:]), 1, 0)

    keys = {name: jax.random.split(inputs[name], steps) for name in _KEYS if name in inputs}
    return {"input_batch": jax.tree.map(cut, inputs["input_batch"]), **keys}
