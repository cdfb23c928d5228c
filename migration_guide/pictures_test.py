"""What cells of the guide show: captions as text, tables, programs as they are in their files."""

from pathlib import Path

import pytest

from migration_guide import pictures


def test_captions_are_text_and_tables_and_programs_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    drawn = pictures.figures({"a < b & c": "<svg></svg>", "d": "<svg/>"})
    assert drawn._repr_html_() == str(drawn)
    assert drawn.count("<figure>") == 2
    assert "<figcaption>a &lt; b &amp; c</figcaption><svg></svg></figure>" in drawn
    assert pictures.rows(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    file = tmp_path / "a.py"
    shown = pictures.program(str(file), "x = 1\n\n")
    assert file.read_text() == "x = 1\n\n"
    assert shown == pictures.listing(str(file)) == "```python\nx = 1\n```\n"
    assert shown._repr_markdown_() == shown
    monkeypatch.setattr(pictures, "shell_output", lambda command: f"-{command}\n+b\n")
    expected = "```console\n$ migrate\n```\n\n```diff\n-migrate\n+b\n```\n"
    assert pictures.diff("migrate") == expected
