"""Notebooks: what is not rewritten stays byte for byte, and imports stay in their cell."""

import json
from pathlib import Path

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.reading import notebook
from migration_guide.codemod.reading.notebook import spans
from migration_guide.codemod.writing.context import Options

OLD = "from flax import optim\n\noptimizer = optim.GradientDescent(0.1).create(p)\n"


def _migrated(path: Path) -> str:
    report = driver.migrate([path], Options())
    assert [r.refused for r in report.results if r.refused] == []
    driver.save(report.results)
    return path.read_text(encoding="utf-8")


def _notebook(*cells: str) -> dict:
    made = [
        {"cell_type": "code", "source": cell.splitlines(keepends=True), "outputs": []}
        for cell in cells
    ]
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


LAYOUTS = {
    "nbformat": {"indent": 1, "ensure_ascii": False},
    "indented": {"indent": 4},
    "one-line": {},
    "tight": {"separators": (",", ":")},
    "loose": {"separators": (" , ", " : ")},
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_all_else_stays_byte_for_byte(tmp_path: Path, layout: str):
    path = tmp_path / "x.ipynb"
    other = "x = '<b>'  # caf\u00e9 and a \\ and \"quotes\"\n"
    text = json.dumps(_notebook(other, OLD + other, other), **LAYOUTS[layout]) + "\n\n"
    text = text.replace("<b>", "\\u003cb>")  # as some writers do, and Python's does not
    path.write_text(text, encoding="utf-8")
    new = _migrated(path)
    cells = json.loads(new)["cells"]
    assert "".join(cells[1]["source"]).endswith(f"tx=optax.sgd(0.1))\n{other}")
    before, after = (dict((p, (s, e)) for p, s, e in spans(t)) for t in (text, new))
    place = ("cells", 1, "source")
    assert new[: after[place][0]] == text[: before[place][0]]
    assert new[after[place][1] :] == text[before[place][1] :]
    assert new.count("\\u003c") == 3
    assert [len(cell["source"]) for cell in cells] == [1, 5, 1]


def test_a_source_that_is_one_string(tmp_path: Path):
    path = tmp_path / "x.ipynb"
    document = _notebook(OLD)
    document["cells"][0]["source"] = OLD
    path.write_text(json.dumps(document), encoding="utf-8")
    source = json.loads(_migrated(path))["cells"][0]["source"]
    assert source.startswith("import optax\n")


@pytest.mark.parametrize("setup", ["!pip install flax", "%load_ext autoreload", "%pip install x"])
def test_an_import_stands_where_the_old_one_stood(tmp_path: Path, setup: str):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(_notebook(setup, f"{setup}\n{OLD}")), encoding="utf-8")
    first, second = ("".join(c["source"]) for c in json.loads(_migrated(path))["cells"])
    assert first == setup
    assert second.startswith(f"{setup}\nimport optax\nimport optax_bridge\n\noptimizer = ")


DEEP = {"lists": "[" * 50_000 + "]" * 50_000, "dicts": '{"a":' * 50_000 + "1" + "}" * 50_000}


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_a_deep_one_fails_by_itself(tmp_path: Path, case: str):
    deep = DEEP[case]
    text = json.dumps(_notebook(OLD)).replace('"metadata": {}', f'"metadata": {deep}')
    (tmp_path / "deep.ipynb").write_text(text, encoding="utf-8")
    (tmp_path / "fine.py").write_text(OLD, encoding="utf-8")
    report = driver.migrate([tmp_path], Options())
    assert [result.path.name for result in report.changed] == ["fine.py"]
    (refused,) = (result.refused for result in report.results if result.refused)
    assert "nested too deeply" in refused
    assert len(list(spans(deep))) > 1


def test_spans_of_all_kinds_of_values():
    text = '{"a": [1, {"b": "x,]"}, []], "c\\"": {}, "d": null, "0": [[2]]}'
    found = {path: text[start:end] for path, start, end in spans(text)}
    assert found[("a", 0)] == "1"
    assert found[("a", 1, "b")] == '"x,]"'
    assert found[("a", 2)] == "[]"
    assert found[('c\\"',)] == "{}"
    assert found[("d",)] == "null"
    assert found[("0", 0, 0)] == "2"
    assert found[()] == text


def test_cells_that_cannot_be_told_apart_are_not_written():
    book = notebook.read(json.dumps(_notebook("x = 1\n", "y = 2\n")))
    assert book.with_code(book.code) == json.dumps(_notebook("x = 1\n", "y = 2\n"))
    first, second = (at for at, line in enumerate(book.code.splitlines()) if "=" in line)
    lines = book.code.splitlines()
    assert "x = 3" in book.with_code("\n".join([*lines[:first], "x = 3", *lines[first + 1 :]]))
    for wrong in ("import z\n" + book.code, "\n".join(lines[: second - 1]), "z\n" + lines[second]):
        with pytest.raises(notebook.NotANotebook, match="cannot be told apart"):
            book.with_code(wrong)
