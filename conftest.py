"""Shared by all tests: eight CPU devices, a compilation cache, flags."""

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


@pytest.fixture(autouse=True)
def _restore_global_flags() -> Iterator[None]:
    """Puts JAX's global flags back after a test, whether or not it passed."""
    before = {name: getattr(jax.config, name) for name in _GLOBAL_FLAGS}
    yield
    for name, value in before.items():
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)
