# pyright: strict
"""Settings of `run` for the processes under it: environment variables, which they hand on."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The process whose end has the closing lines: its number, or NEXT for whichever starts first.
PROCESS, NEXT = "LEGACY_OPTIM_PROCESS", "next"
PYTHON = "LEGACY_OPTIM_PYTHON"  # which interpreter is meant: others that the program starts are not
QUIET = "LEGACY_OPTIM_QUIET"
TODAYS_DEFAULTS = "LEGACY_OPTIM_TODAYS_DEFAULTS"
ADVICE = "LEGACY_OPTIM_ADVICE"  # `module:function`, from files to further closing lines
USES = "LEGACY_OPTIM_USES"  # the file to which other processes than the first write their uses
_ALL = (PROCESS, PYTHON, QUIET, TODAYS_DEFAULTS, ADVICE, USES)

STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")


def is_first() -> bool:
    """True in the program's own process, False in one that it started."""
    return os.environ.get(PROCESS) in (None, str(os.getpid()))


def environment(
    process: str, uses: str, *, quiet: bool, todays_defaults: bool, advice: str
) -> dict[str, str]:
    """The environment to start a program's process with."""
    plain = without_settings(os.environ)
    path = [STARTUP, *filter(None, [plain.get("PYTHONPATH")])]
    settings = {
        PROCESS: process,
        PYTHON: sys.prefix + sys.version,
        QUIET: "1" if quiet else "",
        TODAYS_DEFAULTS: "1" if todays_defaults else "",
        ADVICE: advice,
        USES: uses,
    }
    variables = {key: value for key, value in settings.items() if value}
    return {**plain, "PYTHONPATH": os.pathsep.join(path), **variables}


def without_settings(environment: "Mapping[str, str]") -> dict[str, str]:
    """Returns an environment without the additions of `run`."""
    plain = {key: value for key, value in environment.items() if key not in _ALL}
    path = plain.pop("PYTHONPATH", "")
    rest = "" if path == STARTUP else path.removeprefix(STARTUP + os.pathsep)
    return {**plain, "PYTHONPATH": rest} if rest else plain
