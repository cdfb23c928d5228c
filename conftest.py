"""Shared by all tests: eight CPU devices, a compilation cache, a sample of cases, flags."""

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


# Cases of each test in a run of everything, unless `@pytest.mark.sample(n)` says how many.
_CASES = 8


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes a sample of each test's cases in a run of everything, spread evenly.

    A run of named files has every case, and so has one with --equivalence-full.
    """
    names_files = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if names_files or config.getoption("--equivalence-full", default=False):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    sampled = {item for each in cases.values() for item in _sample(each)}
    config.hook.pytest_deselected(items=[item for item in items if item not in sampled])
    items[:] = [item for item in items if item in sampled]


def _sample(cases: list[pytest.Item]) -> list[pytest.Item]:
    mark = cases[0].get_closest_marker("sample")
    count = min(mark.args[0] if mark else _CASES, len(cases))
    return [cases[index * len(cases) // count] for index in range(count)]


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
