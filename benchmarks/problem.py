"""The parameters that the benchmarks train: few large leaves, or many small ones."""

import jax
import jax.numpy as jnp
import numpy as np

from optax_bridge.metadata.trees import Params, PyTree, Updates


def equal_leaves(count: int, *shape: int) -> dict[str, PyTree]:
    """Returns so many float32 leaves of one shape, normal and scaled by 1/sqrt(columns)."""
    rng = np.random.default_rng(0)
    scale = 1 / np.sqrt(shape[-1] if shape else 1)
    return {
        f"leaf_{index:05}": jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)
        for index in range(count)
    }


TREES = {
    "16 x 1024x1024": lambda: equal_leaves(16, 1024, 1024),
    "400 x 64x64": lambda: equal_leaves(400, 64, 64),
}
QUICK_TREE = "1 x 16x8"


def tree(name: str, dtype: str = "float32") -> dict[str, PyTree]:
    """Returns the parameters of that name in a dtype; those of `QUICK_TREE` are tiny."""
    params = equal_leaves(1, 16, 8) if name == QUICK_TREE else TREES[name]()
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def gradients(params: Params, seed: int = 1) -> Updates:
    """Returns one set of unit-normal gradients, a tree like `params`."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda param: jnp.asarray(rng.standard_normal(param.shape), param.dtype), params
    )


def size(params: Params) -> int:
    """Returns the number of parameters in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
