"""What all tests share: eight CPU devices, a compilation cache, and global flags put back."""

import functools
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from jax._src import compiler

# Tests that compare bits are compiled as users compile. Elsewhere the same programs take a fifth of
# the time: XLA leaves its optimisations out, as JAX offers it for tests, and makes its loops in its
# older way, one after the other.
# Where the variable is set, it decides for all: 0 compiles everything as users do.
_ARITHMETIC = (
    "equivalence_tests/equivalence_test.py",
    "equivalence_tests/proof/bounds_test.py",
    "equivalence_tests/reference",
    "tools/soak_test.py",
    "equivalence_tests/suite/checks_test.py",
    "legacy_optim",
    "optax_bridge/exact",
    "optax_bridge/optimizers",
)
_VARIABLE = "JAX_DISABLE_MOST_OPTIMIZATIONS"
_CHOSEN = os.environ.get(_VARIABLE)
_FLAGS = os.environ["XLA_FLAGS"]
_QUICK_FLAGS = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}

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


def _is_arithmetic(module: Path) -> bool:
    path = module.relative_to(Path(__file__).parent)
    return any(path.is_relative_to(folder) for folder in _ARITHMETIC)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what is compiled alike together: what was compiled otherwise has to be thrown away."""
    items.sort(key=lambda item: _is_arithmetic(item.path))


_compile_options = compiler.get_compile_options


def _quick_compile_options(*arguments: Any, **options: Any) -> Any:
    """What JAX asks XLA for, and the older loops: XLA_FLAGS would count for all modules."""
    options["env_options_overrides"] = _QUICK_FLAGS | (options.get("env_options_overrides") or {})
    return _compile_options(*arguments, **options)


@functools.cache
def _xla_knows_the_flags() -> bool:
    try:  # JAX 0.12's does not
        jax.jit(lambda x: x, compiler_options=_QUICK_FLAGS)(1.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


@pytest.fixture(autouse=True, scope="module")
def _compilation(request: pytest.FixtureRequest) -> None:
    """Chooses how XLA compiles for a module's tests and for the processes that they start."""
    left_out = "0" if _is_arithmetic(request.path) else "1"
    if _CHOSEN or left_out == os.environ.get(_VARIABLE, "0"):
        return
    os.environ[_VARIABLE] = left_out
    jax.config.update(_VARIABLE.lower(), left_out == "1")
    if _xla_knows_the_flags():
        # XLA has read this process's XLA_FLAGS already: only processes to come see them.
        quick = left_out == "1"
        flags = [f"--{name}={str(value).lower()}" for name, value in _QUICK_FLAGS.items()]
        os.environ["XLA_FLAGS"] = " ".join([_FLAGS, *flags]) if quick else _FLAGS
        compiler.get_compile_options = _quick_compile_options if quick else _compile_options
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _restore_global_flags() -> Iterator[None]:
    """Puts JAX's global flags back after a test, whether or not it passed."""
    before = {name: getattr(jax.config, name) for name in _GLOBAL_FLAGS}
    yield
    for name, value in before.items():
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)
