"""What a wrong value of an option is answered with: the nearest that there is, in plain words."""

import subprocess
import sys

import pytest

from optax_bridge.cli import app

WRONG = {
    "migrate --recipe exat .": "'exat' is not one of 'auto', 'exact', 'optax'; is exact",
    "recipe Adam(1) --dtype x": "'x' is not one of 'float32', 'bfloat16', 'float16'",
    "convert a b --to optx": "'optx' is not one of 'optax', 'legacy', 'torch'; is optax meant?",
    "convert a b --format msgpak": "'msgpak' is not one of 'msgpack', 'orbax'; is msgpack meant?",
    "convert a b --recipe it's": '"it\'s" is not one of',
    "check --devices two": "'two'",
    "check-resume a --program b --learning-rate low": "'low'",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_value_that_is_not_taken(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["optax-bridge", *line.split()])
    with pytest.raises(SystemExit) as ended:
        app.main()
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert ended.value.code == 2
    assert WRONG[line] in said
    assert not any(word in said.lower() for word in ("value error", "input should", "pydantic"))


def test_an_option_before_the_program_that_run_does_not_have():
    """In a process of its own, which would become the program's."""
    line = [sys.executable, "-m", "optax_bridge", "run", "--quite", "train.py"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "No such option: --quite" in done.stderr and "--quiet" in done.stderr
