"""What all tests share: eight CPU devices, a compilation cache, and global flags put back."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

# Read by JAX when it is first imported, so they are set before that happens.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".cache" / "jax"))
# Even small programs: workers, and the processes that tests start, compile many of the same.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    ).strip()

import jax
import pytest

# Where the subject is not the arithmetic but what is around it, XLA leaves its optimisations out,
# as JAX offers it for tests, and compiles in half the time. All else, and everything where the
# variable is set (to 0), is compiled as users compile it.
_COMPILED_QUICKLY = (
    "benchmarks",
    "equivalence_tests/suite/mutations_test.py",
    "migration_guide",
    "optax_bridge/checkpoints",
    "optax_bridge/command",
    "optax_bridge/spmd",
    "optax_bridge/training",
)
_VARIABLE = "JAX_DISABLE_MOST_OPTIMIZATIONS"
_CHOSEN = os.environ.get(_VARIABLE)

# Flags that a test may set with jax.config.update and that change numbers for every test after it.
_GLOBAL_FLAGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_debug_nans",
    "jax_disable_jit",
)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what stays to the end; it would take a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(autouse=True, scope="module")
def _optimisations(request: pytest.FixtureRequest) -> None:
    """Switches XLA's optimisations for a module's tests and the processes that they start."""
    module = request.path.relative_to(Path(__file__).parent)
    quickly = str(int(any(module.is_relative_to(folder) for folder in _COMPILED_QUICKLY)))
    if not _CHOSEN and quickly != os.environ.get(_VARIABLE, "0"):
        os.environ[_VARIABLE] = quickly
        jax.config.update(_VARIABLE.lower(), quickly == "1")
        jax.clear_caches()


@pytest.fixture(autouse=True)
def _restore_global_flags() -> Iterator[None]:
    """Puts JAX's global flags back after a test, whether or not it passed."""
    before = {name: getattr(jax.config, name) for name in _GLOBAL_FLAGS}
    yield
    for name, value in before.items():
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)
