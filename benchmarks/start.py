"""What a program waits for before it trains: imports, and the first step with a warm cache."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from benchmarks.figures import Outcome, ratios

SECTION = "start"
BASELINE = "import flax, optax"
IMPORTS = {
    "import optax_bridge": 1.05,
    "from optax_bridge import TrainState": 1.05,
    "import legacy_optim": 1.05,
    "from legacy_optim import Adam": 1.05,
}
_STEP = """
import jax, jax.numpy as jnp, optax, flax
from flax.training.train_state import TrainState
{imports}
params = {{f"w{{i}}": jnp.ones((8, 8)) for i in range(8)}}
state = {state}.create(apply_fn=None, params=params, tx={tx})
step = jax.jit(lambda s, g: s.apply_gradients(grads=g))
jax.block_until_ready(step(state, params))
"""
STEPS = {
    "stock": _STEP.format(imports="", state="TrainState", tx="optax.adam(1e-3)"),
    "exact": _STEP.format(
        imports="import optax_bridge", state="optax_bridge.TrainState", tx="optax_bridge.adam(1e-3)"
    ),
}


def seconds_to_run(code: str, **environment: str) -> float:
    """Runs a program in a fresh interpreter; wall time in seconds, without the interpreter's start.

    Raises:
      subprocess.CalledProcessError: it failed; the traceback is on stderr.
    """
    timed = f"import time; start = time.perf_counter()\n{code}\nprint(time.perf_counter() - start)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", timed],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    return float(done.stdout.split()[-1])


def measure(quick: bool) -> Iterator[Outcome]:
    """Imports, then first steps, each in a process of its own."""
    programs = {code: code for code in (BASELINE, *IMPORTS)}
    if quick:
        programs = {code: code for code in (BASELINE, "import optax_bridge")}
    candidates: dict[str, Callable[[], float]] = {
        name: lambda code=code: seconds_to_run(code) for name, code in programs.items()
    }
    pairs = [(name, BASELINE, bar) for name, bar in IMPORTS.items()]
    repeats, warm_up = (1, 0) if quick else (9, 1)
    yield from ratios(
        SECTION, "imports", candidates, pairs, repeats=repeats, warm_up=warm_up, seconds=40
    )
    if quick:
        return
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        steps: dict[str, Callable[[], float]] = {
            name: lambda code=code: seconds_to_run(code, **cache) for name, code in STEPS.items()
        }
        yield from ratios(
            SECTION,
            "first step of a process, warm compilation cache",
            steps,
            [("exact", "stock", 1.05)],
            repeats=5,
            seconds=40,
        )
