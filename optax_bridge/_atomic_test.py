"""Files that appear whole: the folder of a write, and what killed processes left behind."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optax_bridge._atomic import REPLACED, _host, atomic_write, part_folder, remove_abandoned


def test_a_write_is_private_and_what_fails_leaves_nothing(tmp_path: Path):
    with atomic_write(tmp_path / "a" / "b" / "file") as path:
        path.write_text("whole")
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert os.listdir(tmp_path / "a" / "b") == [path.parent.name]
    assert (tmp_path / "a" / "b" / "file").read_text() == "whole"
    assert os.listdir(tmp_path / "a" / "b") == ["file"]
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "c" / "d" / "file") as path:
        path.write_text(f"{1 / 0}")
    assert os.listdir(tmp_path) == ["a"]


def test_parts_of_killed_processes_are_removed_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recorded: Any
):
    done = subprocess.Popen([sys.executable, "-S", "-c", ""])
    done.wait()
    host, other = re.escape(_host()), "of-another"
    parts = {
        part_folder(tmp_path).name: ["file"],
        f".optax-bridge-{_host()}-{done.pid}-00000000.part": ["file", "more"],
        f".optax-bridge-{_host()}-{done.pid}-00000001.part": [],
        f".optax-bridge-{_host()}-{done.pid}-00000002.part": ["file", REPLACED],
        f".optax-bridge-{_host()}-{done.pid}-00000003.part": ["there", REPLACED],
        f".optax-bridge-{other}-{done.pid}-00000004.part": ["file"],
        f".optax-bridge-{_host()}-{done.pid}-5.part": ["file"],
    }
    (tmp_path / "there").touch()
    for name, files in parts.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    remove_abandoned(tmp_path)
    remaining = [(tmp_path / name).is_dir() for name in parts]
    assert remaining == [True, False, False, True, False, True, True]
    lines = [message.replace(f"{tmp_path}/", "") for message in caplog.messages]
    recorded("abandoned.txt", {"log": re.sub(f"{host}-[0-9]+", "HOST-PID", "\n".join(lines))})
