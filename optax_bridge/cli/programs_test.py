"""Programs by the name of their module or by the path of their file."""

import sys
from pathlib import Path

import pytest

from optax_bridge.cli.convert import template_named
from optax_bridge.cli.programs import module_named


def test_a_file_is_run_once_and_one_that_fails_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "train.py").write_text("value = [3]\n")
    (tmp_path / "broken.py").write_text("raise SystemExit('not today')\n")
    made = module_named(str(tmp_path / "train.py"))
    assert made.value == [3] and module_named(str(tmp_path / "train.py")) is made
    del sys.modules[made.__name__]
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(SystemExit, match="not today"):
            module_named(str(tmp_path / "broken.py"))
        assert set(sys.modules) == before
    with pytest.raises(ImportError, match=r"there is no file .*missing\.py$"):
        module_named(str(tmp_path / "missing.py"))
    assert sys.path[0] == str(tmp_path)


def test_a_program_sees_its_own_name_and_no_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = ["optax-bridge", "check", "--program", "train.py:make"]
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", given)
    seen = "import sys\nSEEN = list(sys.argv)\ndef make():\n    return list(sys.argv)\n"
    (tmp_path / "of_its_own.py").write_text(seen)
    file = str(tmp_path / "of_its_own.py")
    assert module_named(file).SEEN == template_named(f"{file}:make") == [file]
    monkeypatch.chdir(tmp_path)
    assert module_named("of_its_own").SEEN == template_named("of_its_own:make") == ["of_its_own"]
    assert sys.argv is given
    del sys.modules["of_its_own"]
