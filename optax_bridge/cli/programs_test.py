"""Programs by the name of their module or by the path of their file."""

import functools
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from optax_bridge.cli import errors
from optax_bridge.cli.app import app
from optax_bridge.cli.programs import load_object, module_named, programs_given, unknown_arguments

made = functools.partial(load_object, make=True)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


def test_a_file_is_run_once_and_one_that_fails_each_time(tmp_path: Path):
    (tmp_path / "train.py").write_text("value = [3]\n")
    (tmp_path / "broken.py").write_text("raise SystemExit('not today')\n")
    program = module_named(str(tmp_path / "train.py"))
    assert program.value == [3] and module_named(str(tmp_path / "train.py")) is program
    del sys.modules[program.__name__]
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(SystemExit, match="not today"):
            module_named(str(tmp_path / "broken.py"))
        assert set(sys.modules) == before
    with pytest.raises(ImportError, match=r"there is no file .*missing\.py\. Check"):
        module_named(str(tmp_path / "missing.py"))
    assert sys.path[0] == str(tmp_path)


def test_a_program_sees_its_own_name_and_no_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = ["optax-bridge", "check", "--program", "train.py:make"]
    monkeypatch.setattr(sys, "argv", given)
    seen = "import sys\nSEEN = list(sys.argv)\ndef make():\n    return list(sys.argv)\n"
    (tmp_path / "of_its_own.py").write_text(seen)
    file = str(tmp_path / "of_its_own.py")
    assert module_named(file).SEEN == made(f"{file}:make") == [file]
    assert module_named("of_its_own").SEEN == made("of_its_own:make") == ["of_its_own"]
    assert sys.argv is given
    del sys.modules["of_its_own"]


@pytest.mark.filterwarnings(
    r"ignore:the load_module\(\) method:DeprecationWarning"
)  # ml_collections'
def test_a_config_of_ml_collections_is_set_in_each_program_that_has_it(tmp_path: Path):
    (tmp_path / "config.py").write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config():\n    return ConfigDict({'rate': 0.1, 'beta': 0.9})\n"
    )
    for name in ("configured_old.py", "configured_new.py"):
        (tmp_path / name).write_text(
            "from ml_collections import config_flags\n"
            "CONFIG = config_flags.DEFINE_config_file('config')\n"
            "def make():\n    return CONFIG.value.to_dict()\n"
        )
    with programs_given(["--config=config.py", "--config.rate=0.5"]):
        for name in ("configured_old.py", "configured_new.py", "configured_old.py"):
            assert made(f"{name}:make") == {"rate": 0.5, "beta": 0.9}


def test_files_of_one_folder_have_their_own_modules_beside_them(tmp_path: Path):
    for age, rate in (("past", 1), ("present", 2)):
        (tmp_path / f"{age}.py").write_text(
            "from absl import flags\n"
            f"flags.DEFINE_integer('rate_of_ages', {rate}, '', short_name='r')\n"
            "def rate():\n    return flags.FLAGS.rate_of_ages\n"
        )
        (tmp_path / f"of_{age}.py").write_text(f"from {age} import rate\nmake = rate\n")
        late = f"def make():\n    from {age} import rate\n    return rate()\n"
        (tmp_path / f"later_{age}.py").write_text(late)
    for when in ("of", "later", "of", "later"):
        assert made(f"{when}_past.py:make") == 1
        assert made(f"{when}_present.py:make") == 2
    with programs_given(["-r=3"]):
        for name in ("of_past", "of_present", "later_past", "later_present"):
            assert made(f"{name}.py:make") == 3


def test_an_argument_is_unknown_where_no_program_knows_it(tmp_path: Path):
    for name in ("alpha", "omega"):
        flag = f"from absl import flags\nflags.DEFINE_float('{name}', 0.0, '')\nmake = list\n"
        (tmp_path / f"with_{name}.py").write_text(flag)
    with programs_given(["--alpha=1", "--omega=2", "--sigma=3"]):
        for name in ("alpha", "omega"):
            made(f"with_{name}.py:make")
        assert unknown_arguments() == ["--sigma=3"]


def test_a_line_is_the_users_where_no_package_has_it():
    for file in ("<string>", "/usr/lib/python3/dist-packages/x.py", "/v/site-packages/x/y.py"):
        assert not errors._is_users(file)
    own = [str(Path(errors.__file__).with_name(name)) for name in ("app.py", "app_test.py")]
    assert [errors._is_users(file) for file in (*own, "train.py")] == [False, True, True]


ADAM = Path(__file__).parents[1] / "checkpoints" / "testdata" / "adam.msgpack"


@pytest.mark.parametrize(
    "command",
    [
        "compare fails.py:make Adam(1e-3)",
        f"check-resume {ADAM} --program fails.py:make --old fails.py:make",
        f"convert {ADAM} new --like fails.py:make",
        f"inspect {ADAM} --names --like fails.py:make",
        f"replay {ADAM} --optimizer fails.py:make",
        "train fails.make",
    ],
    ids=lambda command: command.partition(" ")[0],
)
def test_an_error_of_a_program_is_its_innermost_line_and_the_traceback_is_shown_on_request(
    command: str, tmp_path: Path
):
    (tmp_path / "fails.py").write_text("def make():\n    return deeper()\ndeeper = lambda: 1 / 0\n")
    brief = CliRunner().invoke(app, command.split())
    assert brief.exit_code == 2
    assert "ZeroDivisionError: division by zero" in brief.output
    assert any(place in brief.output for place in ("(fails.py:3)", "fails.py:3, in"))
    assert "Traceback (most" not in brief.output
    full = CliRunner().invoke(app, [*command.split(), "--traceback"])
    assert "line 2, in make" in full.output or isinstance(full.exception, ZeroDivisionError)
