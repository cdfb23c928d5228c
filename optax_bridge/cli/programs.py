"""Programs that a user names on the command line: `package.module` or `file.py:name`.

Each is loaded as a program of its own: with its own command line, its own absl flags, and the
modules in its folder, so that an old program and the migrated one may have the same names. One of
them is loaded at a time: the modules and flags of the last leave Python's tables when the next
program is used, and its functions go on with the modules that they have.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from legacy_optim.deprecation import describing
from legacy_optim.logs import without_note_on_tensorflow
from optax_bridge._text import did_you_mean
from optax_bridge.cli.errors import OURS, error_text, place_of

if TYPE_CHECKING:
    from absl.flags import Flag, FlagValues


class ProgramError(ValueError):
    """A program that a user names cannot be loaded, or it fails."""


P = ParamSpec("P")
R = TypeVar("R")

# Modules in the error of a program that imports flax.optim, or asks Flax for it.
_OLD_NAMES = {"flax", "optim"}


@dataclass(eq=False)
class _Program:
    """A program by its name."""

    name: str
    folder: Path
    module: ModuleType | None = None
    modules: dict[str, ModuleType] = field(default_factory=dict)  # imported from its folder
    flags: dict[str, tuple[str, "Flag[Any]"]] = field(default_factory=dict)  # name -> module, flag
    parsed: tuple[str, ...] | None = None
    unknown: tuple[str, ...] | None = None


_programs: dict[Path, _Program] = {}
_loaded: _Program | None = None
_arguments: tuple[str, ...] = ()
_used: list[_Program] = []  # since these arguments are given


@contextlib.contextmanager
def programs_given(arguments: Sequence[str]) -> Generator[None]:
    """Context in which named programs have these arguments on their command lines."""
    global _arguments
    before, _arguments = _arguments, tuple(arguments)
    _used.clear()
    try:
        yield
    finally:
        _arguments = before


def unknown_arguments() -> list[str]:
    """Returns the arguments for which no program has a flag; none if a program parses its own."""
    unknown = [program.unknown for program in _used]
    if not unknown or None in unknown:
        return []
    return [text for text in _arguments if all(text in (some or ()) for some in unknown)]


@contextlib.contextmanager
def with_own_arguments(name: str) -> Generator[None]:
    """Context in which a program sees its own command line, flags and modules."""
    program, before = _program(name), sys.argv
    sys.argv = [name, *_arguments]
    _load(program)
    _parse_flags(program)
    modules = set(sys.modules)
    flags: set[str] = set(_absl_flags() or ())
    try:
        yield
    finally:
        sys.argv = before
        _note_modules(program, modules)
        _note_flags(program, flags)


def in_program(name: str, function: Callable[P, R]) -> Callable[P, R]:
    """Returns a function that runs as a part of the program; itself, if that has no flags."""
    program = _program(name)
    if not program.flags:
        return function

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with with_own_arguments(name):
            return function(*args, **kwargs)

    return run


def module_named(name: str) -> ModuleType:
    """Imports a module by its name, or a file by its path; modules in its folder are found."""
    without_note_on_tensorflow()
    program = _program(name)
    if program.module is not None:
        return program.module
    file = Path(name)
    if file.suffix == ".py" and not file.is_file():
        raise ImportError(f"there is no file {file}. Check the path")
    with with_own_arguments(name):
        is_file = file.suffix == ".py"
        program.module = _execute(name, file) if is_file else importlib.import_module(name)
    with with_own_arguments(name):  # which parses the flags that it has defined
        return program.module


@describing()
def load_object(name: str, *, make: bool = False) -> Any:
    """Returns the object of a name, `module:name` or `file.py:name`, or the result of its call."""
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise ProgramError(
            f"{name}: expected module:name or file.py:name, e.g. mypackage.optimizers:adam"
        )
    try:
        value = _attribute(module, attribute)
    except (ImportError, AttributeError) as error:
        remedy = _migration_remedy(error) or _file_remedy(error, name)
        raise ProgramError(f"{name}: {error}{place_of(error)}{remedy and f'. {remedy}'}") from error
    except SystemExit as error:  # it would end this command as well, with a code of its own
        raise ProgramError(
            f"{name}: importing {module} ended with sys.exit({error.code!r}): put the code that "
            "runs the program below if __name__ == '__main__'"
        ) from error
    except Exception as error:  # any error of the user's module when it is imported
        raise ProgramError(f"{name}: importing {module} {_error_with_hint(error)}") from error
    if not make or not callable(value):
        return value
    try:
        with with_own_arguments(module):
            return value()
    except (Exception, SystemExit) as error:
        remedy = "" if takes_nothing(value) else _WITHOUT_ARGUMENTS.format(attribute)
        if old_names := _migration_remedy(error):
            remedy = f". {old_names}"
        raise ProgramError(f"{name}(): {_error_with_hint(error)}{remedy}") from error


def _attribute(module: str, name: str) -> Any:
    program = module_named(module)
    try:
        return getattr(program, name)
    except AttributeError:
        near = did_you_mean(name, [public for public in dir(program) if not public.startswith("_")])
        raise AttributeError(f"{module} has no attribute {name!r}{near}") from None


_WITHOUT_ARGUMENTS = (
    ". It is called without arguments: name a function that needs none, such as "
    "def make(): return {}(...)"
)


def takes_nothing(function: Callable[..., object]) -> bool:
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
    hint = ". Put the programs' own arguments after --: ... -- --flag=value"
    return f"{error_text(error)}{hint if is_of_flags else ''}"


def _migration_remedy(error: BaseException) -> str:
    """Returns how to migrate the file that imports flax.optim; "" for any other error."""
    words = {*re.findall(r"\w+", str(error))}
    if not isinstance(error, ImportError | AttributeError) or not words.issuperset(_OLD_NAMES):
        return ""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    file = next((Path(file) for file in reversed(files) if os.path.isfile(file)), Path("FILE"))
    if file.is_relative_to(Path.cwd()):
        file = file.relative_to(Path.cwd())
    return f"Migrate it first: optax-bridge migrate --write {shlex.quote(str(file))}"


def _file_remedy(error: BaseException, name: str) -> str:
    """Suggests a file in place of a module that is not installed; "" for any other error."""
    module, _, attribute = name.rpartition(":")
    is_this = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
    return f"If it is a file, name that: {module.replace('.', '/')}.py:{attribute}" * is_this


def _execute(name: str, file: Path) -> ModuleType:
    """Runs a file as a module of the name that the user gave it."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # of a .py file there always is
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _program(name: str) -> _Program:
    file = Path(name).resolve()  # of a module, which is in the working folder
    return _programs.setdefault(file, _Program(name, file.parent))


def _load(program: _Program) -> None:
    """Makes room for a program: modules and flags of the last one leave Python's tables."""
    global _loaded
    if str(program.folder) in sys.path:
        sys.path.remove(str(program.folder))
    sys.path.insert(0, str(program.folder))
    last, _loaded = _loaded, program
    if last is None or last is program:
        return
    for name, module in last.modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    if (flags := _absl_flags()) is None:
        return
    for name, (module, _) in last.flags.items():
        delattr(flags, name)
        flags.flags_by_module_dict().pop(module, None)  # of a module that ran again, too
    for name, (module, flag) in program.flags.items():
        if name == flag.name:  # which sets its short name too
            flags[name] = flag
            flags.register_flag_by_module(module, flag)


def _note_modules(program: _Program, before: set[str]) -> None:
    for name in sys.modules.keys() - before:
        file = getattr(sys.modules[name], "__file__", None)
        is_library = isinstance(file, str) and "site-packages" in file
        if not isinstance(file, str) or is_library or name.partition(".")[0] in OURS:
            continue
        if program.folder in Path(file).parents:
            program.modules[name] = sys.modules[name]


def _note_flags(program: _Program, before: set[str]) -> None:
    if (flags := _absl_flags()) is None:
        return
    for name in set(flags) - before:
        module = str(flags.find_module_defining_flag(name))
        if module == program.name or module in program.modules:
            program.flags[name] = (module, flags[name])


def _absl_flags() -> "FlagValues | None":
    """Returns absl's flags of the process; None where no program has imported them."""
    module = sys.modules.get("absl.flags")
    return None if module is None else module.FLAGS


def _parse_flags(program: _Program) -> None:
    """Sets a program's flags to the values of its command line, else their defaults."""
    if program not in _used:
        _used.append(program)
    flags = _absl_flags()
    if flags is None or not program.flags or program.parsed == _arguments:
        return
    # A module that the program needs to run may not be needed to make its state.
    required = {flag: flag.validators for _, flag in program.flags.values() if flag.value is None}
    for flag in required:
        flag.validators = []
    before = set(flags)
    try:
        program.unknown = tuple(flags([program.name, *_arguments], known_only=True)[1:])
    finally:
        for flag, validators in required.items():
            flag.validators = validators
        # A config of ml_collections defines one for each of its fields that an argument sets.
        program.flags |= {name: (program.name, flags[name]) for name in set(flags) - before}
    program.parsed = _arguments
