"""The command under bad conditions: long runs, Ctrl-C, odd files, files that others change."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from migration_guide import command
from migration_guide.codemod import driver
from migration_guide.codemod.reading import files
from migration_guide.codemod.results import Options
from optax_bridge._atomic import part_folder

OLD = "from flax import optim\n\noptimizer = optim.GradientDescent(0.1).create(p)\n"


def _tree(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"m{index}.py" for index in range(count)]
    for path in paths:
        path.write_text(OLD, encoding="utf-8")
    return paths


def test_the_advice_counts_what_is_by_hand_not_what_is_only_remarked(tmp_path: Path):
    program = "from flax import optim\nfrom flax.core import FrozenDict\n\ndef train(params):\n"
    body = ["tx = optim.Adagrad(learning_rate=0.1).create(params)", "x = isinstance(params, {})"]
    for taken, expected in ((1, "0 to do by hand"), (2, "1 to do by hand")):
        lines = "\n".join(f"    {line}" for line in body[:taken]).format("FrozenDict")
        (tmp_path / "a.py").write_text(program + lines + "\n", encoding="utf-8")
        cell = {"cell_type": "code", "source": program + lines}
        (tmp_path / "b.ipynb").write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
        paths = [str(tmp_path / name) for name in ("a.py", "b.ipynb", "not.txt")]
        lines = command.advice(paths).splitlines()
        assert [line.endswith(expected) for line in lines] == [True, True]
        assert lines[0].startswith(f"  {paths[0]}: ")


def test_a_bar_appears_on_a_terminal_where_it_takes_longer(tmp_path: Path):
    _tree(tmp_path, 2)
    for after, appears in ((0.0, True), (60.0, False)):
        console = Console(file=(out := io.StringIO()), force_terminal=True)
        report = command.with_bar([tmp_path], Options(), console, after)
        assert (len(report.changed_files), "2/2" in out.getvalue()) == (2, appears)


@pytest.mark.parametrize(("written", "said"), [(0, "nothing was"), (1, "1 of 3 files")])
def test_interrupted_it_says_so_and_exits_as_the_shell_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    written: int,
    said: str,
):
    paths, write = _tree(tmp_path, 3), files.write

    def interrupted(path: object, *data: bytes) -> object:
        if path != paths[0]:
            raise KeyboardInterrupt
        return write(paths[0], *data)

    monkeypatch.setattr(*((files, "write") if written else (driver, "migrate")), interrupted)
    assert command.run([tmp_path], write=True) == 130
    assert said in capsys.readouterr().err
    assert [path.read_text(encoding="utf-8") != OLD for path in paths] == [written, False, False]


def test_a_file_that_cannot_be_written_is_reported_and_the_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    first, second = _tree(tmp_path, 2)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != first)
    assert command.run([tmp_path], write=True) == 1
    assert "is write-protected" in (printed := capsys.readouterr().out)
    assert "1 file rewritten" in printed
    assert first.read_text(encoding="utf-8") == OLD
    assert second.read_text(encoding="utf-8") != OLD


def test_an_encoding_that_python_does_not_read_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = {"a.py": b"# coding: rot13\n" + OLD.encode(), "b.py": OLD.encode("utf-16")}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    assert command.run([tmp_path], write=True) == 1
    printed = capsys.readouterr().out
    for name, content in data.items():
        assert f"{name}: cannot be read: " in printed
        assert (tmp_path / name).read_bytes() == content


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_names_that_are_no_text_and_that_steer_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in (b"a\xff.py", b"\x1b[31m.py", b"uses.py"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text(OLD, encoding="utf-8")
    (tmp_path / "other.py").write_text("import numpy\n", encoding="utf-8")
    assert command.run([tmp_path]) == 0
    printed = capsys.readouterr().out
    assert "3 files would be rewritten, 4 looked at" in printed
    assert r"a\udcff.py" in printed and r"\x1b[31m.py" in printed and "\x1b" not in printed


def test_what_a_killed_run_left_is_removed_by_the_next_one_that_writes(tmp_path: Path):
    (path,) = _tree(tmp_path, 1)
    left = Path(str(part_folder(tmp_path)).replace(f"-{os.getpid()}-", f"-{2**31 - 1}-"))
    left.mkdir()
    assert command.run([tmp_path]) == 0 and left.exists()
    assert command.run([path], write=True) == 0 and not left.exists()


def test_a_file_is_read_once_whatever_leads_to_it_and_what_is_no_file_not(tmp_path: Path):
    (path,) = _tree(tmp_path, 1)
    (tmp_path / "link.py").symlink_to(path)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    report = driver.migrate([tmp_path, path], Options())
    assert (report.seen, len(report.changed_files)) == (1, 1)


def test_what_python_warns_of_in_a_program_is_not_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Python 3.12 shows a SyntaxWarning for `\\d`, of "<unknown>", to whoever reads the program."""
    for name in ("train.py", "train"):
        (tmp_path / name).write_text(OLD + 'import re\nre.compile("\\d"), 1 is 1\n')
        assert command.run([tmp_path / name], write=True) == 0
        assert "optax.sgd" in (tmp_path / name).read_text()
    assert not capsys.readouterr().err
