# pyright: strict
"""Programs that a user names on the command line, `module:name` or `file.py:name`."""

import contextlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Generator
from typing import Any

import legacy_optim
from equivalence_tests.sides.adapt import EXPECTED, EquivalenceError, as_side
from equivalence_tests.sides.error_text import error_text
from optax_bridge.cli.programs import (
    migration_remedy,
    object_named,
    unknown_arguments,
    with_own_arguments,
)


def load_object(name: str, *, make: bool = False) -> Any:
    """Returns the object of a name; modules of the current folder are found."""
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise EquivalenceError(
            f"{name}: expected module:name or file.py:name, e.g. mypackage.optimizers:adam"
        )
    try:
        value = object_named(module, attribute)
    except (ImportError, AttributeError) as error:
        remedy = migration_remedy(error)
        raise EquivalenceError(f"{name}: {error}{remedy and f'. {remedy}'}") from None
    except SystemExit as error:  # it would end this command as well, with a code of its own
        raise EquivalenceError(
            f"{name}: importing {module} ended with sys.exit({error.code!r}): what runs the "
            "program belongs below if __name__ == '__main__'"
        ) from error
    except Exception as error:  # any error of the user's module when it is imported
        raise EquivalenceError(f"{name}: importing {module} {_error_with_hint(error)}") from error
    if not make or not callable(value):
        return value
    try:
        with with_own_arguments(module):
            return value()
    except (Exception, SystemExit) as error:
        remedy = "" if _takes_nothing(value) else _WITHOUT_ARGUMENTS.format(attribute)
        raise EquivalenceError(f"{name}(): {_error_with_hint(error)}{remedy}") from error


_WITHOUT_ARGUMENTS = (
    ". It is called without arguments: name a function that needs none, such as "
    "def make(): return {}(...)"
)


def _takes_nothing(function: Callable[..., object]) -> bool:
    """False of a function that cannot be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # of one that is not Python's nothing is known
        pass
    return True


def _error_with_hint(error: BaseException) -> str:
    is_of_flags = type(error).__module__.startswith("absl.flags")
    hint = ". Behind -- stand the programs' own arguments: ... -- --flag=value"
    return f"{error_text(error)}{hint if is_of_flags else ''}"


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
