"""What is missing is said, with the one line that brings it."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from optax_bridge.cli.installed import (
    NEWEST_TESTED,
    MissingExtraError,
    missing,
    release_warning,
    require,
)

METADATA = """Metadata-Version: 2.4
Name: optax-bridge
Version: 9
Requires-Dist: no-such-base>=1
Requires-Dist: optax-bridge[cli]; extra == 'all'
Requires-Dist: numpy>=2; extra == "all"
Requires-Dist: no-such-terminal>=1; extra == 'cli'
Requires-Dist: no-such-rewriter[fast]>=1; python_version > '3' and extra == 'all'
Requires-Dist: numpy; extra == 'there'
"""
COMMANDS = """[optax_bridge.commands]
inspect = optax_bridge.cli.inspect:inspect [there]
migrate = migration_guide.command:migrate [cli]
"""


@pytest.fixture
def poor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation before all others on the path, of which much is missing."""
    folder = tmp_path / "optax_bridge-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    (folder / "entry_points.txt").write_text(COMMANDS)
    monkeypatch.syspath_prepend(tmp_path)
    assert metadata.version("optax-bridge") == "9"
    return tmp_path


def test_the_packages_of_an_extra_and_of_those_that_it_names_are_looked_for(poor: Path):
    assert missing("all") == ["no-such-terminal", "no-such-rewriter"]
    assert missing("there") == []
    with pytest.raises(MissingExtraError) as caught:
        require("cli", "optax-bridge")
    assert str(caught.value) == (
        "optax-bridge needs no-such-terminal, which is not installed. "
        'Run: pip install "optax-bridge[cli]"'
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["migrate", "--write", "src"], 2, 'Run: pip install "optax-bridge[cli]"'),
        (["migrate", "--help"], 2, "optax-bridge migrate needs no-such-terminal"),
        (["--help"], 0, "needs no-such-terminal"),
        (["inspect", "nothing"], 2, "nothing"),
    ],
    ids=["run", "help", "list", "other command"],
)
def test_a_command_says_what_it_lacks_and_others_work(poor, arguments, code, said):
    from typer.testing import CliRunner

    from optax_bridge.cli import app as cli

    cli._entry_points.cache_clear()
    cli._load.cache_clear()
    try:
        done = CliRunner().invoke(cli.app, arguments, terminal_width=200)
    finally:
        cli._entry_points.cache_clear()
        cli._load.cache_clear()
    assert done.exit_code == code, done.output
    assert said in " ".join(done.output.split())


BASE_ONLY = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
REFUSED = {"attr", "attrs", "flint", "libcst", "sklearn", "tensorboardX", "typer"}
sys.meta_path.insert(0, Refusing())
import optax_bridge, legacy_optim, equivalence_tests
for package in (optax_bridge, legacy_optim):
    for name in package.__all__:
        getattr(package, name)
import optax_bridge.checkpoints as checkpoints
for name in checkpoints.__all__:
    getattr(checkpoints, name)
equivalence_tests.check_equivalence
print("done")
"""


def test_the_base_is_enough_for_all_public_names():
    command = [sys.executable, "-W", "ignore", "-c", BASE_ONLY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


NEWEST = NEWEST_TESTED["jax"]


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, []),
        ({"jax": "0.99.1.dev3"}, [f"jax 0.99.1.dev3 is newer than {NEWEST}"]),
        ({"flax": "0.12.0"}, ["flax 0.12.0 is older than 0.12.2"]),
        (
            {"jax": "0.8.3", "optax": "1.0"},
            ["jax 0.8.3 is older than 0.9.0", f"optax 1.0 is newer than {NEWEST_TESTED['optax']}"],
        ),
    ],
    ids=["tested", "newer", "older", "both"],
)
def test_an_unsupported_release_is_said(installed: dict[str, str], said: list[str]):
    tested = ", with which optax-bridge was tested: run `optax-bridge check` before you rely on it."
    warning = release_warning(NEWEST_TESTED | installed)
    assert warning == (" and ".join(said) + tested if said else "")


def test_the_versions_are_printed_without_any_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from optax_bridge.cli import start

    def lacking(*names: str) -> None:
        raise MissingExtraError(f"needs {names[0]}")

    monkeypatch.setattr("optax_bridge.cli.installed.require", lacking)
    monkeypatch.setattr("sys.argv", ["optax-bridge", "--version"])
    start.main()
    assert capsys.readouterr().out.startswith("optax-bridge ")
    monkeypatch.setattr("sys.argv", ["optax-bridge", "check"])
    with pytest.raises(SystemExit, match="2"):
        start.main()
    assert capsys.readouterr().err == "needs cli\n"
