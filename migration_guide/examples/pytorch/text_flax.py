"""The same language model in Flax, Linen and NNX; a schedule, clipping and two groups in Optax."""

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training import checkpoints

import optax_bridge
from optax_bridge import TrainState
from optax_bridge.training.nnx import hand_off

STEPS, WARM_UP, PEAK = 200, 20, 3e-3
LENGTH, WIDTH, HEADS, LAYERS = 48, 48, 4, 2
TEXT = Path(__file__).parents[1].joinpath("data", "prose.txt").read_text(encoding="utf-8")
ALPHABET = sorted({*TEXT})
IDS = np.array([ALPHABET.index(character) for character in TEXT])
EPSILON = 1e-5  # PyTorch's of LayerNorm; Flax has another


class Block(nn.Module):
    """Attention to what came before, and two layers."""

    def setup(self) -> None:
        """Names the layers."""
        self.norm1, self.norm2 = nn.LayerNorm(epsilon=EPSILON), nn.LayerNorm(epsilon=EPSILON)
        self.attention = nn.MultiHeadDotProductAttention(HEADS)
        self.up, self.down = nn.Dense(4 * WIDTH), nn.Dense(WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The next features."""
        x = x + self.attention(self.norm1(x), mask=nn.make_causal_mask(x[..., 0]))
        return x + self.down(nn.gelu(self.up(self.norm2(x)), approximate=False))


class Model(nn.Module):
    """A transformer."""

    def setup(self) -> None:
        """Names the layers."""
        self.token, self.position = nn.Embed(len(ALPHABET), WIDTH), nn.Embed(LENGTH, WIDTH)
        self.blocks = [Block() for _ in range(LAYERS)]
        self.norm = nn.LayerNorm(epsilon=EPSILON)
        self.head = nn.Dense(len(ALPHABET), use_bias=False)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Logits of the next characters."""
        x = self.token(ids) + self.position(jnp.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class NnxBlock(nnx.Module):
    """Attention to what came before, and two layers."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm1 = nnx.LayerNorm(WIDTH, epsilon=EPSILON, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, epsilon=EPSILON, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The next features."""
        x = x + self.attention(self.norm1(x), mask=nn.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=False))


class NnxModel(nnx.Module):
    """A transformer."""

    def __init__(self, rngs: nnx.Rngs):
        self.token = nnx.Embed(len(ALPHABET), WIDTH, rngs=rngs)
        self.position = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, epsilon=EPSILON, rngs=rngs)
        self.head = nnx.Linear(WIDTH, len(ALPHABET), use_bias=False, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Logits of the next characters."""
        x = self.token(ids) + self.position(jnp.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def rate(step: Any) -> Any:
    """The learning rate."""
    cosine = 0.5 + 0.5 * jnp.cos(jnp.pi * (step - WARM_UP) / (STEPS - WARM_UP))
    return PEAK * jnp.where(step < WARM_UP, (step + 1) / WARM_UP, cosine)


def make_optimizer(start: int = 0) -> optax.GradientTransformation:
    """Clipping, and AdamW with weight decay for kernels alone; its schedule begins at a step."""

    def is_decayed(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: re.search("kernel|embedding", jax.tree_util.keystr(path)) is not None,
            params,
        )

    def at(step: Any) -> Any:
        return rate(step + start)

    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(at, weight_decay=0.05, mask=is_decayed)
    )


def make_state() -> TrainState:
    """The state of the Linen module."""
    params = Model().init(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))["params"]
    return TrainState.create(apply_fn=Model().apply, params=params, tx=make_optimizer())


def make_nnx_state() -> TrainState:
    """The state of the NNX module's parameters."""
    params = nnx.to_pure_dict(nnx.state(NnxModel(nnx.Rngs(0)), nnx.Param))
    return TrainState.create(apply_fn=None, params=params, tx=make_optimizer())


def batch(step: int) -> jax.Array:
    """Pieces of the text, one character longer than the model's input."""
    starts = np.random.default_rng(step).integers(len(IDS) - LENGTH, size=16)
    return jnp.asarray(np.stack([IDS[at : at + LENGTH + 1] for at in starts]))


def loss_of(logits: jax.Array, ids: jax.Array) -> jax.Array:
    """The cross-entropy of the next characters."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


@jax.jit
def linen_step(state: TrainState, ids: jax.Array) -> Any:
    """The state after a step, and the loss before it."""
    loss, grads = jax.value_and_grad(
        lambda params: loss_of(state.apply_fn({"params": params}, ids[:, :-1]), ids)
    )(state.params)
    return state.apply_gradients(grads=grads), loss


@nnx.jit
def nnx_step(model: NnxModel, optimizer: Any, ids: jax.Array) -> jax.Array:
    """Takes a step; returns the loss before it."""
    loss, grads = nnx.value_and_grad(lambda model: loss_of(model(ids[:, :-1]), ids))(model)
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

    template = make_nnx_state() if options.nnx else make_state()
    state = optax_bridge.checkpoints.restore_checkpoint(options.start, template)
    start = int(state.step)
    if options.forget:
        tx = make_optimizer(start)
        state = state.replace(tx=tx, opt_state=tx.init(state.params))
    if options.nnx:
        model = NnxModel(nnx.Rngs(0))
        optimizer = hand_off(state, model)
    for step in range(start, options.stop):
        if options.nnx:
            loss = nnx_step(model, optimizer, batch(step))
        else:
            state, loss = linen_step(state, batch(step))
        print(json.dumps({"step": step, "loss": float(loss)}))
    if options.save:
        checkpoints.save_checkpoint(os.path.abspath(options.save), state, int(state.step))


if __name__ == "__main__":
    main()
