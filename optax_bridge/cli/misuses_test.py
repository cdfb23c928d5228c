"""Misuses of the commands: each answer says what was expected, what was found, and the remedy."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from optax_bridge.cli.app import app

PAIR = ("compare", "Adam(1e-3)", "optax.adam(1e-3)")
CONVERT = ("convert", "saved", "new")

# Arguments, the exit code, and what the answer says.
MISUSES = {
    "command": ("chekc", 2, "No such command 'chekc'; is check meant?"),
    "option": ("migrate --wriet old.py", 2, "No such option: --wriet", "--write"),
    "rule": ("migrate --only gone_name old.py", 2, "is 'gone_names' meant?", "--list"),
    "number": ((*PAIR, "--steps", "many"), 2, "--steps", "'many'"),
    "no argument": ("convert saved", 2, "Missing argument"),
    "run, no file": ("run missing.py", 2, "expected a script", "nothing of that name", "-m"),
    "run, folder": ("run empty", 2, "expected a script", "a folder without __main__.py"),
    "migrate, no file": ("migrate missing.py", 2, "missing.py: no such file or folder"),
    "migrate, another file": ("migrate notes.txt", 2, "a notebook, found neither"),
    "migrate, empty folder": ("migrate empty", 2, "no Python file and no notebook there"),
    "migrate, nothing": ("migrate", 2, "name at least one file or folder"),
    "inspect, no file": ("inspect missing", 2, "found nothing of that name. Check the path"),
    "inspect, another file": ("inspect notes.txt", 1, "expected a checkpoint", "b'hello"),
    "inspect, names": ("inspect saved --names", 2, "--names and --like train.py:make_state go"),
    "convert, suffix": ((*CONVERT[:2], "new.pt"), 2, "a PyTorch file: --to torch writes one"),
    "convert, base": ((*CONVERT, "--base", "saved"), 2, "--base is only for --to torch"),
    "convert, function of arguments": (
        (*CONVERT, "--like", "new.py:needs"), 2, "It is called without arguments: name a function",
    ),
    "convert, step": ((*CONVERT, "--step", "3"), 2, "--step is only for a checkpoint of PyTorch"),
    "convert, program that ends": (
        (*CONVERT, "--like", "ends.py:make"), 2, "ended with sys.exit(3): put the code",
    ),
    "inspect, empty folder": ("inspect empty", 1, "such as checkpoint_100, found an empty folder"),
    "convert, class": ((*CONVERT, "--optimizer", "Adm(1)"), 2, "is Adam meant? Expected one of"),
    "convert, argument": (
        (*CONVERT, "--optimizer", "Adam(lr=1)"), 2, "no argument lr; is learning_rate meant?",
    ),
    "convert, old program": (
        (*CONVERT, "--like", "old.py:make"), 2, "'optim' from 'flax'", "Migrate it first",
    ),
    "recipe, of Optax": (("recipe", "optax.adam(1)"), 2, "expected Adam(...), optim.Adam(...)"),
    "compare, constructor": (("compare", "Adam(1)", "optax.adamm(1)"), 2, "is adam meant?"),
    "compare, function": (("compare", "new.py:mak", "Adam(1)"), 2, "'mak'; is make meant?"),
    "compare, module": (
        ("compare", "gone:make", "Adam(1)"), 2, "No module named 'gone'. If it is a file, name",
        "name that: gone.py:make",
    ),
    "compare, stream": ((*PAIR, "--gradients", "hostil"), 2, "is hostile meant?"),
    "check, optimizer": ("check --only adm", 2, "is adam meant? There are"),
    "check, file for a folder": ("check --report notes.txt", 2, "a folder", "found a file"),
    "check, recording": ("check --against notes.txt", 2, "a file written by", "not a zip"),
    "check-resume, old program": (
        "check-resume saved --program broken.py:make --old new.py:make", 2, "Migrate it first",
    ),
    "prove, optimizer": ("prove --only adm", 2, "is adam meant? There are"),
    "train, no module": ("train missing.config", 2, "there is no module 'missing'"),
    "train, file": ("train new.py", 2, "expected the dotted name", "my_module.config"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_answered(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "saved").write_text("not a checkpoint")
    for file in ("old.py", "broken.py"):
        (tmp_path / file).write_text("from flax import optim\n\n\ndef make():\n    return optim\n")
    (tmp_path / "new.py").write_text("make = lambda: None\nneeds = lambda x: x\n")
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments, code, *parts = MISUSES[name]
    result = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, arguments.split() if isinstance(arguments, str) else list(arguments)
    )
    answer = " ".join(result.output.split())
    assert result.exit_code == code, answer
    for part in parts:
        assert part in answer
    assert "Traceback" not in answer
