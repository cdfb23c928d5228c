"""Pins of a Flax that still has flax.optim: pointed out, never changed."""

import re
from collections.abc import Iterator
from pathlib import Path

_FILES = re.compile(
    r"(requirements|constraints)[\w.-]*\.(txt|in)|[\w.-]+[-_.](requirements|constraints)\.(txt|in)"
    r"|Dockerfile[\w.-]*|setup\.(cfg|py)|pyproject\.toml|Pipfile|(conda|environment)[\w.-]*\.ya?ml|meta\.ya?ml"
)
_FOLDERS = ("requirements", "constraints")  # requirements/train.txt

# The lowest Flax that this project runs with, as in its pyproject.toml.
LOWEST = "0.12.2"

_VERSION = r"v?\d+(?:\.\d+)*(?:\.\*)?[\w.+!-]*"
_CLAUSE = rf"(?:===|==|~=|!=|<=|>=|<|>|=|\^|~)?\s*{_VERSION}"
# The name, extras, any of `("= {version=` between them, and the clauses.
_PIN = re.compile(
    rf"""(?<![\w./@-])flax(?![\w./-])\s*(?:\[[^\]\n]*\])?["']?\s*
    (?:=\s*(?:\{{[^}}\n]*?\bversion\s*=\s*)?["']\s*)?
    \(?\s*(?P<clauses>{_CLAUSE}(?:\s*,\s*{_CLAUSE})*)""",
    re.IGNORECASE | re.VERBOSE,
)
_GIT = re.compile(r"git\+\S*/flax(?:\.git)?@(?P<clauses>v?\d+(?:\.\d+)+)", re.IGNORECASE)
_WHEEL = re.compile(r"(?<![\w.-])flax-(?P<clauses>\d+(?:\.\d+)+)(?:-py|\.tar|\.zip)", re.IGNORECASE)
_TABLE = re.compile(r"^\s*\[[\w.\"'-]*\bdependencies\.[\"']?flax[\"']?\]", re.MULTILINE)
_IN_TABLE = re.compile(r"""^\s*version\s*=\s*["'](?P<clauses>[^"'\n]+)["']""", re.MULTILINE)


def is_project_file(path: Path) -> bool:
    """True if a file is one that names the versions of dependencies."""
    if path.parent.name in _FOLDERS and path.suffix in (".txt", ".in"):
        return True
    return _FILES.fullmatch(path.name) is not None


def old_pins(text: str) -> list[tuple[int, str]]:
    """Line numbers and messages for pins that no Flax of today satisfies."""
    lines = text.splitlines()
    pins = []
    for number, clauses in sorted(set(_requirements(text, lines))):
        if not _allows_today(clauses):
            message = f"{lines[number - 1].strip()!r} keeps the old Flax: flax>={LOWEST} is needed"
            pins.append((number, f"{message} after the rewrite"))
    return pins


def _requirements(text: str, lines: list[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        code = re.split(r"(?:^|\s)#", line, maxsplit=1)[0]
        for pattern in (_GIT, _WHEEL, _PIN):
            for match in pattern.finditer(code):
                yield number, match["clauses"]
    for table in _TABLE.finditer(text):
        end = text.find("\n[", table.end())
        match = _IN_TABLE.search(text, table.end(), len(text) if end < 0 else end)
        if match is not None:
            yield text.count("\n", 0, match.start("clauses")) + 1, match["clauses"]


def _allows_today(clauses: str) -> bool:
    """True if some version from the lowest on satisfies all clauses."""
    return all(_allows(clause.strip()) for clause in clauses.split(","))


def _allows(clause: str) -> bool:
    match = re.match(r"([=~!<>^]*)\s*v?(\d+(?:\.\d+)*)(\.\*)?", clause, re.IGNORECASE)
    if match is None:
        return True
    operator, version = match[1], tuple(map(int, match[2].split(".")))
    lowest = tuple(map(int, LOWEST.split(".")))
    if operator in (">=", ">", "!="):
        return True
    if operator == "<":
        return version > lowest
    if operator in ("~=", "~", "^"):
        return _next(operator, version) > lowest
    return version >= lowest[: len(version)]  # 0.12 of `==0.12.*` is not below 0.12.3


def _next(operator: str, version: tuple[int, ...]) -> tuple[int, ...]:
    """The first version that a clause of pip (~=) or Poetry (~, ^) leaves out."""
    if operator == "~=":
        length = len(version) - 1
    elif operator == "~":
        length = min(2, len(version))
    else:
        length = next((i + 1 for i, part in enumerate(version) if part), len(version))
    length = max(length, 1)
    return (*version[: length - 1], version[length - 1] + 1)
