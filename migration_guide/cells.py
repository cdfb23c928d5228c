# pyright: strict
"""The code cells of the guide's pages, run without Sphinx: the tests run what the pages show."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "source"

_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A kernel tells programs to colour what they print; pages show it plain.
_COLOURS = ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")


@dataclass(frozen=True)
class Cell:
    """One code cell."""

    source: str
    line: int


def pages() -> list[Path]:
    """The guide's pages, by name."""
    return sorted(SOURCE.rglob("*.md"))


def cells(page: Path) -> Iterator[Cell]:
    """The code cells of a page, in order, without their options (lines such as `:tags: [...]`)."""
    text = page.read_text(encoding="utf-8")
    for match in _CELL.finditer(text):
        start, code = match.start(1), match.group(1)
        options = re.match(r"(:.*\n)*\n*", code)
        end = options.end() if options else 0
        start, code = start + end, code[end:]
        yield Cell(code, text.count("\n", 0, start))


def run(page: Path) -> dict[str, object]:
    """Runs the cells of a page one after the other, as a reader would."""
    namespace: dict[str, object] = {"__name__": f"page_{page.stem}"}
    for cell in cells(page):
        exec(compile("\n" * cell.line + cell.source, str(page), "exec"), namespace)
    return namespace


def shell(command: str) -> None:
    """Runs a command as in a terminal and prints both, for pages that show it."""
    print(f"$ {command}", shell_output(command), sep="\n")


def shell_output(command: str) -> str:
    """Runs a command as in a terminal."""
    environment = {name: value for name, value in os.environ.items() if name not in _COLOURS}
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    environment["PATH"] = os.pathsep.join(folders)
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{command!r} ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    lines = done.stdout.replace(f"{Path.cwd()}{os.sep}", "").rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines)
