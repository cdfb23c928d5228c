"""Real training: small Linen models on handwritten digits, the old step and the TrainState step.

The digits are the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI
Machine Learning Repository, 1998; https://doi.org/10.24432/C50P49, CC BY 4.0), as scikit-learn has
them: 1,797 images of 8 x 8 pixels. Here they lie as bytes in `digits.npz`.
Both sides start from the same arrays and see the same batches, so losses and parameters can be
compared at every step. A step is two programs, the gradients' and the optimizer's: the first, which
takes long to compile, is the same for every optimizer and for both sides.
"""

import functools
import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import KeyPath

import legacy_optim
from equivalence_tests.compare.trees import leaf_name
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.side import Side
from optax_bridge import TrainState
from optax_bridge.metadata.paths import key_names
from optax_bridge.metadata.trees import Params, PyTree, Updates

BATCH_SIZE = 64
_ONE_AT_A_TIME = threading.Lock()


class Mlp(nn.Module):
    """One hidden layer on the flattened image."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        """Returns logits of shape (batch, 10) for images of shape (batch, 8, 8)."""
        del train
        x = images.reshape(images.shape[0], -1)
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x)))


class Cnn(nn.Module):
    """Two convolutions with batch normalisation, which keeps a mutable collection."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        """Returns logits of shape (batch, 10) for images of shape (batch, 8, 8)."""
        x = images[..., None]
        for features in (8, 16):
            # No bias: the normalisation takes it away again, so that it would only hold rounding.
            x = nn.Conv(features, (3, 3), strides=2, use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Transformer(nn.Module):
    """One pre-norm transformer block over the rows of the image."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        """Returns logits of shape (batch, 10) for images of shape (batch, 8, 8)."""
        del train
        x = nn.Dense(16)(images)
        x = x + self.param("position", nn.initializers.normal(0.02), (8, 16))
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x))
        y = nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
        return nn.Dense(10)(nn.LayerNorm()((x + y).mean(axis=1)))


MODELS: dict[str, type[nn.Module]] = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer}


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """The data: images (1797, 8, 8) float32 in [0, 1], labels (1797,) int32."""
    with np.load(Path(__file__).with_name("digits.npz")) as arrays:
        return arrays["images"].astype(np.float32) / 16.0, arrays["labels"].astype(np.int32)


def batches(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """`steps` batches of `BATCH_SIZE`, shuffled in each epoch: images and labels."""
    images, labels = digits()
    rng = np.random.default_rng(0)
    epochs = -(-steps * BATCH_SIZE // len(images))
    order = np.concatenate([rng.permutation(len(images)) for _ in range(epochs)])
    chosen = order[: steps * BATCH_SIZE].reshape(steps, BATCH_SIZE)
    return images[chosen], labels[chosen]


@dataclass(frozen=True)
class Task:
    """A model with its initial variables."""

    model: nn.Module
    params: Params
    batch_stats: PyTree

    def gradients(self, params: Params, batch_stats: PyTree, batch: PyTree) -> Updates:
        """Loss, new running statistics and gradients, by a program that all sides share."""
        with _ONE_AT_A_TIME:  # else two threads compile it
            return self._value_and_grad(params, batch_stats, batch)

    @functools.cached_property
    def _value_and_grad(self) -> Callable[..., PyTree]:
        return jax.jit(jax.value_and_grad(self.loss, has_aux=True))

    def loss(
        self, params: Params, batch_stats: PyTree, batch: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, PyTree]:
        """Mean cross entropy of a batch, and the new running statistics."""
        images, labels = batch
        variables = {"params": params, "batch_stats": batch_stats}
        logits, updated = self.model.apply(variables, images, train=True, mutable=["batch_stats"])
        picked = jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], axis=1)
        return -picked.mean(), updated.get("batch_stats", batch_stats)


def task(name: str) -> Task:
    """One of `MODELS`, with the same initial values each time; all sides get these very arrays."""
    with _ONE_AT_A_TIME:
        return _task(name)


@functools.cache
def _task(name: str) -> Task:
    model = MODELS[name]()
    shapes = jax.eval_shape(
        lambda key, images: model.init(key, images, train=False),
        jax.random.key(0),
        jnp.zeros((1, 8, 8)),
    )
    rng = np.random.default_rng(0)

    def initial(path: KeyPath, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray(_initial(key_names(path)[-1], leaf.shape, rng), leaf.dtype)

    variables = jax.tree_util.tree_map_with_path(initial, shapes)
    return Task(model, variables["params"], variables.get("batch_stats", {}))


def _initial(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """An array of the size that Linen gives one of that name; its own takes seconds to compile."""
    if name in ("scale", "var"):
        return np.ones(shape)
    if name in ("bias", "mean"):
        return np.zeros(shape)
    std = 0.02 if name == "position" else math.prod(shape[:-1]) ** -0.5
    return std * rng.standard_normal(shape)


def without_gradient(name: str) -> tuple[str, ...]:
    """The parameters of a model whose gradient is zero but for rounding, by their paths."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(task(name).params)]
    return tuple(leaf_name(path, "params") for path in itertools.compress(paths, vanishing(name)))


@functools.cache
def vanishing(name: str) -> tuple[bool, ...]:
    """Of each parameter of a model, whether its gradient is zero but for rounding."""
    job, data = task(name), batches(1)
    with float64():
        params, stats = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, jnp.float64), (job.params, job.batch_stats)
        )
        batch = (jnp.asarray(data[0][0], jnp.float64), data[1][0])
        grads = jax.jit(jax.grad(lambda p: job.loss(p, stats, batch)[0]))(params)
    sizes = [float(np.abs(leaf).max()) for leaf in jax.tree.leaves(grads)]
    # Rounding leaves 1e-16 of the others' size, by the number of products that cancel.
    return tuple(size < 1e-12 * max(sizes) for size in sizes)


class BatchStatsState(TrainState):
    """A TrainState with the running statistics of batch normalisation."""

    batch_stats: PyTree


def old_side(job: Task, definition: legacy_optim.OptimizerDef) -> Side:
    """Training as programs did it with `flax.optim`; a batch is given at each step."""
    apply = jax.jit(lambda optimizer, grad: optimizer.apply_gradient(grad))

    def step(state: PyTree, batch: PyTree) -> PyTree:
        optimizer, batch_stats, _ = state
        (loss, batch_stats), grad = job.gradients(optimizer.target, batch_stats, batch)
        return apply(optimizer, grad), batch_stats, loss

    def view(state: PyTree) -> dict[str, PyTree]:
        optimizer, batch_stats, loss = state
        return {"loss": loss, "params": optimizer.target, "batch_stats": batch_stats}

    return Side(
        "legacy",
        lambda params: (definition.create(params), job.batch_stats, jnp.zeros([])),
        step,
        view,
        compiled=False,
    )


def new_side(job: Task, tx: optax.GradientTransformation) -> Side:
    """Training with `TrainState`, as FLIP 1009 writes the loop; shows what `old_side` does."""

    def init(params: Params) -> Params:
        state = BatchStatsState.create(
            apply_fn=job.model.apply, params=params, tx=tx, batch_stats=job.batch_stats
        )
        return state, jnp.zeros([])

    apply = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))

    def step(state: PyTree, batch: PyTree) -> PyTree:
        state, _ = state
        (loss, batch_stats), grads = job.gradients(state.params, state.batch_stats, batch)
        return apply(state, grads).replace(batch_stats=batch_stats), loss

    def view(state: PyTree) -> dict[str, PyTree]:
        state, loss = state
        return {"loss": loss, "params": state.params, "batch_stats": state.batch_stats}

    return Side("TrainState", init, step, view, compiled=False)
