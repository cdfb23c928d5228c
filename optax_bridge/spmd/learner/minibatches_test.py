import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.learner import ForwardOutputs, Learner, with_minibatch_steps
from optax_bridge.spmd.metrics import MetricAccumulator, SumSummary, WeightedSummary
from optax_bridge.spmd.module import functional, new_output_collection
from optax_bridge.spmd.optimizers import OptParam

KEYS = {"forward_key": jax.random.PRNGKey(0), "param_noise_key": jax.random.PRNGKey(1)}
BATCH = {"x": jnp.arange(8.0)}


def forward(*, model_params, inputs):
    x = inputs["input_batch"]["x"]
    loss = jnp.mean((model_params["w"] * x - 1) ** 2)
    collection = new_output_collection()
    collection.summaries["first"] = SumSummary(x[0])
    collection.summaries["loss"] = WeightedSummary(loss, jnp.float32(len(x)))
    collection.summaries["plain"] = loss
    noise = sum(map(jax.random.uniform, (inputs["forward_key"], inputs["param_noise_key"])))
    return ForwardOutputs(loss=loss, aux={"noise": noise}, output_collection=collection)


def value_and_grad(fn, batch=BATCH, dtype=jnp.float32):
    def loss_fn(params):
        outputs = fn(model_params=params, inputs={"input_batch": batch, **KEYS})
        return outputs.loss, outputs

    return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))({"w": jnp.asarray(2, dtype)})


def test_the_mean_of_the_minibatches_is_that_of_the_batch():
    (loss, _), grads = value_and_grad(forward)
    by_position = with_minibatch_steps(4, MetricAccumulator.default_config())
    (accumulated, outputs), summed = value_and_grad(by_position(forward))
    assert float(accumulated) == pytest.approx(float(loss))
    np.testing.assert_allclose(summed["w"], grads["w"], rtol=1e-6)
    summaries = outputs.output_collection.summaries
    assert float(summaries["first"].value()) == 0 + 1 + 2 + 3  # example i is in minibatch i % 4
    assert float(summaries["loss"].mean) == pytest.approx(float(loss))
    assert float(summaries["loss"].weight) == 8
    assert float(summaries["plain"]) == pytest.approx(float(loss))
    keys = zip(*(jax.random.split(key, 4) for key in KEYS.values()), strict=True)
    mean = np.mean([float(jax.random.uniform(a) + jax.random.uniform(b)) for a, b in keys])
    assert float(outputs.aux["noise"]) == pytest.approx(float(mean))
    alone = with_minibatch_steps(steps=4)(forward)
    inputs = {"input_batch": BATCH, **KEYS}
    plain = jax.jit(lambda w: alone(model_params={"w": w}, inputs=inputs))(jnp.float32(2))
    assert float(plain.loss) == pytest.approx(float(loss))


def test_a_loss_that_is_scaled_scales_the_gradients():
    fn = with_minibatch_steps(steps=4)(forward)

    def scaled(*, model_params, inputs):
        outputs = fn(model_params=model_params, inputs=inputs)
        return outputs.replace(loss=3 * outputs.loss)

    np.testing.assert_allclose(
        value_and_grad(scaled)[1]["w"], 3 * value_and_grad(fn)[1]["w"], rtol=1e-6
    )


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_every_minibatch_counts_at_every_step(steps):
    """Powers of two, so that no sum is rounded: gradients, each minibatch's another."""
    batch = {"x": jnp.asarray([2.0**i for i in range(8)])}

    def linear(*, model_params, inputs):
        loss = jnp.mean(model_params["w"] * inputs["input_batch"]["x"])
        return ForwardOutputs(loss=loss, aux={}, output_collection=new_output_collection())

    sgd = config_for_function(optax.sgd).set(learning_rate=1.0)
    transform = with_minibatch_steps(steps=steps)
    cfg = Learner.default_config().set(
        name="learner", optimizer=sgd, forward_fn_transformation=transform
    )
    learner = cfg.instantiate(parent=None)

    @jax.jit
    def take_step(value):
        opt_params = {"w": OptParam(value, None, None)}
        outputs, _ = functional(
            learner,
            None,
            learner.init(opt_params),
            {"fn": linear, "inputs": {"input_batch": batch, **KEYS}, "opt_params": opt_params},
            method="forward_and_backward",
            is_training=True,
        )
        return outputs.backward_outputs.updated_params["w"]

    value = jnp.float32(0)
    for step in range(1, 7):
        value = take_step(value)
        assert float(value) == -step * 255 / 8


@pytest.mark.parametrize("param_dtype", ["float32", "float16"])
@pytest.mark.parametrize("grad_dtype, mean", [(None, 128.5), ("float32", 128.5), ("bfloat16", 128)])
def test_gradients_are_summed_in_the_dtype_asked_for(grad_dtype, mean, param_dtype):
    """256 + 1 is 256 in bfloat16."""

    def linear(*, model_params, inputs):
        loss = jnp.sum(model_params["w"] * inputs["input_batch"]["x"])
        return ForwardOutputs(loss=loss, aux={}, output_collection=new_output_collection())

    fn = with_minibatch_steps(steps=2, grad_dtype=grad_dtype)(linear)
    _, grads = value_and_grad(fn, {"x": jnp.asarray([256.0, 1.0], param_dtype)}, param_dtype)
    assert grads["w"].dtype == param_dtype and float(grads["w"]) == mean


@pytest.mark.parametrize(
    "batch, message",
    [
        ({}, "empty"),
        ({"x": jnp.ones(8), "y": jnp.ones(4)}, "same first axis"),
        ({"x": jnp.ones(6)}, "cannot be cut into 4"),
        ({"x": jnp.ones(0)}, "a batch of 0 examples"),
        ({"x": jnp.ones(())}, "same first axis"),
    ],
)
def test_batches_and_steps_that_cannot_be(batch, message):
    with refused(ValueError, message):
        value_and_grad(with_minibatch_steps(steps=4)(forward), batch)
    with refused(ValueError, "above 0"):
        with_minibatch_steps(steps=0)
