"""The closing lines of `run`: what is counted, what is cut, and what is said of libraries."""

import sys
from pathlib import Path

import numpy as np
import pytest

from legacy_optim import settings
from legacy_optim.closing import _explanations, summary
from legacy_optim.uses import Use

POSITIONAL = "some positional-only arguments passed as keyword arguments:"


def _summary(tmp_path: Path, files: int, lines: int, libraries: int = 0) -> str:
    uses = []
    for number in range(files):
        file = tmp_path / f"program{number}.py"
        file.touch()
        uses += [Use("flax.optim.Adam", str(file), line + 1) for line in range(lines)]
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.touch()
    uses += [Use("flax.optim.Adam", str(library), line) for line in range(libraries)]
    return "\n".join(line for line in summary(uses, str(tmp_path)) if "defaults" not in line)


@pytest.mark.parametrize("lines", [1, 6, 8])
def test_six_places_are_named_and_more_are_counted(
    tmp_path: Path, lines: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(settings.ADVICE, raising=False)
    text = " ".join(_summary(tmp_path, 1, lines, libraries=lines).split())
    places = f"{lines} place" + "s" * (lines > 1)
    assert text.startswith(f"optax-bridge: 1 old name used in {places}: flax.optim.Adam ")
    shown = [f"program0.py:{line + 1}" for line in range(lines)]
    assert text.count("program0.py:") == min(lines, 6)
    assert ", ".join(shown[:6]) + (f" and {lines - 6} more" if lines > 6 else "") in text
    assert f" and in {places} of installed libraries" in text and "library.py" not in text


def test_a_name_within_a_longer_one_on_the_same_line_is_not_counted(tmp_path: Path):
    file = str(tmp_path / "program.py")
    uses = [Use("flax.optim", file, 1), Use("flax.optim.Adam", file, 1), Use("flax.optim", file, 2)]
    text = "\n".join(summary(uses, str(tmp_path)))
    assert "2 old names used in 2 places" in text


@pytest.mark.parametrize("fails", [False, True])
def test_what_migrate_would_do_comes_from_a_process_of_its_own(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "advising.py").write_text(
        "import os\ndef advice(files):\n"
        f"    if {fails}: raise SystemExit('nothing to say')\n"
        "    return f'{len(files)} in {os.path.basename(os.getcwd())}'\n"
    )
    monkeypatch.setenv(settings.ADVICE, "advising:advice")
    last = _summary(tmp_path, 2, 1).splitlines()[-1]
    expected = "  (optax-bridge migrate failed to list its rewrites: nothing to say)"
    assert last == (expected if fails else f"2 in {tmp_path.name}")


def test_a_file_outside_of_the_folder_is_named_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(settings.ADVICE, raising=False)
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.py").touch()
    lines = _summary(tmp_path, 5, 1).splitlines()
    assert f"{lines[-1]} ".endswith(" migrate program0.py program1.py program2.py program3.py ... ")
    use = Use("flax.optim.Adam", str(tmp_path / "other.py"), 3)
    lines = summary([use], str(tmp_path / "folder"))
    assert f"To rewrite them for Optax: optax-bridge migrate {tmp_path / 'other.py'}" in lines


@pytest.mark.parametrize(
    ("function", "keywords", "name"),
    [
        ("sign", "x", "jax.numpy.sign(x="),
        ("divmod", "x1, x2", "jax.numpy.divmod(x1="),
        ("divmod", "other, x2", "jax.numpy.divmod(x2="),
        (
            "_OptimizedLSTMCell.initialize_carry.__init__",
            "size",
            "flax.linen.OptimizedLSTMCell.ini",
        ),
        ("sign.__new__", "x", "jax.numpy.sign(x="),
        ("divmod", "x3", ""),
        ("vmod", "x1", ""),
    ],
)
def test_a_keyword_that_ended_the_program_is_explained(
    function: str, keywords: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    for said in ("an unexpected keyword argument", POSITIONAL):
        error = TypeError(f"{function}() got {said} '{keywords}'")
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        lines = _explanations()
        assert [line.startswith(f"optax-bridge: {name}") for line in lines] == [True] * bool(name)
        assert all(line.endswith("by position, or leave it out") for line in lines)


def test_an_attribute_that_ended_the_program_is_explained(monkeypatch: pytest.MonkeyPatch):
    for owner in (np.ones(1), np.ndarray, type("Own", (np.ndarray,), {})):
        error = AttributeError("itemset", name="itemset", obj=owner)
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        assert _explanations()[0].startswith("optax-bridge: numpy.ndarray.itemset is gone: ")
