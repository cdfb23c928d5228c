"""Shared by all tests: eight CPU devices, compilation that is quick and kept, flags."""

import functools
import gc
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

# Where the environment asks for no bytecode, each of the 200 processes that tests start would
# compile the modules of this project again, for a third of a second.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Read by JAX when it is first imported, so they are set before that happens.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".cache" / "jax"))
# Even small programs: workers, and the processes that tests start, compile many of the same.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
_flags = {"--xla_force_host_platform_device_count": "8"}
# LLVM's higher levels take longer than the programs run, ten times as long where random numbers are
# drawn: they write out loops. Level 1 rounds alike; level 0 would round products and sums apart.
_flags["--xla_backend_optimization_level"] = "1"
# Tests compile thousands of small programs and run each a few times. The emitters that XLA had
# before its present ones compile in half of the time, to the same bits as far as any test sees;
# `optax-bridge check`, which CI runs too, compiles as a user's program does. Later releases have
# the present ones alone, and end the process at a flag that they do not know.
if metadata.version("jaxlib").startswith(("0.9.", "0.10.")):
    _flags["--xla_cpu_use_fusion_emitters"] = "false"
    _flags["--xla_cpu_parallel_codegen_split_count"] = "1"
_user_flags = os.environ.get("XLA_FLAGS", "")
_added = [f"{name}={value}" for name, value in _flags.items() if name not in _user_flags]
os.environ["XLA_FLAGS"] = " ".join([*_user_flags.split(), *_added])

import jax
import pytest
from jax._src.interpreters import mlir

# For each program that it lowers JAX makes a context of its own and loads all dialects, for 4 ms
# and some memory. From JAX 0.12 on several programs share one; the tests lower thousands.
if jax.__version_info__ < (0, 12):
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)

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


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compares texts, or what calls say, with a file of `testdata`; RECORD=1 writes the file.

    With `some=True` the file has those of other tests as well; with `rounded=True` times and lines
    of code are left out, and numbers have two digits, as the last ones differ between processors.
    """

    def compare(
        file: str, cases: Mapping[str, object], *, some: bool = False, rounded: bool = False
    ) -> None:
        path = request.path.parent / "testdata" / file
        texts = {name: _said(case).rstrip() for name, case in cases.items()}
        texts = {name: _rounded(text) for name, text in texts.items()} if rounded else texts
        if os.environ.get("RECORD"):
            texts = {**_sections(path), **texts} if some and path.exists() else texts
            path.write_text("".join(f"== {n}\n{text}\n\n" for n, text in texts.items()), "utf-8")
        expected = _sections(path)
        assert texts == ({name: expected.get(name) for name in texts} if some else expected)

    return compare


def _rounded(text: str) -> str:
    """A text without times and lines of code, its numbers with a point to two digits."""
    text = re.sub(r"(?m), [\d.e+-]+ s$|(?<=\.py):\d+", "", text)
    text = re.sub(r"(in float64 )[\d.]+e-1\d", r"\g<1>0", text)
    number = re.compile(r"(?<![\w.])\d+\.\d+(e[-+]?\d+)?")
    return number.sub(lambda digits: f"{float(digits[0]):.2g}", text)


def _sections(path: Path) -> dict[str, str]:
    """The texts of a file, by their names."""
    sections = path.read_text("utf-8").removeprefix("== ").split("\n\n== ")
    return dict(section.rstrip().partition("\n")[::2] for section in sections)


def _said(case: object) -> str:
    """A text itself; of a call its warnings, and its error or its result."""
    if not callable(case):
        return str(case)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # said once in a process
        try:
            result = case()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
    said = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    return "\n".join([*said, *([] if result is None else [str(result)])])
