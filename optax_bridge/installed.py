"""What is installed: the versions that decide bits, and the extras that commands need.

The base is what `TrainState` and the optimizers need. Everything else comes with an extra, and
`pyproject.toml` alone says which: its optional dependencies, and, in brackets, the extra that each
subcommand needs.
"""

import platform
import re
from importlib import metadata

DISTRIBUTION = "optax-bridge"

# Packages whose version can change bits, or the meaning of a claim.
DECIDE_BITS = (DISTRIBUTION, "jax", "jaxlib", "flax", "optax", "numpy")

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<extras>[^]]*)])?.*;.*\bextra *== *['\"](?P<of>[\w-]+)"
)


class MissingExtraError(ImportError):
    """Packages of an extra are not installed; the message says how to get them."""


def versions() -> dict[str, str]:
    """The versions of everything that decides bits, Python's included."""
    return {
        **{name: metadata.version(name) for name in DECIDE_BITS},
        "python": platform.python_version(),
    }


def missing(extra: str) -> list[str]:
    """The distributions of an extra, and of extras that it names, that are not installed."""
    absent = []
    try:
        requirements = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:  # a copy that was never installed: nothing is known
        return []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None or match["of"] != extra:
            continue
        if match["name"] == DISTRIBUTION:
            for nested in match["extras"].split(","):
                absent += missing(nested.strip())
        elif not _is_installed(match["name"]):
            absent.append(match["name"])
    return list(dict.fromkeys(absent))


def require(extra: str, what: str) -> None:
    """Refuses to go on without an extra.

    Args:
      extra: its name in `pyproject.toml`.
      what: what needs it, e.g. `optax-bridge migrate`.

    Raises:
      MissingExtraError: some of it is not installed.
    """
    if absent := missing(extra):
        raise MissingExtraError(
            f"{what} needs {' and '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not "
            f'installed. Run: pip install "{DISTRIBUTION}[{extra}]"'
        )


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
