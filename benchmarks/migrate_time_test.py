"""The measurement measures what it says; how fast that is, is no matter for a test."""

import ast

import pytest

from benchmarks import migrate_time
from migration_guide.codemod import driver
from migration_guide.codemod.context import Options


def test_a_tree_and_a_file_are_measured(capsys):
    assert (
        migrate_time.main(["--files", "100", "--dense", "1", "--lines", "40", "--turns", "1"]) == 0
    )
    tree, dense, file = capsys.readouterr().out.splitlines()
    assert tree.startswith("100 files, 1 parsed")
    assert dense.startswith("1 files of the corpus, 2")
    assert file.startswith("one file of 40 lines")


def test_the_long_file_is_long_and_needs_rewriting(tmp_path):
    text = migrate_time.long_file(500)
    assert 450 < text.count("\n") <= 503
    assert ast.parse(text)
    (tmp_path / "long.py").write_text(text, encoding="utf-8")
    (result,) = driver.migrate([tmp_path / "long.py"], Options()).results
    assert dict(result.counts)["apply_gradient"] == text.count("apply_gradient(")


@pytest.mark.parametrize("name", ["files", "dense", "lines", "turns"])
def test_misuse_is_said(name: str, capsys):
    with pytest.raises(SystemExit) as caught:
        migrate_time.main([f"--{name}", "0"])
    assert caught.value.code == 2
    assert "expected at least 1, found 0" in capsys.readouterr().err
