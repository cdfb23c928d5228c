"""Misuses of the commands: each answer says what was expected, what was found, and the remedy."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from optax_bridge.checkpoints.formats.pytorch import SUFFIXES
from optax_bridge.cli.app import app

PAIR = ("compare", "Adam(1e-3)", "optax.adam(1e-3)")

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
    **{
        f"convert, {suffix}": (
            f"convert saved new{suffix}", 2, f"new{suffix} has the suffix of a PyTorch file",
            "--to torch",
        )
        for suffix in SUFFIXES
    },
    "inspect, names": ("inspect saved --names", 2, "--names and --like train.py:make_state go"),
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
    (tmp_path / "broken.py").write_text("from flax import optim\n\nmake = lambda: optim\n")
    (tmp_path / "new.py").write_text("make = lambda: None\n")
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
