"""Commands as a user types them, in this process."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
from typer.main import get_command

from optax_bridge.cli.app import app


class Done(NamedTuple):
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All of it."""
        return f"exit code {self.code}\n{self.out}{self.err}"


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Done]]:
    """Calls `optax-bridge` in an empty folder, and restores the process's settings."""
    names = ("persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    modules = set(sys.modules)

    def call(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            get_command(app).main([*arguments], prog_name="optax-bridge")
        printed = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else int(bool(code)), printed.out, printed.err)

    yield call
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    for name, value in before.items():
        jax.config.update(name, value)
