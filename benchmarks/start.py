"""The wait before a program trains: imports, and the first step with a warm cache."""

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.figures import Outcome, ratios

SECTION = "start"
BAR = 1.05
BASELINE = "import flax, optax"
IMPORTS = (
    "import optax_bridge",
    "from optax_bridge import TrainState",
    "import legacy_optim",
    "from legacy_optim import Adam",
)
_STEP = """
import jax, jax.numpy as jnp
from optax_bridge import TrainState, adam
params = {f"w{i}": jnp.ones((8, 8)) for i in range(8)}
state = TrainState.create(apply_fn=None, params=params, tx=adam(1e-3))
step = jax.jit(lambda s, g: s.apply_gradients(grads=g))
jax.block_until_ready(step(state, params))
"""
_OPTAX = "from flax.training.train_state import TrainState; from optax import adam"


def seconds_to_run(code: str, cache: str = "") -> float:
    """Returns the wall time of a program in a new interpreter, without the interpreter's start."""
    timed = f"import time; start = time.perf_counter()\n{code}\nprint(time.perf_counter() - start)"
    environment = {"JAX_COMPILATION_CACHE_DIR": cache} if cache else {}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-W", "ignore", "-c", timed]
    output = subprocess.check_output(command, text=True, env={**os.environ, **environment})
    return float(output.split()[-1])


def measure(quick: bool) -> Iterator[Outcome]:
    """Imports, then first steps, each in a process of its own."""
    programs = (BASELINE, *IMPORTS[: 1 if quick else None])
    imports = {code: functools.partial(seconds_to_run, code) for code in programs}
    pairs = [(code, BASELINE, BAR) for code in IMPORTS]
    repeats, warm_up = (1, 0) if quick else (9, 1)
    yield from ratios(
        SECTION, "imports", imports, pairs, repeats=repeats, warm_up=warm_up, seconds=40
    )
    if quick:
        return
    public = _STEP.replace("from optax_bridge import TrainState, adam", _OPTAX)
    with tempfile.TemporaryDirectory() as cache:
        steps = {
            "exact": functools.partial(seconds_to_run, _STEP, cache),
            "optax": functools.partial(seconds_to_run, public, cache),
        }
        pairs = [("exact", "optax", BAR)]
        subject = "first step of a process, warm compilation cache"
        yield from ratios(SECTION, subject, steps, pairs, repeats=5, seconds=40)
