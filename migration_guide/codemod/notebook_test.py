"""Notebooks: what is not rewritten stays byte for byte, and imports stay in their cell."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from migration_guide.codemod import driver
from migration_guide.codemod.reading import notebook
from migration_guide.codemod.reading.notebook import source_spans
from migration_guide.codemod.results import Options
from optax_bridge.cli.app import app

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


def _notebook_with_prose(*cells: str) -> dict:
    """With outputs, metadata, and a cell of prose before the code."""
    document = _notebook(*cells)
    filled = {"execution_count": 3, "metadata": {}, "outputs": [{"x": 1}]}
    prose = {"cell_type": "markdown", "metadata": {}, "source": ["from flax import optim"]}
    code = [{**cell, **filled} for cell in document["cells"]]
    return {**document, "cells": [prose, *code], "metadata": {"k": "\u00e9"}}


def _migrate(option: str, path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["migrate", option, str(path)])
    return result.exit_code, result.output


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
    (start, end), (new_start, new_end) = (source_spans(t)[1] for t in (text, new))
    assert new[:new_start] == text[:start]
    assert new[new_end:] == text[end:]
    assert new.count("\\u003c") == 3
    assert [len(cell["source"]) for cell in cells] == [1, 5, 1]


def test_a_source_that_is_one_string(tmp_path: Path):
    path = tmp_path / "x.ipynb"
    document = _notebook(OLD)
    document["cells"][0]["source"] = OLD
    path.write_text(json.dumps(document), encoding="utf-8")
    source = json.loads(_migrated(path))["cells"][0]["source"]
    assert source.startswith("import optax\n")


@pytest.mark.parametrize(
    "setup",
    ["!pip install flax", "%load_ext x", "%pip install x", "files = !ls \\\n  'a'", "x.y?", "?x"],
)
def test_an_import_stands_where_the_old_one_stood(tmp_path: Path, setup: str):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(_notebook(setup, f"{setup}\n{OLD}")), encoding="utf-8")
    first, second = ("".join(c["source"]) for c in json.loads(_migrated(path))["cells"])
    assert first == setup
    assert second.startswith(f"{setup}\nimport optax\nimport optax_bridge\n\noptimizer = ")


@pytest.mark.parametrize(
    "above", ["x = 1 + \\\n    2", "'''text \\\n%time'''", "!ls \\\n  %s \\\n  b"]
)
def test_what_is_continued_is_a_magic_only_below_one(tmp_path: Path, above: str):
    path = tmp_path / "x.ipynb"
    old = "optimizer = \\\n    optim.GradientDescent(0.1).create(p)\n"
    path.write_text(json.dumps(_notebook(f"from flax import optim\n{above}\n{old}")), "utf-8")
    source = "".join(json.loads(_migrated(path))["cells"][0]["source"])
    assert above in source and "optim.GradientDescent" not in source


@pytest.mark.parametrize(
    "magic", ["%time ", "%time  ", "%timeit -n 10 -r 3 ", "%prun -q -l 5 ", "if x:\n    %memit "]
)
def test_a_statement_that_a_magic_runs_is_rewritten(tmp_path: Path, magic: str):
    path = tmp_path / "x.ipynb"
    other = "%time\n%time !ls\n%time x = 1 # | \n%timeit x"
    call = "optimizer = optimizer.apply_gradient(g)  # a step"
    path.write_text(json.dumps(_notebook(OLD, f"{other}\n{magic}{call}\n{other}")), "utf-8")
    source = "".join(json.loads(_migrated(path))["cells"][1]["source"])
    call = "optimizer = optimizer.apply_gradients(grads=g)  # a step"
    assert source == f"{other}\n{magic}{call}\n{other}"


def test_an_optimizer_that_a_magic_makes_keeps_no_old_name(tmp_path: Path):
    path = tmp_path / "x.ipynb"
    old = "%time d = optim.Adam(1e-3)\noptimizer = d.create(p)\nprint(optimizer.target)"
    path.write_text(json.dumps(_notebook("from flax import optim", old)), "utf-8")
    source = "".join(json.loads(_migrated(path))["cells"][1]["source"])
    assert source.startswith("%time d = optax.adam(1e-3)\noptimizer = optax_bridge.TrainState.")
    assert source.endswith("print(optimizer.params)")


def test_a_statement_of_several_lines_has_no_magic():
    read = notebook.read(json.dumps(_notebook("%time f(x)")))
    with pytest.raises(notebook.NotANotebook, match="%time: its statement takes several lines now"):
        read.with_code(read.code.replace("f(x)", "f(\n    x)"))


DEEP = {"lists": "[" * 50_000 + "]" * 50_000, "dicts": '{"a":' * 50_000 + "1" + "}" * 50_000}


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_a_deep_one_fails_by_itself(tmp_path: Path, case: str):
    deep = DEEP[case]
    text = json.dumps(_notebook(OLD)).replace('"metadata": {}', f'"metadata": {deep}')
    (tmp_path / "deep.ipynb").write_text(text, encoding="utf-8")
    (tmp_path / "fine.py").write_text(OLD, encoding="utf-8")
    report = driver.migrate([tmp_path], Options())
    assert [result.path.name for result in report.changed_files] == ["fine.py"]
    (refused,) = (result.refused for result in report.results if result.refused)
    assert "nested too deeply" in refused


def test_spans_of_all_kinds_of_values():
    text = '{"a\\"": [1, {"source": "]}"}], "cells" : [ {}, {"b": [[2]] , "source" :\t["x", "y"]}]}'
    spans = {number: text[start:end] for number, (start, end) in source_spans(text).items()}
    assert spans == {1: '["x", "y"]'}


def test_cells_that_cannot_be_told_apart_are_not_written():
    book = notebook.read(json.dumps(_notebook("x = 1\n", "y = 2\n")))
    assert book.with_code(book.code) == json.dumps(_notebook("x = 1\n", "y = 2\n"))
    first, second = (at for at, line in enumerate(book.code.splitlines()) if "=" in line)
    lines = book.code.splitlines()
    assert "x = 3" in book.with_code("\n".join([*lines[:first], "x = 3", *lines[first + 1 :]]))
    for wrong in ("import z\n" + book.code, "\n".join(lines[: second - 1]), "z\n" + lines[second]):
        with pytest.raises(notebook.NotANotebook, match="cannot be told apart"):
            book.with_code(wrong)


def test_notebooks_keep_everything_else(tmp_path: Path):
    path = tmp_path / "train.ipynb"
    cells = (
        "%matplotlib inline\n!pip install flax\nfrom flax import optim",
        OLD.splitlines()[2],
        "if x:\n    %time y = 1\noptimizer.target  # gr\u00f6\u00dfer?",
        "%%bash\necho optimizer.target",
        "optim?",
    )
    document = _notebook_with_prose(*cells)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _migrate("--write", path)
    text = path.read_text(encoding="utf-8")
    new = json.loads(text)
    sources = ["".join(cell["source"]) for cell in new["cells"]]
    assert sources[0] == "from flax import optim"
    assert sources[1].startswith("%matplotlib inline\n!pip install flax\n")
    assert "import optax_bridge" in sources[1]
    assert "optax.sgd" in sources[2]
    assert sources[3] == "if x:\n    %time y = 1\noptimizer.params  # gr\u00f6\u00dfer?"
    assert sources[4:] == [cells[3], cells[4]]
    assert new["cells"][1]["outputs"] == [{"x": 1}]
    assert text.startswith('{\n "cells"')
    assert text.endswith("}\n")
    assert text.count("\u00e9") == text.count("gr\u00f6\u00dfer") == 1
    assert _migrate("--check", path)[0] == 0


def test_a_notebook_on_one_line_with_a_timed_cell_and_an_installation(tmp_path: Path):
    path = tmp_path / "short.ipynb"
    cells = (
        "!pip install \\\n  flax==0.5.3\nfiles = !ls\nfrom flax import optim",
        "%%time\n" + OLD.splitlines()[2],
        "%%bash\npython -c 'from flax import optim'",
        "x = 1\nf(optim)",
    )
    path.write_text(json.dumps(_notebook_with_prose(*cells)), encoding="utf-8")
    _, output = _migrate("--write", path)
    sources = ["".join(c["source"]) for c in json.loads(path.read_text("utf-8"))["cells"]]
    assert sources[1].startswith(cells[0].rpartition("\n")[0])
    assert sources[2].startswith("%%time\noptimizer = optax_bridge.TrainState.create(")
    assert sources[3] == cells[2]
    assert "short.ipynb:cell 4:1: this cell is not read" in output
    assert "short.ipynb:cell 5:3: this class is called in code outside this migration" in output


def test_half_precision_in_a_cell_is_told_with_the_cell(tmp_path: Path):
    path = tmp_path / "x.ipynb"
    head = "from flax import optim\nimport jax.numpy as jnp"
    cells = ("y = 1", "\nx = jnp.bfloat16", "optim.Adam(0.1).create(p)")
    path.write_text(json.dumps(_notebook(head, *cells)), encoding="utf-8")
    (message,) = driver.migrate([path], Options()).results[0].messages
    assert "x.ipynb:cell 3:2: x = jnp.bfloat16)" in message.text


def test_a_broken_notebook_says_so():
    with pytest.raises(notebook.NotANotebook, match="format 4"):
        notebook.read("[]")
