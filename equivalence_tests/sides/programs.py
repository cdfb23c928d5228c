# pyright: strict
"""Programs that a user names on the command line, `module:name` or `file.py:name`."""

import contextlib
import importlib.util
import warnings
from collections.abc import Generator
from typing import Any

import legacy_optim
from equivalence_tests.sides.adapt import EXPECTED, EquivalenceError, as_side
from optax_bridge.cli.programs import load_object, unknown_arguments


def side_or_function(name: str) -> tuple[Any, bool]:
    """Returns the object of a name, and True if it is a side; else it can be called to make one."""
    value = load_object(name)
    try:
        as_side(value)
        return value, True
    except EquivalenceError:
        if callable(value):
            return value, False
        raise EquivalenceError(
            f"{name}: {EXPECTED}, or a function that makes one; found {type(value).__name__}"
        ) from None


def check_arguments() -> None:
    """Raises an EquivalenceError if no program that was loaded has a flag for an argument."""
    if unknown := unknown_arguments():
        raise EquivalenceError(
            f"-- {' '.join(unknown)}: expected arguments that one of the programs has a flag for"
        )


@contextlib.contextmanager
def old_names() -> Generator[None]:
    """Within it `from flax import optim` works, as in the programs that people come from."""
    if importlib.util.find_spec("flax.optim") is not None:
        yield
        return
    legacy_optim.install()
    try:
        yield
    finally:
        legacy_optim.uninstall()


def silence_deprecations() -> None:
    """Silences what the old API tells programs: commands make old optimizers by the dozen."""
    for message in ("flax.optim was removed", "Optimizer.replicate"):
        warnings.filterwarnings("ignore", message=message, category=DeprecationWarning)
