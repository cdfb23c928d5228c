"""All that `migrate` writes and prints for small programs, compared with `testdata`.

A case begins with its name and its command. A line of a file that stays begins with a blank, one
that goes with -, one that comes with +; a line that is printed begins with >. To add a program,
write it with blanks; `python -m migration_guide.codemod.printed_test` records all outcomes again.
Read the difference.
"""

import contextlib
import difflib
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from migration_guide import command
from migration_guide.codemod import driver
from migration_guide.codemod.results import Options

TESTDATA = Path(__file__).parent / "testdata"
APP = typer.Typer(add_completion=False)
APP.command()(command.migrate)


def cases(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each case of a file of `testdata`: its head, and its lines."""
    for text in re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        head, *lines = text.splitlines()
        yield head, lines


def programs(lines: list[str], marks: str) -> dict[str, str]:
    """The files of a case: before (marks of lines that stay or go), or after."""
    files: dict[str, str] = {}
    name = ""
    for line in lines:
        if line.startswith("@ "):
            name = line[2:]
            files[name] = ""
        elif line[:1] in ("", *marks):
            files[name] += f"{line[1:]}\n"
    return files


def outcome(head: str, files: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """The files after a run of the command in a folder of their own, and the lines it prints."""
    args = shlex.split(head.partition(": migrate")[2])
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    result = CliRunner().invoke(APP, args)
    printed = re.sub(r'(in |"seconds": )\d+\.\d+', r"\g<1>0.0", result.output).splitlines()
    after = {name: Path(name).read_text(encoding="utf-8") for name in files}
    return after, [*printed, f"exit code {result.exit_code}"]


def record(path: Path) -> None:
    """Writes the outcomes of today into a file of `testdata`."""
    text = ""
    for head, lines in cases(path):
        files = programs(lines, " -")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            after, printed = outcome(head, files)
        text += f"== {head}\n"
        for name, code in files.items():
            old, new = code.splitlines(), after[name].splitlines()
            difference = list(difflib.unified_diff(old, new, n=9999, lineterm=""))[3:]
            shown = [f"@ {name}", *(difference or (f" {line}" for line in old))]
            text += "".join(f"{line}\n" if line != " " else "\n" for line in shown)
        text += "".join(f"> {line}".rstrip() + "\n" for line in printed)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("path", sorted(TESTDATA.glob("*.txt")), ids=lambda path: path.stem)
def test_the_outcome_is_the_recorded_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
):
    for number, (head, lines) in enumerate(cases(path)):
        with subtests.test(head):
            (tmp_path / str(number)).mkdir()
            monkeypatch.chdir(tmp_path / str(number))
            after, printed = outcome(head, programs(lines, " -"))
            assert after == programs(lines, " +")
            assert printed == [line[2:] for line in lines if line[:1] == ">"]
            recipe = "optax" if "--recipe optax" in head else "auto"
            again = driver.migrate([Path()], Options(recipe=recipe)).changed_files
            assert again == [] or path.stem == "command"


if __name__ == "__main__":
    for recorded in sorted(TESTDATA.glob("*.txt")):
        record(recorded)
