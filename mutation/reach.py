"""Which tests reach a statement, and how long each takes: measured by coverage, and kept."""

import ast
import collections
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import coverage
import pytest

# Processes that tests start are measured too: pytest says in the environment which test runs.
_SETTINGS = """[run]
data_file = {folder}/data
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit, execv
disable_warnings = no-data-collected, module-not-measured, module-not-imported
include =
    {modules}
"""
Main = Callable[[Sequence[str], Sequence[Any]], int]  # tests, and plugins of pytest
Work = Callable[[Main], int]


@dataclass(frozen=True)
class Statement:
    """A statement wherever it stands in its module: the function around it, and its first line.

    Attributes:
      scope: qualified name of the function or class that it is in, or defines.
      text: its first line.
      runs: whether it is in a function, and so runs when that is called, not at import.
    """

    scope: str
    text: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.scope}: {self.text}"


def statements(source: str) -> dict[int, Statement]:
    """The innermost statement of each line of a module."""
    lines, found = source.splitlines(), {}

    def look(node: ast.AST, scope: str, runs: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inner, inside = scope, runs
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{scope}.{child.name}".lstrip(".")
                inside = runs or not isinstance(child, ast.ClassDef)
            if isinstance(child, ast.stmt):
                decorators = getattr(child, "decorator_list", ())
                first = min([child.lineno, *(each.lineno for each in decorators)])
                statement = Statement(inner, lines[child.lineno - 1].strip(), runs)
                found.update(
                    dict.fromkeys(range(first, (child.end_lineno or first) + 1), statement)
                )
            look(child, inner, inside)

    look(ast.parse(source), "", False)
    return found


class Reach:
    """What each file of tests reached when it was measured.

    Args:
      kept: folder of the measurements, one for each file of tests; delete it to measure all anew.
      root: of the repository as it is now.
      modules: paths of what is measured.
    """

    def __init__(self, kept: Path, root: Path, modules: Sequence[str]) -> None:
        self._kept, self._root, self._modules = kept, root, modules
        self._seconds: dict[str, float] = {}  # of each test, and of each file's imports
        self._reached: dict[str, dict[str, set[str]]] = {}
        self._texts: dict[str, set[str]] = {}

    def measure(self, files: Sequence[str], run: Callable[[Work], tuple[str, str, float]]) -> None:
        """Runs the files of tests that are new or changed since, each in a process of its own."""
        self._kept.mkdir(parents=True, exist_ok=True)
        for file in files:
            to = self._kept / f"{file.replace('/', '.')}-{_hash(self._root / file)}.json"
            if not to.exists():  # another process may be at it, from elsewhere in the list
                _, said, seconds = run(partial(_measured, file, self._modules, to))
                if not to.exists():
                    raise RuntimeError(f"{file} could not be measured:\n{said}")
                print(f"measured: {seconds:.0f} s {file}", flush=True)
            found = json.loads(to.read_text(encoding="utf-8"))
            for test in found["failed"]:
                print(f"left out, for it fails while it is measured: {test}", flush=True)
            self._seconds |= {file: found["start"], **dict(found["tests"])}
            names = [name for name, _ in found["tests"]]
            for module, by_statement in found["reached"].items():
                known = self._reached.setdefault(module, {})
                for statement, tests in by_statement.items():
                    known.setdefault(statement, set()).update(names[test] for test in tests)
            for module, text in found["texts"].items():
                self._texts.setdefault(module, set()).add(text)

    def tests(self, module: str, line: int, most: float) -> tuple[list[str], float]:
        """Tests that reach a line: one of each function first, and the quickest of these.

        The head of a function, and what is new in one since the measurement, is taken to be reached
        by all that reaches the function; else what runs at import by all in the files of tests that
        reach the module.

        Args:
          module: path of the file.
          line: its number.
          most: seconds of processor that they may take together.

        Returns: ids, those of a file side by side, and their seconds.
        """
        reached = self._reached.get(module, {})
        at = statements((self._root / module).read_text(encoding="utf-8")).get(line)
        tests = reached.get(str(at), set())
        same = self._texts.get(module, set()) <= {_hash(self._root / module)}
        if at is None or not at.runs or (not tests and (str(at) in reached or not same)):
            function = at.scope if at is not None and (at.runs or "def " in at.text) else ""
            parts = (f"{function}:", f"{function}.") if function else ("",)
            found = (own for name, own in reached.items() if name.startswith(parts))
            near = set[str]().union(*found)
            tests = near or set[str]().union(*reached.values())
            if not function:  # a default, say, which some read without running a line of here
                files = {test.partition("::")[0] for test in tests}
                tests = {t for t in self._seconds.keys() - files if t.partition("::")[0] in files}
        chosen: dict[str, list[str]] = {}
        left = most
        for test in self._ordered(module, tests):
            file = test.partition("::")[0]
            seconds = self._seconds[test] + (0 if file in chosen else self._seconds[file])
            if seconds <= left:
                left -= seconds
                chosen.setdefault(file, []).append(test)
        return [test for tests in chosen.values() for test in tests], most - left

    def _ordered(self, module: str, tests: set[str]) -> list[str]:
        own = f"{module.removesuffix('.py')}_test.py::"
        times: collections.Counter[str] = collections.Counter()
        ranked = []
        for test in sorted(tests & self._seconds.keys(), key=self._seconds.__getitem__):
            function = test.partition("[")[0]
            times[function] += 1
            ranked.append((times[function], not test.startswith(own), self._seconds[test], test))
        return [test for *_, test in sorted(ranked)]


class _Watch:
    """Says to coverage which test runs, and keeps how long it took."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.measured.switch_context(item.nodeid)
        before = _processor()
        result = yield
        self.seconds[item.nodeid] = round(_processor() - before, 2)
        self.measured.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def _measured(file: str, modules: Sequence[str], to: Path, main: Main) -> int:
    """Runs a file of tests, in the copy of the repository, and writes what each reached."""
    copy = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        include = "\n    ".join(str(copy / module) for module in modules)
        settings = Path(folder, "settings")
        settings.write_text(_SETTINGS.format(folder=folder, modules=include), encoding="utf-8")
        os.environ["COVERAGE_PROCESS_START"] = str(settings)
        measured = coverage.Coverage(config_file=str(settings))
        watch = _Watch(measured)
        before = _processor()
        measured.start()
        code = main([file], [watch])
        measured.stop()
        start = round(_processor() - before - sum(watch.seconds.values()), 2)
        measured.save()
        measured.combine([folder])
        names = sorted(watch.seconds.keys() - watch.failed)
        reached = _by_statement(measured.get_data(), copy, names)
    found = {
        "start": start, "failed": sorted(watch.failed), "reached": reached,
        "tests": [(name, watch.seconds[name]) for name in names],
        "texts": {module: _hash(copy / module) for module in reached},
    }  # fmt: skip
    part = to.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.rename(to)
    return code


def _by_statement(
    data: coverage.CoverageData, copy: Path, names: Sequence[str]
) -> dict[str, dict[str, list[int]]]:
    """Module -> statement -> positions of the tests that reached it."""
    numbers = {name: number for number, name in enumerate(names)}
    reached: dict[str, dict[str, list[int]]] = {}
    for name in data.measured_files():
        at = statements(Path(name).read_text(encoding="utf-8"))
        by_statement: dict[str, set[int]] = {}
        for line, contexts in data.contexts_by_lineno(name).items():
            tests = {context.rpartition(" (")[0] or context for context in contexts}
            own = {numbers[test] for test in tests.union(contexts) if test in numbers}
            if line in at:
                by_statement.setdefault(str(at[line]), set()).update(own)
        module = str(Path(name).relative_to(copy))
        reached[module] = {statement: sorted(own) for statement, own in by_statement.items()}
    return reached


def _processor() -> float:
    return sum(os.times()[:4])


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
