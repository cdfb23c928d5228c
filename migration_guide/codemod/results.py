"""Results of the rewriting of a file, and of all files of a run."""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.project import Project
from migration_guide.codemod.reading import files, notebook, pins
from migration_guide.codemod.reading.lines import line_map
from migration_guide.codemod.rewrite import Rewritten, rewrite
from migration_guide.codemod.writing.context import Message, Options


@dataclass(frozen=True, kw_only=True)
class FileResult(Rewritten):
    """The result of the rewriting of one file; its code is the file's whole text.

    Attributes:
      path: where it is.
      old: its text before.
      encoding: of the file.
    """

    path: Path
    old: str
    encoding: str = "utf-8"

    @property
    def changed(self) -> bool:
        return self.old != self.code


@dataclass(frozen=True)
class Report:
    """The results of all files.

    Attributes:
      results: of the files with something to say.
      seen: number of Python files and notebooks that were looked at, and of others that were named.
      parsed: number of files that were parsed.
      seconds: the whole took.
      users: number of files that use flax.optim, or have comments of an earlier run.
      migrated: number of files that use optax_bridge or legacy_optim.
    """

    results: tuple[FileResult, ...]
    seen: int
    parsed: int
    seconds: float
    users: int = 0
    migrated: int = 0

    @property
    def changed(self) -> list[FileResult]:
        return [result for result in self.results if result.changed]

    @property
    def refused(self) -> list[FileResult]:
        """Those that could not be read, rewritten or written."""
        return [result for result in self.results if result.refused]

    @property
    def by_hand(self) -> bool:
        """True if something is left to a person."""
        return any(message.by_hand for result in self.results for message in result.messages)


@dataclass
class Candidate:
    """A file that may be rewritten.

    Attributes:
      file: where it is.
      data: its bytes.
      uses_optim: whether it uses flax.optim, or has comments of an earlier run.
      code: its source, of a notebook that of the code cells.
      encoding: of the file.
      book: the notebook that it is.
      text: its text.
      analysis: of the source, once there is one.
      problem: why it cannot be rewritten, or "".
    """

    file: files.File
    data: bytes
    uses_optim: bool
    code: str = ""
    encoding: str = "utf-8"
    book: notebook.Notebook | None = None
    text: str = ""
    unreadable: str | None = None
    analysis: Analysis | None = None
    problem: str = ""


def result_of(candidate: Candidate, options: Options, project: Project) -> list[FileResult]:
    """Returns the result of rewriting a file; a failure is part of the result, not raised."""
    path = candidate.file.path
    if candidate.problem:
        return [failure(path, candidate.problem)]
    try:
        rewritten = rewrite(candidate.code, options, project, path, candidate.analysis)
        candidate.analysis = None  # the largest thing in memory
        new = candidate.text
        if rewritten.code != candidate.code:
            new = (
                rewritten.code
                if candidate.book is None
                else candidate.book.with_code(rewritten.code)
            )
            if candidate.book is None and files.has_old_line_ends(candidate.text):
                new = new.replace("\n", "\r")
        new.encode(candidate.encoding)
    except (notebook.NotANotebook, UnicodeEncodeError) as error:
        return [failure(path, f"left as it is: {error}")]
    except Exception as error:  # one file must not stop the others; it is reported, and unchanged
        return [failure(path, bug_report(error))]
    return _results(path, candidate, rewritten, new)


def _results(path: Path, candidate: Candidate, rewritten: Rewritten, new: str) -> list[FileResult]:
    """The result of a file, none where there is nothing to say of it."""
    new_line_of = line_map(candidate.code, rewritten.code)
    messages = tuple(
        dataclasses.replace(m, new_line=new_line_of(m.line)) for m in rewritten.messages
    )
    if candidate.book is not None:
        messages = _cell_messages(candidate.book, notebook.read(new), new_line_of, messages)
    refused = rewritten.refused if candidate.uses_optim or messages else ""
    if not (messages or refused or new != candidate.text):
        return []
    result = dataclasses.replace(rewritten, code=new, messages=messages, refused=refused)
    return [FileResult(**vars(result), path=path, old=candidate.text, encoding=candidate.encoding)]


def _cell_messages(
    book: notebook.Notebook,
    new: notebook.Notebook,
    new_line_of: Callable[[int], int],
    messages: Sequence[Message],
) -> tuple[Message, ...]:
    """Returns messages with their cells, with those about installations and other languages."""
    lines = book.code.splitlines()
    old = pins.old_pins(book.code.replace(notebook.MAGIC, ""))
    pinned = (Message(*pin) for pin in old if notebook.MAGIC in lines[pin[0] - 1])
    everything = [
        *messages,
        *(dataclasses.replace(m, new_line=new_line_of(m.line)) for m in pinned),
    ]
    placed = []
    for message in everything:
        cell, line = book.location(message.line)
        new_line = new.location(message.new_line)[1]
        placed.append(dataclasses.replace(message, cell=cell, line=line, new_line=new_line))
    for cell, source in book.others:
        if re.search(r"\bflax\b.*\boptim\b", source):
            unread = "this cell is not read, and uses flax.optim"
            placed.append(Message(1, unread, cell=cell, new_line=1))
    return tuple(placed)


def pins_of(path: Path, data: bytes) -> list[FileResult]:
    """Pins of an old Flax in a project file."""
    content = data.decode("utf-8", errors="replace")
    messages = tuple(Message(line, text, new_line=line) for line, text in pins.old_pins(content))
    return [FileResult(path=path, old=content, code=content, messages=messages)] if messages else []


def left_outside(result: FileResult) -> FileResult:
    """Returns the result for a file outside of the folder that was named, which is not changed."""
    if not result.changed:
        return result
    target = os.path.realpath(result.path)
    return failure(
        result.path,
        f"left alone: a link to {target}, outside of the folder that was named; name that file, or "
        "its folder, to rewrite it",
    )


def bug_report(error: Exception) -> str:
    """The reason for a file that is left alone because of an error of ours."""
    return f"left as it is: {type(error).__name__}: {error}; please report this"


def failure(path: Path, why: str) -> FileResult:
    """The result of a file that could not be handled."""
    return FileResult(path=path, old="", code="", refused=why)
