"""Parameter trees, gradients and learning rates of the recordings.

Drawn by NumPy from fixed seeds and stored in the recordings; a replay reads them from there.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from equivalence_tests.reference.cases import Case

# Parameter trees: path -> (shape, fill). "tiled" repeats a 4 x 4 block, so that a tensor large
# enough for Adafactor's default threshold still compresses to next to nothing; a "dead" leaf has
# gradients of zero only.
# fmt: off
TREES: Mapping[str, Mapping[str, tuple[tuple[int, ...], str]]] = {
    "odd": {
        "scalar": ((), "normal"), "one": ((1,), "normal"), "empty": ((0,), "normal"),
        "dense/kernel": ((4, 3), "normal"), "dense/bias": ((3,), "zeros"),
        "block/attention/query": ((2, 3, 2), "normal"), "conv/kernel": ((2, 1, 2, 3), "normal"),
        "five": ((2, 1, 2, 1, 2), "normal"), "zeros": ((2, 2), "zeros"),
    },
    # WeightNorm reads `shape[-1]`, so a scalar is an error there. (1, 4) counts as a vector.
    # No zero-initialised kernel here: its scale starts as sqrt(wn_eps), its direction takes steps
    # far larger than itself, so float32 leaves float64 by 1e-5 within two steps of Adam and that
    # would test rounding. It has a recording of its own, short and with normal gradients.
    "kernels": {
        "dense/kernel": ((4, 3), "normal"), "dense/bias": ((3,), "normal"),
        "conv/kernel": ((2, 1, 2, 3), "normal"), "row": ((1, 4), "normal"), "one": ((1,), "normal"),
        "empty": ((0,), "normal"), "last/kernel": ((3, 2), "normal"),
    },
    "zero_kernel": {"kernel": ((3, 2), "zeros"), "bias": ((2,), "zeros")},
    # With min_dim_size_to_factor=3: factored, too narrow, stacked, and equal largest dimensions.
    "factors": {
        "dense/kernel": ((5, 4), "normal"), "dense/bias": ((4,), "zeros"),
        "narrow": ((2, 6), "normal"), "stacked/kernel": ((2, 3, 4), "normal"),
        "tied/kernel": ((3, 3, 2, 2), "normal"), "scalar": ((), "normal"),
        "empty": ((0,), "normal"), "zeros": ((3, 3), "zeros"),
    },
    "tiled": {
        "kernel": ((128, 128), "tiled"), "narrow": ((128, 127), "tiled"), "bias": ((128,), "tiled"),
    },
    "layers": {
        "encoder/kernel": ((4, 3), "normal"), "encoder/bias": ((3,), "zeros"),
        "head/kernel": ((3, 2), "normal"), "head/bias": ((2,), "zeros"),
        "frozen/table": ((3, 2), "normal"), "temperature": ((), "normal"),
    },
    # For settings that differ in one number: few leaves compile in a third of the time.
    "few": {
        "scalar": ((), "normal"), "kernel": ((5, 4), "normal"), "zeros": ((3,), "zeros"),
    },
    "pair": {
        "kernel": ((3, 2), "normal"), "bias": ((2,), "normal"),
    },
    # The largest leaf meets NaN and the second largest infinity; the last has no gradient at all,
    # which in half precision is 0 / (0 + eps) with an eps that may be 0.
    "half": {
        "kernel": ((5, 4), "normal"), "table": ((4, 3), "normal"), "bias": ((3,), "zeros"),
        "dead": ((2, 2), "dead"),
    },
}
# fmt: on

# Gradient streams: the kind of each step's gradients, a key of `_GRADIENTS`.
STREAMS: Mapping[str, tuple[str, ...]] = {
    "hostile": (
        # First what is small enough for every eps to matter; behind larger gradients none would.
        *("faint",) * 3,
        *("normal",) * 3,
        *("alternate",) * 4,
        *("sparse",) * 3,
        *("zero",) * 2,
        *("tiny", "denormal", "tiny"),
        *("normal",) * 2,
        "huge",
        *("normal",) * 5,
        *("nan", "normal", "normal", "inf", "normal"),
    ),
    "normal": ("normal",) * 24,
    "sparse": ("sparse",) * 16,
    "zero_first": ("zero", "zero", *("normal",) * 6),
    "short": ("normal",) * 8,
    "half": (*("normal",) * 3, "zero", "normal", "nan", "normal", "inf", "normal"),
    # Past step 256, where bfloat16 no longer tells consecutive step numbers apart.
    "long": ("normal",) * 300,
    "checkpoint": (*("normal",) * 5, "sparse", "zero", *("normal",) * 5),
}

# How each kind of step is made: from the generator, fresh normal values, and the step before.
_GRADIENTS = {
    "normal": lambda rng, leaf, previous: leaf,
    "alternate": lambda rng, leaf, previous: -previous,
    "sparse": lambda rng, leaf, previous: leaf * (rng.random(leaf.shape) < 0.25),
    "zero": lambda rng, leaf, previous: np.zeros_like(leaf),
    "faint": lambda rng, leaf, previous: leaf * np.float32(1e-8),
    # Its square is still a normal number. Were it not, LARS and LAMB would depend on how XLA
    # compiles a norm: fused or not, the square underflows at another place, and of a one-element
    # tensor jax 0.12 takes the absolute value, which does not underflow at all.
    "tiny": lambda rng, leaf, previous: leaf * np.float32(1e-17),
    "denormal": lambda rng, leaf, previous: leaf * np.float32(1e-40),
    "huge": lambda rng, leaf, previous: leaf * np.float32(1e6),
    "nan": lambda rng, leaf, previous: leaf,
    "inf": lambda rng, leaf, previous: leaf,
}

_WARMUP_STEPS = 5


def draw(case: Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draws the initial parameters and the gradients of every step, by path."""
    rng = np.random.default_rng(zlib.crc32(f"{case.tree}/{case.stream}".encode()))
    # bfloat16 is a NumPy dtype only through the package that JAX brings along.
    dtype = jnp.dtype(case.dtype)
    tree = TREES[case.tree]
    initial = {path: _draw(rng, shape, fill) for path, (shape, fill) in sorted(tree.items())}
    largest = sorted(initial, key=lambda path: (-initial[path].size, path))
    steps = []
    for number, kind in enumerate(STREAMS[case.stream]):
        step = {}
        for path, (shape, fill) in sorted(tree.items()):
            leaf = _draw(rng, shape, "tiled" if fill == "tiled" else "normal")
            previous = steps[-1][path] if steps else leaf
            dead = fill == "dead"
            step[path] = _GRADIENTS["zero" if dead else kind](rng, leaf, previous)
        if kind in ("nan", "inf"):
            # Not-a-number in the largest tensor, infinity in the second largest: one element each.
            poisoned = step[largest[kind == "inf"]]
            poisoned.flat[number % poisoned.size] = float(kind)
        steps.append(step)
    with np.errstate(over="ignore"):
        gradients = {path: np.stack([step[path] for step in steps]) for path in initial}
        return (
            {path: leaf.astype(dtype) for path, leaf in initial.items()},
            {path: stack.astype(dtype) for path, stack in gradients.items()},
        )


def _draw(rng: np.random.Generator, shape: tuple[int, ...], fill: str) -> np.ndarray:
    if fill == "zeros":
        return np.zeros(shape, np.float32)
    if fill == "tiled":
        block = rng.normal(size=(4,) * len(shape))
        repeats = [-(-size // 4) for size in shape]
        return np.tile(block, repeats)[tuple(map(slice, shape))].astype(np.float32)
    return np.asarray(rng.normal(size=shape), np.float32)


def learning_rates(case: Case) -> np.ndarray:
    """The learning rates, float32 of shape (steps, groups): warm-up from 0, then a cosine."""
    step = np.arange(len(STREAMS[case.stream]))[:, None]
    peak = np.asarray(case.peak)[None, :]
    progress = np.clip((step - _WARMUP_STEPS) / (len(step) - _WARMUP_STEPS), 0.0, 1.0)
    factor = np.minimum(step / _WARMUP_STEPS, 0.55 + 0.45 * np.cos(np.pi * progress))
    return np.asarray(peak * factor, np.float32)
