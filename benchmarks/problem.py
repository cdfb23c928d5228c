"""What the benchmarks train: parameters with the shapes of a small transformer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def transformer_tree(
    layers: int = 2, width: int = 256, vocabulary: int = 4096, seed: int = 0
) -> dict[str, Any]:
    """Parameters of a transformer: an embedding, and for each layer kernels, biases and norms.

    Args:
      layers: number of blocks.
      width: model width; the hidden layer of a block is four times as wide.
      vocabulary: rows of the embedding.
      seed: of the values.

    Returns:
      A nested dict of float32 arrays: kernels normal, scaled by 1/sqrt(fan-in), biases zero, scales
      one.
    """
    rng = np.random.default_rng(seed)

    def kernel(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), jnp.float32)

    def dense(inputs: int, outputs: int) -> dict[str, jax.Array]:
        return {"kernel": kernel(inputs, outputs), "bias": jnp.zeros(outputs)}

    def norm() -> dict[str, jax.Array]:
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    def block() -> dict[str, Any]:
        attention = {name: dense(width, width) for name in ("query", "key", "value", "out")}
        mlp = {"up": dense(width, 4 * width), "down": dense(4 * width, width)}
        return {"norm_1": norm(), "attention": attention, "norm_2": norm(), "mlp": mlp}

    tree = {f"block_{index}": block() for index in range(layers)}
    return {"embedding": kernel(vocabulary, width), **tree, "norm": norm()}


def equal_leaves(count: int, *shape: int, seed: int = 0) -> dict[str, Any]:
    """So many leaves of one shape, float32, normal and scaled by 1/sqrt(columns)."""
    rng = np.random.default_rng(seed)
    scale = 1 / np.sqrt(shape[-1] if shape else 1)
    return {
        f"leaf_{index:05}": jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)
        for index in range(count)
    }


# Name -> what makes the parameters: few large leaves, many small ones, and a mixture of both.
TREES = {
    "16 x 1024x1024": lambda: equal_leaves(16, 1024, 1024),
    "400 x 64x64": lambda: equal_leaves(400, 64, 64),
    "transformer": transformer_tree,
}
QUICK_TREE = "1 x 16x8"


def tree(name: str, dtype: str = "float32") -> dict[str, Any]:
    """The parameters of that name in a dtype; `QUICK_TREE` is a tiny one."""
    made = equal_leaves(1, 16, 8) if name == QUICK_TREE else TREES[name]()
    return jax.tree.map(lambda leaf: leaf.astype(dtype), made)


def gradients(params: Any, seed: int = 1) -> Any:
    """One set of unit-normal gradients, a tree like `params`."""
    rng = np.random.default_rng(seed)

    def leaf(param: jax.Array) -> jax.Array:
        return jnp.asarray(rng.standard_normal(param.shape), param.dtype)

    return jax.tree.map(leaf, params)


def size(params: Any) -> int:
    """Number of parameters in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
