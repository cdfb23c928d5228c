"""The same classifier in Flax, Linen and NNX; a schedule, clipping and two groups in Optax."""

import argparse
import json
import os
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training import checkpoints
from sklearn.datasets import load_digits

import optax_bridge
from optax_bridge import FullTrainState
from optax_bridge.training.nnx import hand_off

STEPS, WARM_UP, PEAK = 200, 20, 3e-3
IMAGES, LABELS = load_digits(return_X_y=True)


class Net(nn.Module):
    """Two convolutions and two layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits, in training."""
        for number, features in ((1, 16), (2, 32)):
            x = nn.Conv(features, (3, 3), padding=1, name=f"conv{number}")(x)
            x = nn.BatchNorm(use_running_average=False, momentum=0.9, name=f"bn{number}")(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = nn.relu(nn.Dense(64, name="fc1")(x.reshape(x.shape[0], -1)))
        return nn.Dense(10, name="fc2")(x)


class NnxNet(nnx.Module):
    """Two convolutions and two layers."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 16, (3, 3), padding=1, rngs=rngs)
        self.bn1 = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), padding=1, rngs=rngs)
        self.bn2 = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.fc1 = nnx.Linear(128, 64, rngs=rngs)
        self.fc2 = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits, in training."""
        x = nnx.max_pool(nnx.relu(self.bn1(self.conv1(x))), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.bn2(self.conv2(x))), (2, 2), (2, 2))
        return self.fc2(nnx.relu(self.fc1(x.reshape(x.shape[0], -1))))


def rate(step: Any) -> Any:
    """The learning rate."""
    cosine = 0.5 + 0.5 * jnp.cos(jnp.pi * (step - WARM_UP) / (STEPS - WARM_UP))
    return PEAK * jnp.where(step < WARM_UP, (step + 1) / WARM_UP, cosine)


def make_optimizer(start: int = 0) -> optax.GradientTransformation:
    """Clipping, and AdamW with weight decay for kernels alone; its schedule begins at a step."""

    def by_rank(params: Any) -> Any:
        return jax.tree.map(lambda param: "decayed" if param.ndim > 1 else "others", params)

    def at(step: Any) -> Any:
        return rate(step + start)

    groups = {
        "decayed": optax.adamw(at, weight_decay=0.05),
        "others": optax.adamw(at, weight_decay=0.0),
    }
    return optax.chain(optax.clip_by_global_norm(1.0), optax.partition(groups, by_rank))


def make_state() -> FullTrainState:
    """The state of the Linen module."""
    variables = Net().init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    return FullTrainState.create(
        apply_fn=Net().apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=make_optimizer(),
    )


def batch(step: int) -> tuple[jax.Array, jax.Array]:
    """Images and labels of a step."""
    rows = np.random.default_rng(step).integers(len(IMAGES), size=64)
    images = IMAGES[rows].reshape(-1, 8, 8, 1).astype(np.float32) / 16
    return jnp.asarray(images), jnp.asarray(LABELS[rows])


@jax.jit
def linen_step(state: FullTrainState, images: jax.Array, labels: jax.Array) -> Any:
    """The state after a step, and the loss before it."""

    def loss_of(params: Any) -> Any:
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, new = state.apply_fn(variables, images, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, new["batch_stats"]

    (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=stats), loss


@nnx.jit
def nnx_step(model: NnxNet, optimizer: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Takes a step; returns the loss before it."""

    def loss_of(model: NnxNet) -> jax.Array:
        logits = model(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def main() -> None:
    """Trains on from a converted checkpoint, and prints the loss of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", required=True, help="what `optax-bridge convert` wrote")
    parser.add_argument("--stop", type=int, default=STEPS)
    parser.add_argument("--save", default="")
    parser.add_argument("--nnx", action="store_true")
    parser.add_argument("--forget", action="store_true", help="start with new moments")
    options = parser.parse_args()

    state = optax_bridge.checkpoints.restore_checkpoint(options.start, make_state())
    start = int(state.step)
    if options.forget:
        tx = make_optimizer(start)
        state = state.replace(tx=tx, opt_state=tx.init(state.params))
    if options.nnx:
        model = NnxNet(nnx.Rngs(0))
        optimizer = hand_off(state, model)
    for step in range(start, options.stop):
        if options.nnx:
            loss = nnx_step(model, optimizer, *batch(step))
        else:
            state, loss = linen_step(state, *batch(step))
        print(json.dumps({"step": step, "loss": float(loss)}))
    if options.save:
        checkpoints.save_checkpoint(os.path.abspath(options.save), state, int(state.step))


if __name__ == "__main__":
    main()
