# pyright: strict
"""Programs that a user names on the command line, `module:name` or `file.py:name`."""

import contextlib
import importlib.util
import warnings
from collections.abc import Generator

import legacy_optim
from equivalence_tests.sides.adapt import EquivalenceError
from optax_bridge.cli.programs import unknown_arguments


def check_arguments() -> None:
    """Raises an EquivalenceError if no program that was loaded has a flag for an argument."""
    if unknown := unknown_arguments():
        raise EquivalenceError(
            f"-- {' '.join(unknown)}: expected arguments that one of the programs has a flag for"
        )


@contextlib.contextmanager
def old_names() -> Generator[None]:
    """Context in which `from flax import optim` works, as in old programs."""
    if importlib.util.find_spec("flax.optim") is not None:
        yield
        return
    legacy_optim.install()
    try:
        yield
    finally:
        legacy_optim.uninstall()


def silence_deprecations() -> None:
    """Silences the old API's deprecations: commands make old optimizers by the dozen."""
    for message in ("flax.optim was removed", "Optimizer.replicate"):
        warnings.filterwarnings("ignore", message=message, category=DeprecationWarning)
