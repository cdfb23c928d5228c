"""Installed packages: the versions that decide bits, and the extras that commands need.

The base is what `TrainState` and the optimizers need. Everything else comes with an extra, and
`pyproject.toml` alone says which: its optional dependencies, and, in brackets, the extra that each
subcommand needs.
"""

import platform
import re
from collections.abc import Mapping
from importlib import metadata

DISTRIBUTION = "optax-bridge"

# Packages whose version can change bits, or the meaning of a claim.
DECIDE_BITS = (DISTRIBUTION, "jax", "jaxlib", "flax", "optax", "numpy")

# The newest releases that all tests passed with; README.md has the same, and the lowest ones.
NEWEST_TESTED = {"jax": "0.12.0", "flax": "0.12.12", "optax": "0.2.8"}

_LOWEST = re.compile(r"([\w.-]+)>=([\d.]+)$")
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<extras>[^]]*)])?.*;.*\bextra *== *['\"](?P<of>[\w-]+)"
)


class MissingExtraError(ImportError):
    """Packages of an extra are not installed; the message says how to get them."""


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages on which bits depend."""
    return {
        **{name: metadata.version(name) for name in DECIDE_BITS},
        "python": platform.python_version(),
    }


def release_warning(installed: Mapping[str, str] | None = None) -> str:
    """Returns a sentence that names releases that are not supported; "" if all are."""
    if installed is None:
        installed = {name: metadata.version(name) for name in NEWEST_TESTED}
    try:
        requirements = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:  # a copy that was never installed: nothing is known
        requirements = ()
    lowest: dict[str, str] = {
        match[1]: match[2] for requirement in requirements if (match := _LOWEST.match(requirement))
    }
    outside = []
    for name, newest in NEWEST_TESTED.items():
        version = installed[name]
        if _release(version) > _release(newest):
            outside.append(f"{name} {version} is newer than {newest}")
        elif _release(version) < _release(lowest.get(name, version)):
            outside.append(f"{name} {version} is older than {lowest[name]}")
    if not outside:
        return ""
    return (
        f"{' and '.join(outside)}, with which optax-bridge was tested: run `optax-bridge check` "
        "before you rely on it."
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def missing(extra: str) -> list[str]:
    """Returns the distributions of an extra that are not installed, nested extras included."""
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


def require(extra: str, name: str) -> None:
    """Raises MissingExtraError if an extra is not installed."""
    if absent := missing(extra):
        raise MissingExtraError(
            f"{name} needs {' and '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not "
            f'installed. Run: pip install "{DISTRIBUTION}[{extra}]"'
        )


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
