"""What every format can rely on."""

from pathlib import Path
from typing import Any

import pytest

from optax_bridge.checkpoints import CheckpointError
from optax_bridge.checkpoints import read as reading
from optax_bridge.checkpoints.formats.format import Format


@pytest.mark.parametrize("error", [RecursionError("too deep"), KeyError("x"), MemoryError()])
def test_whatever_a_library_raises_names_the_file(error: Exception, tmp_path: Path) -> None:
    def read(path: Path) -> Any:
        raise error

    toy = Format("Toy", "toy", find=lambda path: path, read=read)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}.*Toy.*{type(error).__name__}"):
        reading.contents_of(toy, tmp_path)


def test_two_formats_of_one_option_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "again.py").write_text(
        "from optax_bridge.checkpoints.formats.npz import FORMAT as FORMAT\n"
    )
    monkeypatch.setattr(reading.folder, "__path__", [*reading.folder.__path__, str(tmp_path)])
    reading.formats.cache_clear()
    try:
        with pytest.raises(ValueError, match="two formats"):
            reading.formats()
    finally:
        reading.formats.cache_clear()
