"""Files that a command writes for its user: whole, and nothing else is lost for them."""

import os
import stat
from pathlib import Path

import pytest

from equivalence_tests.output_files import why_no_file, why_not_writable, write_text


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("long text", "short"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_text() == text
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "link", "\ud800")
    assert (tmp_path / "file").read_text() == "short"
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="Linux has names for what is open")
def test_a_pipe_and_standard_output_are_written_to(tmp_path: Path):
    read, write = os.pipe()
    write_text(Path(f"/dev/fd/{write}"), "text")
    os.close(write)
    with open(read) as pipe:
        assert pipe.read() == "text"
    with (tmp_path / "out").open("w") as file:
        write_text(Path(f"/dev/fd/{file.fileno()}"), "text")
        assert os.fstat(file.fileno()).st_nlink == 1  # it is the same file still


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is full")
def test_a_device_is_written_to_and_a_failure_has_the_files_name():
    full = Path("/dev/full")
    assert why_no_file(full) is None
    with pytest.raises(OSError, match="'/dev/full'"):
        write_text(full, "text")
    assert stat.S_ISCHR(full.stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="Linux has a folder that is closed")
def test_a_folder_that_takes_no_files_is_said(tmp_path: Path):
    said = why_not_writable(Path("/proc/self"))
    assert said is not None
    assert said.startswith("/proc/self: expected a folder that can be written to, found ")
    (tmp_path / "file").touch()
    said = f"{tmp_path}/file: expected a folder, or a place to make it, found a file"
    assert why_not_writable(tmp_path / "file") == said
    assert why_no_file(tmp_path) == f"{tmp_path}: expected a file to write, found a folder"
    assert why_not_writable(tmp_path / "a" / "b") is None
    assert list((tmp_path / "a" / "b").iterdir()) == []
