"""The axes, each a table; `run_test.py` lints them. An entry's settings are its own cases."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
from flax import linen, nnx
from flax.core import FrozenDict

from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates

# Every run is two halves, so that one compilation serves the run that is interrupted in between as
# well as the one that is not.
HALF = 8
STEPS = 2 * HALF


class Pair(NamedTuple):
    """A NamedTuple of parameters."""

    kernel: Leaf
    bias: Leaf


def _normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng([len(shape), *shape])
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def _kernel_and_bias(rows: int = 8) -> dict[str, np.ndarray]:
    return {"kernel": _normal(rows, 3), "bias": np.zeros(3, np.float32)}


def _plain(rows: int = 8) -> dict[str, np.ndarray]:
    return {**_kernel_and_bias(rows), "zeros": np.zeros((2, 3), np.float32)}


def _boxes() -> PyTree:
    return {
        "kernel": linen.Partitioned(_normal(4, 3), names=("in", "out")),  # type: ignore[arg-type]
        "bias": linen.Partitioned(np.zeros(3, np.float32), names=("out",)),  # type: ignore[arg-type]
    }


def _nnx_state() -> PyTree:
    return nnx.State({name: nnx.Param(leaf) for name, leaf in _kernel_and_bias().items()})


# Name -> parameters in float32, made at each call. "plain" is what the other axes use: a
# kernel, and a bias and a kernel that start at zero, where LAMB is told from Optax's.
TREES: Mapping[str, Callable[[], PyTree]] = {
    "plain": _plain,
    "frozen": lambda: FrozenDict({"dense": FrozenDict(_kernel_and_bias())}),
    "list": lambda: [_normal(4, 3), [np.zeros(3, np.float32), _normal(2)]],
    "namedtuple": lambda: Pair(**_kernel_and_bias()),
    "nnx": _nnx_state,
    "boxed": _boxes,
    "scalars": lambda: {"a": _normal(), "b": np.zeros((), np.float32), "c": _normal(1)},
    "zero-size": lambda: {"none": _normal(0), "row": _normal(0, 3), "kernel": _normal(4, 3)},
    "ranks": lambda: {
        "rank0": _normal(),
        "rank1": _normal(3),
        "rank2": _normal(4, 3, scale=10.0),
        "rank3": _normal(2, 3, 2, scale=0.1),
        "rank4": _normal(2, 1, 3, 2),
        "rank5": _normal(2, 1, 2, 1, 3, scale=1e-3),
    },
    "mixed-dtypes": lambda: {
        "float32": _normal(4, 3),
        "bfloat16": _normal(4, 3).astype(jax.numpy.bfloat16),
        "float16": _normal(3).astype(np.float16),
    },
    "thousand": lambda: {
        f"layer{i:03}": {"kernel": (1 + i % 7) * _normal(3, 2), "bias": np.zeros(2, np.float32)}
        for i in range(500)
    },
}

DTYPES = ("float32", "bfloat16", "float16", "float64")
HALVES = ("bfloat16", "float16")


def _by_step(cycle: tuple[float, ...], values: np.ndarray) -> np.ndarray:
    """A number for each step, again and again."""
    return np.resize(cycle, len(values)).reshape(-1, *[1] * (values.ndim - 1))


def _poisoned_by(number: float, values: np.ndarray, leaf: int) -> np.ndarray:
    if leaf == 0 and values[0].size:  # one leaf at two steps, as the last element and the first
        values.reshape(len(values), -1)[HALF + 1, -1] = -number
        values.reshape(len(values), -1)[HALF + 2, 0] = number
    return values


_CYCLE = (1e-6, 0.0, 1.0, 1e-3, 1e-20, 1e6, -1.0, 1e-41)
# Name -> what unit normal values of shape (steps, ...) become; the leaf's number comes along.
STREAMS: Mapping[str, Callable[[np.ndarray, np.random.Generator, int], np.ndarray]] = {
    "normal": lambda values, rng, leaf: values,
    "sparse": lambda values, rng, leaf: values * (rng.random(values.shape) < 0.2),
    "zeros": lambda values, rng, leaf: values * 0.0,
    "denormal": lambda values, rng, leaf: values * 1e-40,
    "large": lambda values, rng, leaf: values * 1e6,
    "nan": lambda values, rng, leaf: _poisoned_by(np.nan, values, leaf),
    "inf": lambda values, rng, leaf: _poisoned_by(np.inf, values, leaf),
    "alternating": lambda values, rng, leaf: np.abs(values[:1]) * _by_step((1.0, -1.0), values),
    "mixture": lambda values, rng, leaf: values * _by_step(_CYCLE, values),
}

# Where the learning rate comes from.
RATES = ("constant", "schedule", "per-call", "per-group")

# A resumed side went through bytes half-way.
MODES = ("free", "resumed")

RECIPES = ("exact", "optax")


def parameters(tree: str, dtype: str = "float32") -> PyTree:
    """The parameters of a tree, in a dtype; the tree of mixed dtypes keeps its own."""
    params = _plain(rows=32) if tree == "plain" and dtype in HALVES else TREES[tree]()
    if tree == "mixed-dtypes" or dtype == "float32":
        return params
    kind = np.dtype(dtype) if dtype != "bfloat16" else jax.numpy.bfloat16
    return jax.tree.map(lambda leaf: np.asarray(leaf).astype(kind), params)


def steps_of(tree: str) -> int:
    """Steps of a run; a thousand leaves without a compiler get few."""
    return 2 if tree == "thousand" else STEPS


def gradients(params: Params, stream: str, steps: int = STEPS) -> Updates:
    """The gradients of a stream for parameters, of shape (steps, ...) at each leaf."""
    leaves, treedef = jax.tree.flatten(params)
    grads = []
    for number, leaf in enumerate(leaves):
        rng = np.random.default_rng([sorted(STREAMS).index(stream), number])
        values = rng.standard_normal((steps, *np.shape(leaf)))
        values = STREAMS[stream](values, rng, number)
        with np.errstate(over="ignore"):  # 1e6 is infinite in float16, and so it should be
            grads.append(values.astype(np.asarray(leaf).dtype))
    return treedef.unflatten(grads)


def rates(peak: float, steps: int = STEPS) -> np.ndarray:
    """A learning rate for each step: warm-up, then down; float32."""
    step = np.arange(steps)
    return (peak * np.minimum((step + 1) / 4, 1.2 - step / steps)).astype(np.float32)
