"""From paths to results: which files matter, what they tell each other, what becomes of each."""

import dataclasses
import gc
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from migration_guide.codemod.inference import parameter_dtypes
from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.exports import exported
from migration_guide.codemod.inference.project import Project, merged
from migration_guide.codemod.reading import files, notebook, pins
from migration_guide.codemod.reading.lines import moved
from migration_guide.codemod.reading.source import TooLargeError, parse
from migration_guide.codemod.rewrite import Rewritten, rewrite
from migration_guide.codemod.writing import standalone
from migration_guide.codemod.writing.context import Message, Options, Restored

_ROUNDS = 8  # what files tell each other settles in two, as a rule


@dataclass(frozen=True)
class FileResult:
    """What became of a file.

    Attributes:
      path: where it is.
      old: its text.
      new: its text after the rewrite.
      encoding: of the file.
      messages: for the user.
      counts: rule -> how often it applied.
      refused: why nothing was rewritten, or "".
      checkpoints: files that it restores.
      compared: constructor calls of flax.optim, each with the call that took its place.
    """

    path: Path
    old: str
    new: str
    encoding: str = "utf-8"
    messages: tuple[Message, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    refused: str = ""
    checkpoints: tuple[Restored, ...] = ()
    compared: tuple[tuple[str, str], ...] = ()

    @property
    def changed(self) -> bool:
        return self.old != self.new


@dataclass(frozen=True)
class Report:
    """What became of all files.

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
class _Candidate:
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


def migrate(
    paths: Iterable[Path],
    options: Options,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Report:
    """Rewrites files in memory; nothing is written.

    Args:
      paths: files and folders.
      options: what the user asked for.
      progress: is told what is being done, with how many files, of how many; 0 for not known yet.

    Returns:
      The results.

    Raises:
      FileNotFoundError: a path that is not there.
    """
    # The trees are large and full of cycles; looking through all of them again and again takes
    # a fifth of the time.
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, *thresholds[1:])
    try:
        return _migrate(paths, options, progress)
    finally:
        gc.set_threshold(*thresholds)


def _migrate(
    paths: Iterable[Path], options: Options, progress: Callable[[str, int, int], None]
) -> Report:
    start = time.perf_counter()
    results: list[FileResult] = []
    looked_at = _files(paths, progress)
    candidates = _read_all(looked_at, results, progress)
    groups: dict[str, list[_Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.file.group, []).append(candidate)
    chosen: list[tuple[_Candidate, Project]] = []
    for group in groups.values():
        explicit = any(c.file.explicit for c in group)
        if explicit or any(c.uses_optim for c in group):
            chosen += _chosen(group, options, results, progress)
    for index, (candidate, project) in enumerate(chosen):
        progress("rewriting", index, len(chosen))
        rewritten = _result(candidate, options, project)
        results += map(_left_outside, rewritten) if candidate.file.outside else rewritten
    progress("rewriting", len(chosen), len(chosen))
    results.sort(key=lambda result: str(result.path))
    return Report(
        tuple(results),
        sum(file.explicit or files.is_code(file.path) for file in looked_at),
        len(chosen),
        time.perf_counter() - start,
        users=sum(candidate.uses_optim for candidate in candidates),
        migrated=sum(files.is_migrated(candidate.data) for candidate in candidates),
    )


def _files(
    paths: Iterable[Path], progress: Callable[[str, int, int], None]
) -> Sequence[files.File]:
    """The files to look at, each once, whatever leads to it."""
    by_path: dict[str, files.File] = {}
    for file in files.walk(paths):
        progress("looking", len(by_path), 0)
        path = os.path.realpath(file.path)
        if path not in by_path or (by_path[path].outside and not file.outside):
            by_path[path] = file
    return list(by_path.values())


def _read_all(
    looked_at: Sequence[files.File],
    results: list[FileResult],
    progress: Callable[[str, int, int], None],
) -> list[_Candidate]:
    """The Python files and notebooks, read; adds pins, and what cannot be read, to the results."""
    candidates: list[_Candidate] = []
    for index, file in enumerate(looked_at):
        progress("reading", index, len(looked_at))
        is_project_file = pins.is_project_file(file.path)
        try:
            data = file.path.read_bytes()
        except OSError as error:
            results.append(_failed(file.path, str(error)))
            continue
        if is_project_file:
            results += _pins(file.path, data)
        if files.is_code(file.path) or (file.explicit and not is_project_file):
            candidates.append(_Candidate(file, data, files.uses_optim(data)))
    return candidates


def save(results: Iterable[FileResult], written: list[Path] | None = None) -> list[FileResult]:
    """Writes the changed files, each in one step.

    Args:
      results: what `migrate` made.
      written: gets the paths, one by one, so that they are known if this is interrupted.

    Returns:
      Those that could not be written, with why.
    """
    failed = []
    for result in results:
        if not result.changed:
            continue
        try:
            if result.path.read_bytes() != result.old.encode(result.encoding):
                failed.append(_failed(result.path, "not written: it has changed meanwhile"))
                continue
            files.write(result.path, result.new.encode(result.encoding))
            if written is not None:
                written.append(result.path)
        except OSError as error:
            failed.append(_failed(result.path, f"not written: {error}"))
    return failed


def _chosen(
    group: Sequence[_Candidate],
    options: Options,
    results: list[FileResult],
    progress: Callable[[str, int, int], None],
) -> list[tuple[_Candidate, Project]]:
    """The files of one program that may matter, and what they tell each other.

    Adds those that cannot be read to the results.
    """

    def readable(candidates: Iterable[_Candidate]) -> list[_Candidate]:
        fine = []
        for candidate in candidates:
            problem = _read(candidate)
            if problem:
                results.append(_failed(candidate.file.path, problem))
            else:
                fine.append(candidate)
        return fine

    first = readable(c for c in group if c.uses_optim or files.has_old_names(c.data))
    modules = frozenset(n for c in group for n in files.module_names(c.file.path))
    start = Project(
        modules=modules,
        half_precision=parameter_dtypes.signs(_sources(group), modules),
        follows_arrays=options.standalone,
    )
    project = _project(first, start, progress)
    functions = [name.rpartition(".")[2] for name in (*project.returns, *project.given)]
    names = [*project.fields, *functions]
    words = [alias.split(".") for alias in project.aliases]
    words += [[f"def {name.rpartition('.')[2]}("] for name in project.expected]
    homes: dict[str, set[str]] = {}
    for name in (*project.definitions, *project.returns):
        home, _, last = name.rpartition(".")
        homes.setdefault(home, set()).add(last)
    others = [c for c in group if not c.uses_optim and not files.has_old_names(c.data)]
    second = readable(
        c
        for c in others
        if files.reads_optimizers(c.data, names)
        or files.names_all_of(c.data, words)
        or files.hands_on(c.data, homes)
    )
    if second:
        project = _project([*first, *second], start, progress)
    if options.standalone:
        analyses = [c.analysis for c in (*first, *second) if c.analysis is not None]
        project.leaves_some = any(map(standalone.leaves_some, analyses))
    return [(candidate, project) for candidate in [*first, *second]]


def _sources(group: Iterable[_Candidate]) -> dict[Path, str]:
    """The code of all files of a program that can be read."""
    return {c.file.path: c.code for c in group if not _read(c)}


def _read(candidate: _Candidate) -> str:
    """Fills in the code, once; says what is wrong where it cannot."""
    if candidate.unreadable is None:
        candidate.unreadable = _unreadable(candidate)
    return candidate.unreadable


def _unreadable(candidate: _Candidate) -> str:
    try:
        candidate.text, candidate.encoding = files.decoded(candidate.data)
        candidate.code = candidate.text
        if candidate.file.path.suffix == ".ipynb":
            candidate.text, candidate.encoding = candidate.data.decode("utf-8"), "utf-8"
            candidate.book = notebook.read(candidate.text)
            candidate.code = candidate.book.code
        elif files.has_old_line_ends(candidate.text):
            candidate.code = candidate.text.replace("\r", "\n")
    except (SyntaxError, UnicodeDecodeError, notebook.NotANotebook) as error:
        return f"cannot be read: {error}"
    return ""


def _project(
    candidates: Sequence[_Candidate],
    start: Project,
    progress: Callable[[str, int, int], None],
) -> Project:
    """What the files of one program tell each other."""
    for index, candidate in enumerate(candidates):
        progress("parsing", index, len(candidates))
        if candidate.analysis is not None:
            candidate.analysis.infer(start)
            continue
        try:
            module = parse(candidate.code)
            candidate.analysis = Analysis(module, start, candidate.file.path)
        except (SyntaxError, RecursionError, TooLargeError):
            continue  # said when it is its turn to be rewritten
        except Exception as error:  # one file must not stop the others
            candidate.problem = _unexpected(error)
    analyses = [c.analysis for c in candidates if c.analysis is not None]
    if any(analysis.own_classes for analysis in analyses) and not start.own_apply_gradient:
        # In every file such calls may be of such a class: what they made of it is no more known.
        start = dataclasses.replace(start, own_apply_gradient=True)
        for analysis in analyses:
            analysis.infer(start)
    project = start
    # Again and again, so that what one file says of a result reaches a third file through a second.
    for _ in range(_ROUNDS):
        shared = merged(map(exported, analyses))
        shared.modules, shared.follows_arrays = start.modules, start.follows_arrays
        shared.half_precision = start.half_precision
        shared.expected = project.expected | shared.expected  # once met, use says no more of it
        if shared == project:
            break
        project = shared
        for analysis in analyses:
            analysis.infer(project)
    return project


def _result(candidate: _Candidate, options: Options, project: Project) -> list[FileResult]:
    path = candidate.file.path
    if candidate.problem:
        return [_failed(path, candidate.problem)]
    try:
        made = rewrite(candidate.code, options, project, path, candidate.analysis)
        candidate.analysis = None  # the largest thing in memory
        new = candidate.text
        if made.code != candidate.code:
            new = made.code if candidate.book is None else candidate.book.with_code(made.code)
            if candidate.book is None and files.has_old_line_ends(candidate.text):
                new = new.replace("\n", "\r")
        new.encode(candidate.encoding)
    except (notebook.NotANotebook, UnicodeEncodeError) as error:
        return [_failed(path, f"left as it is: {error}")]
    except Exception as error:  # one file must not stop the others; it is reported, and unchanged
        return [_failed(path, _unexpected(error))]
    return _said(path, candidate, made, new)


def _said(path: Path, candidate: _Candidate, made: Rewritten, new: str) -> list[FileResult]:
    forth = moved(candidate.code, made.code)
    messages = tuple(dataclasses.replace(m, new_line=forth(m.line)) for m in made.messages)
    if candidate.book is not None:
        messages = _of_notebook(candidate.book, notebook.read(new), forth, messages)
    refused = made.refused if candidate.uses_optim or messages else ""
    if not (messages or refused or new != candidate.text):
        return []
    return [
        FileResult(
            path,
            candidate.text,
            new,
            candidate.encoding,
            messages,
            made.counts,
            refused,
            made.checkpoints,
            made.compared,
        )
    ]


def _of_notebook(
    book: notebook.Notebook,
    new: notebook.Notebook,
    forth: Callable[[int], int],
    messages: Sequence[Message],
) -> tuple[Message, ...]:
    """Messages with their cells, and those about what is no Python: installations, other cells."""
    lines = book.code.splitlines()
    old = pins.old_pins(book.code.replace(notebook.MAGIC, ""))
    pinned = (Message(*pin) for pin in old if notebook.MAGIC in lines[pin[0] - 1])
    said = [*messages, *(dataclasses.replace(m, new_line=forth(m.line)) for m in pinned)]
    placed = []
    for message in said:
        cell, line = book.location(message.line)
        new_line = new.location(message.new_line)[1]
        placed.append(dataclasses.replace(message, cell=cell, line=line, new_line=new_line))
    for cell, source in book.others:
        if re.search(r"\bflax\b.*\boptim\b", source):
            unread = "this cell is not read, and uses flax.optim"
            placed.append(Message(1, unread, cell=cell, new_line=1))
    return tuple(placed)


def _pins(path: Path, data: bytes) -> list[FileResult]:
    text = data.decode("utf-8", errors="replace")
    messages = tuple(Message(line, said, new_line=line) for line, said in pins.old_pins(text))
    return [FileResult(path, text, text, messages=messages)] if messages else []


def _left_outside(result: FileResult) -> FileResult:
    """What would become of a file outside of the folder that was named: it stays as it is."""
    if not result.changed:
        return result
    target = os.path.realpath(result.path)
    return _failed(
        result.path,
        f"left alone: a link to {target}, outside of the folder that was named; name that file, or "
        "its folder, to rewrite it",
    )


def _unexpected(error: Exception) -> str:
    return f"left as it is: {type(error).__name__}: {error}; please report this"


def _failed(path: Path, why: str) -> FileResult:
    return FileResult(path, "", "", refused=why)
