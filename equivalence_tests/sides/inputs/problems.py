# pyright: strict
"""The suite's inputs: odd parameter trees and hostile streams of gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates

STREAMS = ("normal", "hostile", "poisoned")

NAMES = ("normal", "hostile", "poisoned", "all")  # of the streams that `gradients` makes
_LARGE = "1e6 (32 in float16)"
# The hostile steps, in turn. The first is where an epsilon inside a root and one outside are far
# apart; 0 has both signs.
_FACTORS = {
    "1e-6": 1e-6,
    "0 and -0": 0.0,
    "normal": 1.0,
    "sparse": 1.0,
    "1e-20": 1e-20,
    _LARGE: 1e6,
    "the previous one negated": 1.0,
    "denormal": 1e-41,
}
LATE = 16  # steps from which on the stream `all` ends with what is not finite
_POISON = "both infinities and NaN in each leaf, each first somewhere"
_ORDERS = tuple(itertools.permutations((np.inf, -np.inf, np.nan)))


def description(stream: str, steps: int) -> str:
    """Returns a description of the first steps of a stream of gradients."""
    hostile = ", ".join(list(_FACTORS)[:steps])
    if stream == "poisoned" and steps > 1:
        return f"normal; in the second half {_POISON}"
    if stream in ("normal", "poisoned"):
        return "unit normal"
    if stream == "hostile":
        return f"in turn {hostile}"
    poison = f"; near the end {_POISON}" if steps >= LATE else ""
    return f"in turn {hostile}, but normal throughout in every third element{poison}"


def usual_params() -> dict[str, np.ndarray]:
    """Returns the default parameters: two matrices, of which Adafactor factors only the first."""
    rng = np.random.default_rng(0)
    shapes = {"square": (128, 128), "kernel": (129, 3), "bias": (3,), "rank3": (2, 3, 4)}
    tree = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return {name: np.asarray(x, np.float32) for name, x in (tree | {"scalar": 0.5}).items()}


def odd_tree(seed: int = 0, dtypes: tuple[str, ...] = ("float32", "bfloat16")) -> dict[str, PyTree]:
    """Parameters of every rank from 0 to 5, with empty and zero-initialised leaves."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    tree: dict[str, PyTree] = {
        "scalar": normal(),
        "empty": normal(0),
        "single": normal(1),
        "dense": FrozenDict({"kernel": normal(5, 4), "bias": np.zeros(4, np.float32)}),
        "attention": {"kernel": 0.1 * normal(3, 2, 4), "zeros": np.zeros((3, 4), np.float32)},
        "rank4": 10.0 * normal(2, 1, 3, 2),
        "rank5": 1e-3 * normal(2, 1, 2, 1, 3),
    }
    for dtype in dtypes:
        if dtype != "float32":
            cast = jnp.dtype(dtype).type
            tree[dtype] = {"kernel": normal(4, 3).astype(cast), "bias": np.zeros(3, cast)}
    return tree


def gradients(
    params: Params, steps: int, stream: str, seed: int = 1, first_order: int = 0
) -> Updates:
    """Gradients for `params`, of shape (steps, ...) at each leaf.

    Args:
      params: the parameters.
      steps: their number.
      stream: one of `NAMES`.
      seed: of the random numbers.
      first_order: the order in which the first element gets what is not finite.
    """
    rng = np.random.default_rng(seed)

    orders = itertools.count(first_order)

    def leaf(param: Leaf) -> np.ndarray:
        values = rng.standard_normal((steps, *np.shape(param)))
        dtype = np.asarray(param).dtype
        if stream in ("hostile", "all"):
            # Squares stay finite, or else nothing shows of the steps that follow.
            _make_hostile(values, rng, 32 if dtype == np.float16 else 10**6)
        flat = values.reshape(steps, -1)
        if stream == "all":
            # A large gradient stays in the moments, whose sign says nothing of a decay then.
            flat[:, 2::3] = rng.standard_normal(flat[:, 2::3].shape)
        if stream == "poisoned" and steps > 1:
            _poison(flat, (steps // 2, 5 * steps // 8, 3 * steps // 4), next(orders))
        if stream == "all" and steps >= LATE:  # late, as nothing is finite after it
            _poison(flat, (-steps // 16, -steps // 24, -steps // 32), next(orders))
        return values.astype(dtype)

    return jax.tree.map(leaf, params)


def other_orders(params: Params) -> tuple[int, ...]:
    """First orders with which each kind comes first somewhere; () if one run has all orders."""
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(params)]
    tried = {leaf + each for leaf, size in enumerate(sizes) for each in range(_most(size))}
    return () if {order % len(_ORDERS) for order in tried} == {*range(len(_ORDERS))} else (2, 4)


def _most(size: int) -> int:
    """The number of elements that get what is not finite; of several, one stays finite."""
    return min(size if size < 2 else size - 1, len(_ORDERS))


def _poison(flat: np.ndarray, steps: tuple[int, ...], first: int) -> None:
    """Puts NaN and infinities into the first elements at some steps, an order for each element."""
    for element in range(_most(flat.shape[1])):
        flat[list(steps), element] = _ORDERS[(first + element) % len(_ORDERS)]


def _make_hostile(values: np.ndarray, rng: np.random.Generator, large: int) -> None:
    factors = list((_FACTORS | {_LARGE: large}).values())
    for step in range(len(values)):
        kind = step % len(factors)
        values[step] *= factors[kind]
        if kind == 3:
            values[step] *= rng.random(values[step].shape) < 0.2
        elif kind == 6:
            values[step] = -values[step - 1]


def problem(
    steps: int, dtypes: tuple[str, ...] = ("float32", "bfloat16"), *, compact: bool = False
) -> tuple[PyTree, PyTree]:
    """The suite's standard problem: parameters, and gradients of shape (steps, ...)."""
    tree = odd_tree(dtypes=dtypes)
    few = {"dense": tree["dense"]}
    few.update({name: {"kernel": tree[name]["kernel"]} for name in dtypes if name in tree})
    params = {name: few for name in STREAMS}
    if not compact:
        params["normal"] = tree
    grads = {name: gradients(params[name], steps, name, seed) for seed, name in enumerate(STREAMS)}
    return params, grads


def schedule(peak: float, steps: int) -> np.ndarray:
    """A learning rate for each step: linear warm-up, then a cosine down to a tenth of the peak."""
    step = np.arange(steps)
    warm = max(steps // 10, 1)
    cosine = 0.1 + 0.45 * (1 + np.cos(np.pi * step / max(steps, 1)))
    return (peak * np.minimum((step + 1) / warm, cosine)).astype(np.float32)
