"""The same step on a GPU, on trees of 1e8 to 2e9 parameters; says so where there is none."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import problem
from benchmarks.figures import NotRun, Outcome, ratios
from benchmarks.step_time import moved_bytes, steppers
from benchmarks.torch_fused import torch_stepper
from optax_bridge.correspondence import ENTRIES

SECTION = "GPU"
OPTIMIZERS = ("adam", "lamb", "adafactor")
SIZES = (10**8, 10**9, 2 * 10**9)
_PAIRS = (
    ("exact", "legacy", 1.02),
    ("exact", "stock", 1.02),
    ("exact", "torch", 1.0),
    ("exact", "memory", 1 / 0.9),
)


def measure(quick: bool) -> Iterator[Outcome]:
    """Step time against stock, torch and the memory's speed, at every size that fits."""
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        yield NotRun(SECTION, "step time at 1e8 to 2e9 parameters", "there is no GPU here")
        return
    with jax.default_device(device):
        for size in (10**6,) if quick else SIZES:
            for name in OPTIMIZERS:
                yield from _of(name, size, device.device_kind)


def _of(name: str, size: int, kind: str) -> Iterator[Outcome]:
    subject = f"{name}, {size:.0e} parameters, {kind}"
    try:
        params = problem.equal_leaves(max(1, size // 2**24), 4096, 4096)
        made = steppers(ENTRIES[name], params)
        candidates: dict[str, Callable[[], float]] = {**made}
        candidates["memory"] = _mover(moved_bytes(made["exact"]))
        if (fused := torch_stepper(ENTRIES[name], params, "cuda")) is not None:
            candidates["torch"] = fused
        yield from ratios(SECTION, subject, candidates, _PAIRS, repeats=30)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        yield NotRun(SECTION, subject, "it does not fit into the GPU's memory")


def _mover(moved: int) -> Callable[[], float]:
    """What moves so many bytes within the GPU's memory, half of them read and half written."""
    array: Any = jnp.ones(max(moved // 8, 1), jnp.float32)
    copy = jax.jit(jnp.negative, donate_argnums=0)

    def run() -> float:
        nonlocal array
        start = time.perf_counter()
        array = jax.block_until_ready(copy(array))
        return time.perf_counter() - start

    return run
