"""From paths to results: finds the files that matter, shares their facts, rewrites each of them."""

import contextlib
import dataclasses
import functools
import gc
import os
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from migration_guide.codemod.inference import half_precision
from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.kinds import Sign
from migration_guide.codemod.inference.project import Project, merge_projects
from migration_guide.codemod.reading import files, notebook
from migration_guide.codemod.reading.marks import line_map
from migration_guide.codemod.reading.source import TooLargeError, parse
from migration_guide.codemod.results import FileResult, Message, Options, Report, Rewritten
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.writing import public_optax, random_numbers

_ROUNDS = 8  # as a rule the facts settle in two


@dataclass
class Candidate:
    """A file that may be rewritten."""

    file: files.File
    data: bytes
    uses_optim: bool
    code: str = ""
    encoding: str = "utf-8"
    book: notebook.Notebook | None = None
    text: str = ""
    analysis: Analysis | None = None
    problem: str = ""

    @functools.cached_property
    def unreadable(self) -> str:
        """Why it cannot be read, or ""; fills in text, code and notebook."""
        try:
            self.text, self.encoding = files.decode(self.data)
            self.code = self.text
            if self.file.path.suffix == ".ipynb":
                self.text, self.encoding = self.data.decode("utf-8"), "utf-8"
                self.book = notebook.read(self.text)
                self.code = self.book.code
        except (SyntaxError, UnicodeDecodeError, notebook.NotANotebook) as error:
            return f"cannot be read: {error}"
        return ""


def migrate(
    paths: Iterable[Path],
    options: Options,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Report:
    """Rewrites files in memory; nothing is written."""
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
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.file.group, []).append(candidate)
    chosen: list[tuple[Candidate, Project]] = []
    for group in groups.values():
        explicit = any(c.file.explicit for c in group) or options.old_random_numbers
        if explicit or any(c.uses_optim for c in group):
            chosen += _relevant_files(group, options, results, progress)
    for index, (candidate, project) in enumerate(chosen):
        progress("rewriting", index, len(chosen))
        rewritten = result_of(candidate, options, project)
        results += map(left_outside, rewritten) if candidate.file.outside else rewritten
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
    """Returns the files to read, each once, however many paths lead to it."""
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
) -> list[Candidate]:
    """Reads the Python files and notebooks; an unreadable one goes into the results."""
    candidates: list[Candidate] = []
    for index, file in enumerate(looked_at):
        progress("reading", index, len(looked_at))
        try:
            data = file.path.read_bytes()
        except OSError as error:
            results.append(failure(file.path, str(error)))
            continue
        if files.is_code(file.path) or file.explicit:
            candidates.append(Candidate(file, data, files.uses_optim(data)))
    return candidates


def save(results: Iterable[FileResult], written: list[Path] | None = None) -> list[FileResult]:
    """Writes the changed files, each in one step."""
    unsaved: list[FileResult] = []
    for result in results:
        if not result.is_changed:
            continue
        try:
            if result.path.read_bytes() != result.old.encode(result.encoding):
                unsaved.append(failure(result.path, "not written: it has changed meanwhile"))
                continue
            files.write(result.path, result.code.encode(result.encoding))
            if written is not None:
                written.append(result.path)
        except OSError as error:
            unsaved.append(failure(result.path, f"not written: {error}"))
    return unsaved


def _relevant_files(
    group: Sequence[Candidate],
    options: Options,
    results: list[FileResult],
    progress: Callable[[str, int, int], None],
) -> list[tuple[Candidate, Project]]:
    """Returns the files of a program that may matter, each with the facts that they share."""
    remaining = {candidate.file.path: candidate for candidate in group}
    modules = frozenset(n for c in group for n in files.module_names(c.file.path))
    start = project = Project(
        modules=modules,
        half_precision=_half_precision(group),
        follows_arrays=options.optax_alone,
    )
    chosen: list[Candidate] = []
    more = [c for c in group if c.uses_optim or files.has_old_names(c.data)]
    if options.old_random_numbers:
        more += [c for c in group if c not in more and random_numbers.makes_keys(c.data)]
    while more:  # their facts may make another file matter
        for candidate in more:
            del remaining[candidate.file.path]
            if candidate.unreadable:
                results.append(failure(candidate.file.path, candidate.unreadable))
            else:
                chosen.append(candidate)
        project = _project(chosen, start, project, progress)
        more = list(filter(_readers(project), remaining.values()))
    if options.optax_alone:
        analyses = [c.analysis for c in chosen if c.analysis is not None]
        project.leaves_some = any(map(public_optax.leaves_some, analyses))
    return [(candidate, project) for candidate in chosen]


def _readers(project: Project) -> Callable[[Candidate], bool]:
    """Returns a test for files that may read, or hand on, optimizers of their program."""
    functions = [name.rpartition(".")[2] for name in (*project.returns, *project.argument_kinds)]
    names = [*project.fields, *functions]
    words = [alias.split(".") for alias in project.aliases]
    words += [[f"def {name.rpartition('.')[2]}("] for name in project.expected]
    homes: dict[str, set[str]] = {}
    for name in (*project.definitions, *project.returns, *project.values, *project.unclear):
        home, _, last = name.rpartition(".")
        homes.setdefault(home, set()).add(last)
    return lambda c: (
        files.reads_optimizers(c.data, names)
        or files.names_all_of(c.data, words)
        or files.hands_on(c.data, homes)
    )


def _half_precision(group: Sequence[Candidate]) -> dict[Path, Sign]:
    """File -> the line that says half precision; in a notebook with its cell."""
    readable = {c.file.path: c for c in group if not c.unreadable}
    sources = {path: c.code for path, c in readable.items()}
    if any(c.file.explicit for c in group):
        sources = half_precision.with_imports(sources)
    signs = half_precision.signs(sources)
    for path, sign in signs.items():
        origin = readable.get(Path(sign.path))
        if origin is not None and origin.book is not None:
            cell, line = origin.book.location(sign.line)
            signs[path] = dataclasses.replace(sign, cell=cell, line=line)
    return signs


def _project(
    candidates: Sequence[Candidate],
    start: Project,
    project: Project,
    progress: Callable[[str, int, int], None],
) -> Project:
    """Returns the facts that the files of one program share, from those of some of them."""
    for index, candidate in enumerate(candidates):
        progress("parsing", index, len(candidates))
        if candidate.analysis is None and not candidate.problem:
            with _noting_errors(candidate):
                candidate.analysis = Analysis(parse(candidate.code), candidate.file.path)
    analyses = [c.analysis for c in candidates if c.analysis is not None]
    # In every file such calls may be of such a class: what they made of it is not known then.
    start.own_apply_gradient |= any(analysis.own_classes for analysis in analyses)
    # Repeated, so that one file's facts reach a third file through a second.
    for number in range(_ROUNDS):
        shared = merge_projects([start, *(analysis.shared for analysis in analyses)])
        shared.expected = project.expected | shared.expected  # once met, use says no more of it
        if number and shared == project:
            break
        project = shared
        for candidate in candidates:
            if candidate.analysis is not None:
                with _noting_errors(candidate):
                    candidate.analysis.infer(project)
    return project


@contextlib.contextmanager
def _noting_errors(candidate: Candidate) -> Generator[None]:
    """Context in which one file's error does not stop the others."""
    try:
        yield
    except (SyntaxError, RecursionError, TooLargeError):  # said when it is its turn to be rewritten
        candidate.analysis = None
    except Exception as error:
        candidate.analysis, candidate.problem = None, bug_report(error)


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
    except notebook.NotANotebook as error:
        return [failure(path, f"unchanged: {error}")]
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
    located = []
    for message in messages:
        cell, line = book.location(message.line)
        new_line = new.location(message.new_line)[1]
        located.append(dataclasses.replace(message, cell=cell, line=line, new_line=new_line))
    for cell, source in book.others:
        if re.search(r"\bflax\b.*\boptim\b", source):
            unread = "this cell is not read, and uses flax.optim"
            located.append(Message(1, unread, cell=cell, new_line=1))
    return tuple(located)


def left_outside(result: FileResult) -> FileResult:
    """Returns the result for a file outside of the folder that was named, which is not changed."""
    if not result.is_changed:
        return result
    target = os.path.realpath(result.path)
    return failure(
        result.path,
        f"left alone: a link to {target}, outside of the folder that was named; name that file, or "
        "its folder, to rewrite it",
    )


def bug_report(error: Exception) -> str:
    """The reason for a file that is left alone because of an error of ours."""
    return f"unchanged: {type(error).__name__}: {error}; please report this"


def failure(path: Path, why: str) -> FileResult:
    """The result of a file that could not be handled."""
    return FileResult(path=path, old="", code="", refused=why)
